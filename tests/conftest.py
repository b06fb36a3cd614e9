"""What tests of several folders share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def gguf() -> str:
    """SmolLM2-135M-Instruct as a GGUF file; where there is none, the test is skipped."""
    for place in (os.environ.get("AFARM_TEST_GGUF"), Path(__file__).parents[1] / ".cache" / "smollm2.gguf"):
        if place and Path(place).is_file():
            return str(place)
    pytest.skip("no SmolLM2 GGUF: set AFARM_TEST_GGUF, or put .cache/smollm2.gguf")
