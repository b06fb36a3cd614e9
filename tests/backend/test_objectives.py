"""Objectives against numbers worked by hand, and with pads that would show if they counted."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, tensor

from afarm.backend import clipped_policy_loss, kl_estimates

NAN = float("nan")
MASK = tensor([[True, True, True], [True, False, False]])
"""Two responses, of three tokens and of one."""


def spoil(values: Tensor, mask: Tensor = MASK) -> Tensor:
    """`values` with NaN at the pads: whatever lets a pad in turns NaN."""
    return torch.where(mask, values, torch.tensor(NAN))


def test_kl_estimates_match_numbers_worked_by_hand() -> None:
    # π = 0.2, 0.5, 0.4 of the tokens drawn where π_ref = 0.4, 0.25, 0.4: the ratio r = π_ref / π is 2, 1/2, 1.
    #   k1 = −log r;  k2 = ½ log² r;  k3 = r − 1 − log r
    logprobs = spoil(tensor([[0.2, 0.5, 0.4], [0.2, 1.0, 1.0]]).log())
    reference = spoil(tensor([[0.4, 0.25, 0.4], [0.4, 1.0, 1.0]]).log())
    ln2 = math.log(2)
    k1, k2, k3 = kl_estimates(logprobs, reference, MASK)
    torch.testing.assert_close(k1, tensor([[-ln2, ln2, 0.0], [-ln2, 0.0, 0.0]]))
    torch.testing.assert_close(k2, tensor([[ln2**2 / 2, ln2**2 / 2, 0.0], [ln2**2 / 2, 0.0, 0.0]]))
    torch.testing.assert_close(k3, tensor([[1 - ln2, ln2 - 0.5, 0.0], [1 - ln2, 0.0, 0.0]]))


def test_the_means_of_k1_and_k3_are_the_divergence_and_a_clamped_one_is_more() -> None:
    policy, reference = tensor([[0.7, 0.2, 0.1]]), tensor([[0.3, 0.3, 0.4]])
    divergence = float((policy * (policy / reference).log()).sum())
    every = torch.ones(1, 3, dtype=torch.bool)
    k1, k2, k3 = kl_estimates(policy.log(), reference.log(), every)
    assert float((policy * k1).sum()) == pytest.approx(divergence, abs=1e-6)
    assert float((policy * k3).sum()) == pytest.approx(divergence, abs=1e-6)
    assert float((policy * k1.clamp(min=0)).sum()) > divergence + 0.1
    assert float((policy * k2).sum()) != pytest.approx(divergence, abs=1e-3)


def test_a_ratio_may_be_clipped_further_above_than_below() -> None:
    log_ratios = tensor([[1.5, 1.25, 0.5]]).log()
    ones, mask = torch.ones(1, 3), torch.ones(1, 3, dtype=torch.bool)
    for signs, high, expected in (
        (1.0, None, -1.2 - 1.2 - 0.5),
        (1.0, 0.3, -1.3 - 1.25 - 0.5),
        (-1.0, 0.3, 1.5 + 1.25 + 0.8),
    ):
        found = clipped_policy_loss(log_ratios, 0 * ones, signs * ones, mask, 0.2, tensor(1), high)
        assert found.loss.item() == pytest.approx(expected)


def test_clipped_policy_loss_matches_numbers_worked_by_hand() -> None:
    # Ratios 1.5, 0.5, 1.1 with advantages 2, −1, −3, and 0.5 with 4; clip 0.2.
    #   −min(3, 2.4) = −2.4 (clipped);  −min(−0.5, −0.8) = 0.8 (clipped);  −min(−3.3, −3.3) = 3.3;
    #   −min(2, 3.2) = −2 (the plain term is the worse: not clipped, so a lost good token still learns).
    old = spoil(tensor([[-1.0, -2.0, -0.5], [-3.0, 0.0, 0.0]]))
    new = old + spoil(tensor([[1.5, 0.5, 1.1], [0.5, 1.0, 1.0]])).log()
    advantages = spoil(tensor([[2.0, -1.0, -3.0], [4.0, 0.0, 0.0]]))
    found = clipped_policy_loss(new, old, advantages, MASK, 0.2, tokens=tensor(4))
    torch.testing.assert_close(found.loss, tensor((-2.4 + 0.8 + 3.3 - 2.0) / 4))
    torch.testing.assert_close(found.ratio, tensor(1.5 + 0.5 + 1.1 + 0.5))
    squares = math.log(1.5) ** 2 + 2 * math.log(0.5) ** 2 + math.log(1.1) ** 2
    torch.testing.assert_close(found.approx_kl, tensor(0.5 * squares))
    assert found.clipped == 2


def test_no_gradient_reaches_a_pad_or_is_spoilt_by_one() -> None:
    old = spoil(tensor([[-1.0, -2.0, -0.5], [-3.0, 0.0, 0.0]]))
    new = torch.full((2, 3), -1.0, requires_grad=True)
    clipped_policy_loss(new, old, old, MASK, 0.2, tensor(4)).loss.backward()
    assert new.grad is not None
    assert torch.isfinite(new.grad).all()
    assert (new.grad[~MASK] == 0).all()
    assert (new.grad[MASK] != 0).any()


@pytest.mark.parametrize("rows", [[[0], [1]], [[0, 1]], [[1], [0]]])
def test_the_parts_of_a_minibatch_add_up_to_its_mean(rows: list[list[int]]) -> None:
    new, old, advantages = torch.randn(3, 2, 3, generator=torch.Generator().manual_seed(1)).unbind()
    plain = -torch.minimum((new - old).exp() * advantages, (new - old).exp().clamp(0.8, 1.2) * advantages)[MASK].mean()
    parts = [clipped_policy_loss(new[r], old[r], advantages[r], MASK[r], 0.2, tokens=MASK.sum()).loss for r in rows]
    torch.testing.assert_close(torch.stack(parts).sum(), plain)
