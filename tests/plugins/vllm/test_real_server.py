"""The sampler `vllm` against a real server, if there is one: docs/guides/samplers.md says how one is started.

    AFARM_VLLM_URL=http://127.0.0.1:8000 AFARM_VLLM_MODEL=DIR pytest tests/plugins/vllm/test_real_server.py

It must serve that model with --dtype float32, --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True.
"""

from __future__ import annotations

import os

import pytest

from afarm.backend import Backend
from afarm.core.config import BackendConfig
from afarm.testing import check_sampler, judge_context
from afarm_plugins.vllm.config import VllmConfig
from afarm_plugins.vllm.engine import VllmEngine

URL, MODEL = os.environ.get("AFARM_VLLM_URL", ""), os.environ.get("AFARM_VLLM_MODEL", "")

pytestmark = pytest.mark.skipif(not (URL and MODEL), reason="needs a vLLM server: AFARM_VLLM_URL and AFARM_VLLM_MODEL")


def test_it_keeps_the_promises_of_samplers() -> None:
    policy = Backend(BackendConfig(device="cpu")).load_policy(MODEL)
    check_sampler(VllmEngine(VllmConfig(), URL, judge_context()), policy)
