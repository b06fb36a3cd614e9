"""The exact KL over the vocabulary, against one written out in full, and against numbers worked by hand."""

from __future__ import annotations

import math

import pytest
import torch
from tiny_models import make_model

from afarm.backend import response_logprobs
from afarm.backend.batching import TokenBatch, join_and_pad
from afarm_plugins.quark.divergence import Divergence, response_divergence

PROMPTS = [[3, 8, 9, 4], [3, 20, 4], [3, 11, 12, 13, 4]]
RESPONSES = [[30, 31, 1], [33], [7, 8, 9, 10, 1]]


def batch(prompts: list[list[int]] = PROMPTS) -> TokenBatch:
    return join_and_pad(prompts, RESPONSES, 0)


def compared(chunk_size: int | None = None, left_out: tuple[int, ...] = ()) -> tuple[Divergence, torch.nn.Module]:
    policy = make_model(0)
    return response_divergence(
        policy, make_model(1), batch(), batch(), left_out=left_out, chunk_size=chunk_size
    ), policy


def in_full(left_out: tuple[int, ...] = ()) -> tuple[list[torch.Tensor], list[torch.Tensor], torch.nn.Module]:
    """KL and entropy at each response token of each row, from whole softmaxes, row by row."""
    policy, reference = make_model(0), make_model(1)
    kl, entropy = [], []
    kept = [token for token in range(45) if token not in left_out]
    for prompt, response in zip(PROMPTS, RESPONSES, strict=True):
        ids = torch.tensor([prompt + response])
        p = policy(ids).logits[0, len(prompt) - 1 : -1, kept].softmax(-1)
        q = reference(ids).logits[0, len(prompt) - 1 : -1, kept].softmax(-1).detach()
        kl.append((p * (p / q).log()).sum(-1))
        entropy.append(-(p * p.log()).sum(-1))
    return kl, entropy, policy


@pytest.mark.parametrize("left_out", [(), (2, 40)])
@pytest.mark.parametrize("chunk_size", [None, 1, 4])
def test_values_and_gradients_equal_a_full_computation(chunk_size: int | None, left_out: tuple[int, ...]) -> None:
    found, policy = compared(chunk_size, left_out)
    kl, entropy, other = in_full(left_out)
    for row, response in enumerate(RESPONSES):
        torch.testing.assert_close(found.kl[row, : len(response)], kl[row])
        torch.testing.assert_close(found.entropy[row, : len(response)], entropy[row])
        assert (found.kl[row, len(response) :] == 0).all()
    (found.kl.sum() + 0.3 * found.entropy.sum()).backward()
    (torch.cat(kl).sum() + 0.3 * torch.cat(entropy).sum()).backward()
    expected = {name: p.grad for name, p in other.named_parameters()}
    torch.testing.assert_close({name: p.grad for name, p in policy.named_parameters()}, expected, rtol=1e-4, atol=1e-5)


def test_log_probabilities_are_those_of_the_response_tokens() -> None:
    given = batch()
    expected = response_logprobs(make_model(0), given.input_ids, given.attention_mask, given.response_mask)
    torch.testing.assert_close(compared()[0].logprobs, expected)


def test_a_model_does_not_diverge_from_itself() -> None:
    model = make_model(0)
    found = response_divergence(model, model, batch(), batch())
    assert found.kl.abs().max() < 1e-6


def test_a_coin_against_a_biased_one() -> None:
    """Two tokens at ½ and ½ against ¾ and ¼: ½ ln(½/¾) + ½ ln(½/¼) = ½ ln(4/3) = 0.1438; and an entropy of ln 2."""
    policy, reference = make_model(0, vocab_size=2), make_model(0, vocab_size=2)
    for model, odds in ((policy, 1.0), (reference, 3.0)):
        with torch.no_grad():
            model.lm_head.weight.zero_()
        model.lm_head.bias = torch.nn.Parameter(torch.tensor([math.log(odds), 0.0]))
    coins = join_and_pad([[0, 1]], [[1, 0, 1]], 0)
    found = response_divergence(policy, reference, coins, coins)
    assert found.kl[0].tolist() == pytest.approx([0.5 * math.log(4 / 3)] * 3)
    assert found.entropy[0].tolist() == pytest.approx([math.log(2)] * 3)


def test_a_larger_vocabulary_is_compared_where_the_reference_has_it() -> None:
    """Tokens that only the policy knows are left out of both, as if they were never there."""
    reference = make_model(1)
    policy = make_model(0)
    policy.resize_token_embeddings(48, mean_resizing=False)
    wider = response_divergence(policy, reference, batch(), batch(), left_out=[45, 46, 47])
    torch.testing.assert_close(wider.kl, compared()[0].kl)


def test_prompts_of_the_two_models_may_differ() -> None:
    """A control token in front of the policy's prompts only: each response token is compared with itself."""
    model = make_model(0)
    steered = batch([[40, *prompt] for prompt in PROMPTS])
    found = response_divergence(model, model, steered, batch())
    ids = torch.tensor([[40, *PROMPTS[1], *RESPONSES[1]]])
    with torch.no_grad():
        p = model(ids).logits[0, len(PROMPTS[1])].softmax(-1)
        q = model(ids[:, 1:]).logits[0, len(PROMPTS[1]) - 1].softmax(-1)
    assert float(found.kl[1, 0]) == pytest.approx(float((p * (p / q).log()).sum()), rel=1e-4)
    assert float(found.kl[1, 0]) > 1e-3


@pytest.mark.parametrize("side", ["before", "after"])
def test_padding_changes_nothing(side: str) -> None:
    pads = (4, 0) if side == "before" else (0, 5)
    given = batch()
    padded = TokenBatch(
        torch.nn.functional.pad(given.input_ids, pads, value=30),
        torch.nn.functional.pad(given.attention_mask, pads),
        torch.nn.functional.pad(given.response_mask, pads),
    )
    found = response_divergence(make_model(0), make_model(1), padded, given)
    for one, other in zip(found, compared()[0], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_logits_are_never_kept_for_all_positions() -> None:
    """What the graph saves between forward and backward has no tensor of positions × vocabulary."""
    kept: list[tuple[int, ...]] = []
    policy, reference = make_model(0), make_model(1)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(tuple(t.shape)) or t, lambda t: t):
        response_divergence(policy, reference, batch(), batch(), chunk_size=2)
    assert kept
    assert not [shape for shape in kept if shape[-1:] == (45,)]
