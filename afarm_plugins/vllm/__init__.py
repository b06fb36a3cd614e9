"""Sampling by a vLLM server, which has a process, an environment and GPUs of its own."""

from __future__ import annotations

from afarm import Register, hookimpl


@hookimpl
def register_samplers(register: Register) -> None:
    from afarm_plugins.vllm.config import VllmConfig  # the help needs no config

    register(
        "vllm",
        "afarm_plugins.vllm.engine:VllmEngine",
        config=VllmConfig,
        spec="URL",
        summary="a vLLM server at a URL: it gets adapters, and proves that it holds the policy's weights",
    )
