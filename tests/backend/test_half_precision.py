"""A real small model in bfloat16 beside itself in float32."""

from __future__ import annotations

import pytest
import torch

from afarm import Instruction
from afarm.backend import Backend, batched_logprobs
from afarm.core.config import BackendConfig

ASKED = {
    "Name three primary colours.": "The three primary colours are red, yellow and blue.",
    "Why is the sky blue?": "Air scatters short waves of light more than long ones, so the sky looks blue.",
    "Write one sentence about trains.": "A train is a row of carriages that an engine pulls along rails.",
    "What is 17 times 3?": "17 times 3 is 51.",
}


@pytest.mark.slow
def test_log_probabilities_in_bfloat16_are_those_of_float32_within_the_stated_error(gguf: str) -> None:
    """docs/start/first-real-run.md states 0.033 per token on average, over many more tokens."""
    found = []
    for dtype in ("float32", "bfloat16"):
        policy = Backend(BackendConfig(device="cpu", dtype=dtype)).load_policy(gguf)
        pairs, _ = policy.encode([Instruction(text) for text in ASKED], list(ASKED.values()), 128)
        prompts, responses = zip(*pairs, strict=True)
        found.append(batched_logprobs(policy, list(prompts), list(responses), batch_size=4))
    tokens = sum(len(response) for response in responses)
    exact, half = found
    assert float((half - exact).abs().sum() / tokens) < 0.06
    assert not torch.equal(half, exact), "one of them was computed in the other's precision"
