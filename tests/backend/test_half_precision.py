"""Half precision on a CPU: what is quicker there gives what float32 gives, but for rounding."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import Recorder, make_instructions, make_policy
from transformers import DynamicCache

from afarm import Decoding, Instruction, MethodInputs, Output, TrainContext
from afarm.backend import Backend, CheckpointPolicy, batched_logprobs
from afarm.backend import sampling as sampling_module
from afarm.backend.adapters import add_adapter
from afarm.core.config import BackendConfig, LoraConfig
from afarm.storage.checkpoints import DirectoryCheckpoints
from afarm_plugins.sft import SFT, SFTConfig

SHORT = Decoding(max_new_tokens=12, per_device_batch_size=8)
SYSTEM = "w1 w2 w3 w4 w5 w6 w7 w8 w9 w10 "
LOGPROB_ERROR = 0.05
"""Natural units by which log-probabilities may move on average: a tiny random model's weights are large (0.3)."""


def halved(policy: CheckpointPolicy) -> CheckpointPolicy:
    """A copy of `policy` in bfloat16."""
    model = copy.deepcopy(policy.model).to(torch.bfloat16)
    backend = Backend(BackendConfig(device="cpu", dtype="bfloat16"))
    return CheckpointPolicy(model, policy.tokenizer, policy.template, backend)


def read_tokens(policy: CheckpointPolicy) -> list[int]:
    """The tokens of each of the model's passes from here on."""
    counts: list[int] = []
    policy.model.model.embed_tokens.register_forward_hook(lambda m, i, o: counts.append(i[0].numel()))
    return counts


def test_sampling_in_bfloat16_draws_from_nearly_the_same_probabilities() -> None:
    policy = make_policy()
    half = halved(policy)
    instructions = make_instructions(24)
    samples = list(half.sample(instructions, SHORT, seed=3))
    exact, rounded = (
        batched_logprobs(p, [s.prompt_ids for s in samples], [s.token_ids for s in samples], batch_size=8)
        for p in (policy, half)
    )
    difference = exact - rounded
    assert difference.square().mean().sqrt() < LOGPROB_ERROR
    assert difference.mean().abs() < LOGPROB_ERROR / 5
    assert exact.dtype == rounded.dtype == torch.float32
    # The same uniforms fall on the same tokens, unless one lies beside an edge that rounding moved
    same = list(policy.sample(instructions, SHORT, seed=3))
    first = [a.token_ids[0] == b.token_ids[0] for a, b in zip(samples, same, strict=True)]
    assert sum(first) >= 22


def test_a_beginning_that_all_prompts_share_is_read_once_in_half_precision() -> None:
    policy = make_policy()
    shared = [10 + i for i in range(12)]
    prompts = [[*shared, 30 + i, *([31] * (i % 3))] for i in range(6)]
    keys = [str(i) for i in range(6)]
    decoding = Decoding(max_new_tokens=1, per_device_batch_size=8)
    counts = read_tokens(policy)
    list(policy.sampler().generate(prompts, keys, decoding, seed=0))
    assert counts == [6 * 15]  # float32 reads all prompts in one pass, as ever
    half = halved(policy)
    counts = read_tokens(half)
    list(half.sampler().generate(prompts, keys, decoding, seed=0))
    assert counts == [12, 6 * 3]


