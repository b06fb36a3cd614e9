"""Greedy tokens of torch and of another engine, llama.cpp, from one GGUF file: token ids in, token ids out."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import httpx2
import pytest
import torch

from afarm import Decoding, Instruction
from afarm.backend import Backend
from afarm.core.config import BackendConfig

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("xllamacpp") is None, reason="needs llama.cpp: pip install xllamacpp"),
]

ASKED = ("Name three primary colours.", "What is the capital of France?", "Count from one to five.")

LENGTH = 16
"""Tokens of each response."""

TIE = 0.5
"""Log-probability within which the likeliest token is a matter of rounding.

llama.cpp multiplies quantised weights by activations of 8 bits: 0.28 was seen.
"""

SERVE = """
import sys, xllamacpp
params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.hostnames, params.port = ["127.0.0.1"], 0
params.n_ctx, params.n_parallel, params.n_gpu_layers = 256, 1, 0
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
params.warmup = params.fit_params = False
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
sys.stdin.read()
"""
"""A server that ends with whom it serves."""


@pytest.fixture(scope="module")
def url(gguf: str) -> Iterator[str]:
    command = [sys.executable, "-c", SERVE, gguf]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()


def continued(url: str, prompt: Sequence[int]) -> Any:
    asked = {"prompt": prompt, "n_predict": LENGTH, "temperature": 0, "return_tokens": True, "n_probs": 1}
    return httpx2.post(f"{url}/completion", json=asked, timeout=300).raise_for_status().json()


def test_both_choose_the_same_tokens_up_to_near_ties(url: str, gguf: str) -> None:
    policy = Backend(BackendConfig(device="cpu")).load_policy(gguf)
    prompts = policy.prompt_ids([Instruction(asked) for asked in ASKED])
    greedy = Decoding(temperature=0, max_new_tokens=LENGTH)
    for prompt, own in zip(prompts, policy.sampler().generate(prompts, ASKED, greedy, seed=0), strict=True):
        answer = continued(url, prompt)
        theirs = answer["tokens"]
        assert answer["tokens_evaluated"] == len(prompt), "of just these ids"
        assert 0 < len(theirs) <= LENGTH
        with torch.inference_mode():
            logprobs = policy.model(torch.tensor([[*prompt, *theirs]])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        chosen = logprobs.gather(-1, torch.tensor(theirs).unsqueeze(-1)).squeeze(-1)
        assert (logprobs.amax(-1) - chosen).max() < TIE, "each of its tokens is torch's likeliest, or near"
        likeliest = logprobs.topk(2).values
        is_near_tie = (likeliest[:, 0] - likeliest[:, 1] < TIE).tolist()
        certain = is_near_tie.index(True) if any(is_near_tie) else len(theirs)
        assert theirs[:certain] == own.token_ids[:certain]
        said = torch.tensor([token["logprob"] for token in answer["completion_probabilities"]])
        assert (said - chosen).abs().max() < TIE
