from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from tiny_models import make_gpt2, make_model, make_policy

from afarm import LoraConfig
from afarm.backend import (
    add_adapter,
    batched_logprobs,
    before_responses,
    join_and_pad,
    logprobs,
    pad,
    project,
    response_logprobs,
    response_scatter,
    token_loss,
)
from afarm.backend.logprobs import chunk_logprobs

PROMPTS = [[5, 6, 7], [8], [9, 10, 11, 12, 13]]
RESPONSES = [[14, 15, 1], [16, 17, 18, 19, 20, 1], [21]]


def full_logits(
    model: torch.nn.Module, prompt: list[int], response: list[int], temperature: float = 1.0
) -> torch.Tensor:
    """Logits [R, V] at the response's positions, one sequence alone, all logits: the plain way."""
    ids = torch.tensor([prompt + response])
    logits = model(input_ids=ids).logits[0].float() / temperature
    return logits[len(prompt) - 1 : -1]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_equal_to_softmax_over_all_logits_of_each_sequence_alone(temperature: float) -> None:
    model = make_model()
    batch = join_and_pad(PROMPTS, RESPONSES, 0)
    logprobs = response_logprobs(
        model, batch.input_ids, batch.attention_mask, batch.response_mask, temperature=temperature
    )
    assert logprobs.shape == (3, 6)
    for row, (prompt, response) in enumerate(zip(PROMPTS, RESPONSES, strict=True)):
        plain = full_logits(model, prompt, response, temperature).log_softmax(-1)
        n = len(response)
        torch.testing.assert_close(logprobs[row, :n], plain[range(n), response], atol=1e-5, rtol=0)
        assert logprobs[row, n:].eq(0).all()


@torch.no_grad()
@pytest.mark.parametrize("make", [make_model, make_gpt2])
def test_neither_amount_nor_side_of_padding_changes_them(make: Callable[[], torch.nn.Module]) -> None:
    model = make()
    batch = join_and_pad(PROMPTS, RESPONSES, 0)
    expected = response_logprobs(model, batch.input_ids, batch.attention_mask, batch.response_mask)

    def padded(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(x, (0, 7))

    more = [padded(x) for x in (batch.input_ids, batch.attention_mask, batch.response_mask)]
    torch.testing.assert_close(response_logprobs(model, *more), expected, atol=1e-5, rtol=0)

    ids, mask = pad([p + r for p, r in zip(PROMPTS, RESPONSES, strict=True)], 0, "left")
    lengths = torch.tensor([len(r) for r in RESPONSES]).unsqueeze(-1)
    response_mask = torch.arange(ids.shape[1]) >= ids.shape[1] - lengths
    torch.testing.assert_close(response_logprobs(model, ids, mask, response_mask), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("chunk_size", [1, 3, 4])
def test_chunks_change_neither_values_nor_gradients(chunk_size: int) -> None:
    whole, chunked = make_model(), make_model()
    batch = join_and_pad(PROMPTS, RESPONSES, 0)
    tensors = (batch.input_ids, batch.attention_mask, batch.response_mask)
    weights = torch.arange(18.0).reshape(3, 6)
    one = response_logprobs(whole, *tensors, temperature=0.8)
    two = response_logprobs(chunked, *tensors, temperature=0.8, chunk_size=chunk_size)
    torch.testing.assert_close(one, two, atol=1e-5, rtol=0)
    (one * weights).sum().backward()
    (two * weights).sum().backward()
    for a, b in zip(whole.parameters(), chunked.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, atol=1e-4, rtol=1e-4)
    assert any(p.grad is not None and p.grad.abs().max() > 0 for p in chunked.model.parameters())


@torch.no_grad()
def test_adapters_count_and_can_be_disabled() -> None:
    model = make_model()
    batch = join_and_pad(PROMPTS, RESPONSES, 0)
    tensors = (batch.input_ids, batch.attention_mask, batch.response_mask)
    before = response_logprobs(model, *tensors)
    adapted = add_adapter(copy.deepcopy(model), LoraConfig(r=4))
    for name, weight in adapted.named_parameters():
        if "lora_B" in name:
            weight.normal_()
    assert (response_logprobs(adapted, *tensors) - before).abs().max() > 0.1
    with adapted.disable_adapter():
        torch.testing.assert_close(response_logprobs(adapted, *tensors), before)


def test_scatter_aligns_rows_of_different_length() -> None:
    mask = torch.tensor([[False, True, True, False], [False, False, True, False], [True, True, True, True]])
    out = response_scatter(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]), mask)
    assert out.tolist() == [[1, 2, 0, 0], [3, 0, 0, 0], [4, 5, 6, 7]]


def test_logit_softcap_is_applied_where_a_model_has_one() -> None:
    model = make_model()
    hidden = torch.randn(2, 32)
    plain = model.lm_head(hidden)
    model.config.final_logit_softcapping = 1.5
    torch.testing.assert_close(project(model, hidden), 1.5 * torch.tanh(plain / 1.5))