@pytest.mark.parametrize("n", [1, 5])
def test_prompts_read_in_two_parts_continue_as_those_read_whole(monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    half = halved(make_policy(num_key_value_heads=2))
    shared = [10 + i for i in range(12)]
    prompts = [[*shared, 30 + i, *([31] * (i % 3))] for i in range(6)]
    greedy = Decoding(temperature=0.0, max_new_tokens=8, per_device_batch_size=4, n=n)
    keys = [str(i) for i in range(6)]
    parts = [g.token_ids for g in half.sampler().generate(prompts, keys, greedy, seed=0)]
    monkeypatch.setattr(sampling_module, "WORTH_SHARING", 1000)
    whole = [g.token_ids for g in half.sampler().generate(prompts, keys, greedy, seed=0)]
    same = sum(a[:4] == b[:4] for a, b in zip(parts, whole, strict=True))
    assert same >= len(whole) - n  # one of the prompts may have two likeliest tokens within rounding


def test_float32_samples_are_those_of_transformers_own_cache_to_the_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = make_policy(num_key_value_heads=2)
    decoding = Decoding(max_new_tokens=40, per_device_batch_size=5, n=2)
    ours = list(policy.sample(make_instructions(9), decoding, seed=1))
    monkeypatch.setattr(sampling_module, "growing_cache", lambda model: DynamicCache(config=model.config))
    assert list(policy.sample(make_instructions(9), decoding, seed=1)) == ours


def test_attention_by_products_has_the_values_and_gradients_of_torchs() -> None:
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    from afarm.backend.product_attention import product_attention

    torch.manual_seed(0)
    module = torch.nn.Module()
    module.num_key_value_groups = 3  # type: ignore[assignment]
    mask = torch.ones(2, 1, 7, 7, dtype=torch.bool).tril()
    mask[0, :, :, :2] = False
    for own_mask in (mask, None):
        shapes = [(2, 6, 7, 8), (2, 2, 7, 8), (2, 2, 7, 8)]
        results = []
        for attend in (product_attention, sdpa_attention_forward):
            torch.manual_seed(1)
            states = [torch.randn(shape).requires_grad_() for shape in shapes]
            mixed, _ = attend(module, *states, own_mask)
            mixed[:, 2:].square().sum().backward()
            results.append([mixed[:, 2:], *(s.grad for s in states)])
        for ours, theirs in zip(*results, strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def test_adapters_of_a_bfloat16_model_multiply_in_bfloat16_and_learn_in_float32() -> None:
    half = halved(make_policy())
    torch.manual_seed(0)
    adapted = add_adapter(half.model, LoraConfig(r=4))
    dtypes: set[torch.dtype] = set()
    layer = adapted.get_base_model().model.layers[0].mlp.up_proj
    torch.nn.init.normal_(layer.lora_B["default"].weight, std=0.1)
    for module in (layer.lora_A["default"], layer.lora_B["default"]):
        module.register_forward_hook(lambda m, i, o: dtypes.add(o.dtype))
    x = torch.randn(3, 5, 32).to(torch.bfloat16).requires_grad_()
    layer(x).float().square().sum().backward()
    assert not dtypes  # PEFT's own path, in float32, was not taken
    trained = [p for p in adapted.parameters() if p.requires_grad]
    assert {p.dtype for p in trained} == {torch.float32}
    found = [layer.lora_A["default"].weight.grad, layer.lora_B["default"].weight.grad, x.grad]
    exact = copy.deepcopy(layer).float()
    exact.zero_grad()
    y = x.detach().float().requires_grad_()
    exact(y).square().sum().backward()
    expected = [exact.lora_A["default"].weight.grad, exact.lora_B["default"].weight.grad, y.grad]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours is not None
        assert (ours.float() - theirs).norm() < 0.02 * theirs.norm()


def test_sft_in_bfloat16_learns_what_float32_learns(tmp_path: Path) -> None:
    rows = [Output(i, "w1 w2 w3 w4") for i in make_instructions(12)]
    losses: list[list[float]] = []
    for name, policy in (("whole", make_policy()), ("half", halved(make_policy()))):
        directory, log = tmp_path / name, Recorder()
        directory.mkdir()
        context = TrainContext(0, directory, policy.backend, DirectoryCheckpoints(directory), log)
        config = SFTConfig(
            learning_rate=1e-2, num_train_epochs=4, per_device_train_batch_size=4, save_steps=0, lora={"r": 4}
        )
        trained: Any = SFT(config).train(MethodInputs(start=policy, demonstrations=rows), context)
        losses.append([metrics["loss"] for _, metrics in log.lines if "loss" in metrics])
        assert next(trained.model.parameters()).dtype == policy.backend.dtype
    whole, half = losses
    assert whole[-1] < 0.5 * whole[0]
    assert max(abs(a - b) / a for a, b in zip(whole, half, strict=True)) < 0.05


ASKED = {
    "Name three primary colours.": "The three primary colours are red, yellow and blue.",
    "Why is the sky blue?": "Air scatters short waves of light more than long ones, so the sky looks blue.",
    "Write one sentence about trains.": "A train is a row of carriages that an engine pulls along rails.",
    "What is 17 times 3?": "17 times 3 is 51.",
}


@pytest.mark.slow
def test_log_probabilities_in_bfloat16_are_those_of_float32_within_the_stated_error(smollm2: str) -> None:
    """docs/notes/smol-results.md states 0.033 per token on average, over many more tokens."""
    found = []
    for dtype in ("float32", "bfloat16"):
        policy = Backend(BackendConfig(device="cpu", dtype=dtype)).load_policy(smollm2)
        pairs, _ = policy.encode([Instruction(text) for text in ASKED], list(ASKED.values()), 128)
        prompts, responses = zip(*pairs, strict=True)
        found.append(batched_logprobs(policy, list(prompts), list(responses), batch_size=4))
    tokens = sum(len(response) for response in responses)
    exact, half = found
    assert float((half - exact).abs().sum() / tokens) < 0.06
    assert not torch.equal(half, exact), "one of them was computed in the other's precision"