def weighted_loss(logprobs: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Not linear in the log-probabilities, so that each chunk's gradient depends on their values."""
    return (weights * logprobs.exp() + 0.1 * logprobs**2).sum()


@pytest.mark.parametrize("chunk_size", [None, 1, 4])
@pytest.mark.parametrize("family", ["plain", "softcapped"])
def test_a_sum_over_tokens_has_the_gradient_that_plain_autograd_gives(family: str, chunk_size: int | None) -> None:
    plain, ours = make_model(tie_word_embeddings=True), make_model(tie_word_embeddings=True)
    if family == "softcapped":  # takes the way through `project`
        plain.config.final_logit_softcapping = ours.config.final_logit_softcapping = 1.5
    batch = join_and_pad(PROMPTS, RESPONSES, 0)
    tensors = (batch.input_ids, batch.attention_mask, batch.response_mask)
    weights = torch.arange(10.0)
    rows, columns = batch.response_mask.nonzero(as_tuple=True)
    hidden = plain.model(batch.input_ids, attention_mask=batch.attention_mask).last_hidden_state[rows, columns - 1]
    logprobs = (project(plain, hidden) / 0.8).log_softmax(-1)[range(10), batch.input_ids[rows, columns]]
    expected = weighted_loss(logprobs, weights)
    (3 * expected).backward()
    found = token_loss(
        ours, *before_responses(ours, *tensors), weighted_loss, weights, temperature=0.8, chunk_size=chunk_size
    )
    (3 * found).backward()
    torch.testing.assert_close(found, expected)
    for a, b in zip(plain.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, atol=1e-4, rtol=1e-4)


def test_a_frozen_head_gets_no_gradient_and_a_trunk_below_it_does() -> None:
    model = make_model().requires_grad_(False)
    model.model.norm.weight.requires_grad_(True)
    batch = join_and_pad(PROMPTS, RESPONSES, 0)
    hidden, targets = before_responses(model, batch.input_ids, batch.attention_mask, batch.response_mask)
    token_loss(model, hidden, targets, lambda logprobs: logprobs.sum()).backward()
    assert model.lm_head.weight.grad is None
    assert model.model.norm.weight.grad is not None


def test_a_token_of_probability_zero_in_float32_has_a_finite_log_probability() -> None:
    hidden, weight = torch.tensor([[1.0]]), torch.tensor([[0.0], [200.0]])
    logprobs, probabilities = chunk_logprobs(hidden, weight, torch.tensor([0]), 1.0)
    assert probabilities.tolist() == [[0.0, 1.0]]
    assert logprobs.tolist() == [-200.0]


def test_mixed_precision_gives_nearly_the_same_gradient() -> None:
    exact, mixed = make_model(), make_model()
    batch = join_and_pad(PROMPTS, RESPONSES, 0)
    tensors = (batch.input_ids, batch.attention_mask, batch.response_mask)
    for model, enabled in ((exact, False), (mixed, True)):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled, cache_enabled=False):
            token_loss(
                model, *before_responses(model, *tensors), lambda logprobs: logprobs.sum(), chunk_size=4
            ).backward()
    one, two = (m.lm_head.weight.grad.flatten() for m in (exact, mixed))
    assert torch.nn.functional.cosine_similarity(one, two, dim=0) > 0.98


# ------------------------------------------------------------------------------------------------------ many rows


@pytest.mark.parametrize("batch_size", [1, 2, 9])
def test_batches_of_like_length_give_each_row_what_it_has_alone(batch_size: int) -> None:
    policy = make_policy()
    found = batched_logprobs(policy, PROMPTS, RESPONSES, batch_size=batch_size, temperature=0.7)
    assert found.shape == (len(RESPONSES), max(map(len, RESPONSES)))
    assert not found.requires_grad
    for row, prompt, response in zip(found, PROMPTS, RESPONSES, strict=True):
        batch = join_and_pad([prompt], [response], 0)
        tensors = (batch.input_ids, batch.attention_mask, batch.response_mask)
        alone = response_logprobs(policy.model, *tensors, temperature=0.7).detach()
        torch.testing.assert_close(row[: len(response)], alone[0], atol=1e-5, rtol=0)
        assert not row[len(response) :].any()


def test_processes_read_a_shard_of_the_rows_each(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = make_policy()
    whole = batched_logprobs(policy, PROMPTS, RESPONSES, batch_size=2)
    monkeypatch.setattr(logprobs, "all_reduce_sum", lambda tensors: None)
    shards = []
    for rank in range(2):
        monkeypatch.setattr(logprobs, "shard", lambda rows, rank=rank: rows[rank::2])
        shards.append(batched_logprobs(policy, PROMPTS, RESPONSES, batch_size=2))
        assert not shards[rank][1 - rank :: 2].any()
    torch.testing.assert_close(shards[0] + shards[1], whole, atol=1e-5, rtol=0)
