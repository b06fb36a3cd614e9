"""Objectives against numbers worked by hand, and with pads that would show if they counted."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, tensor

from afarm.backend import (
    bradley_terry_loss,
    clipped_policy_loss,
    clipped_value_loss,
    generalised_advantages,
    kl_estimates,
    kl_penalised_rewards,
    preference_losses,
    whiten,
)

NAN = float("nan")
MASK = tensor([[True, True, True], [True, False, False]])
"""Two responses, of three tokens and of one."""


def spoil(values: Tensor, mask: Tensor = MASK) -> Tensor:
    """`values` with NaN at the pads: whatever lets a pad in turns NaN."""
    return torch.where(mask, values, torch.tensor(NAN))


def test_gae_matches_numbers_worked_by_hand() -> None:
    # γ = 0.9, λ = 0.5, rewards 1, 0, 2 and values 0.5, 1, 1.5:
    #   δ₂ = 2 − 1.5 = 0.5;  δ₁ = 0 + 0.9·1.5 − 1 = 0.35;  δ₀ = 1 + 0.9·1 − 0.5 = 1.4
    #   A₂ = 0.5;  A₁ = 0.35 + 0.45·0.5 = 0.575;  A₀ = 1.4 + 0.45·0.575 = 1.65875
    # The second response ends at its first token: A = 3 − 2 = 1.
    rewards = spoil(tensor([[1.0, 0.0, 2.0], [3.0, 0.0, 0.0]]))
    values = spoil(tensor([[0.5, 1.0, 1.5], [2.0, 0.0, 0.0]]))
    advantages, returns = generalised_advantages(rewards, values, MASK, gamma=0.9, lam=0.5)
    torch.testing.assert_close(advantages, tensor([[1.65875, 0.575, 0.5], [1.0, 0.0, 0.0]]))
    torch.testing.assert_close(returns, tensor([[2.15875, 1.575, 2.0], [3.0, 0.0, 0.0]]))


def test_gae_without_discount_is_the_return_less_the_value() -> None:
    rewards, values = tensor([[1.0, 2.0, 4.0]]), tensor([[0.3, -0.2, 5.0]])
    advantages, returns = generalised_advantages(rewards, values, torch.ones(1, 3, dtype=torch.bool), 1, 1)
    torch.testing.assert_close(returns, tensor([[7.0, 6.0, 4.0]]))
    torch.testing.assert_close(advantages, tensor([[6.7, 6.2, -1.0]]))


def test_the_score_lands_on_the_last_response_token_and_kl_is_not_clamped() -> None:
    logprobs = spoil(tensor([[-1.0, -2.0, -3.0], [-0.5, 0.0, 0.0]]))
    reference = spoil(tensor([[-1.5, -1.0, -3.0], [-1.5, 0.0, 0.0]]))
    kl = kl_estimates(logprobs, reference, MASK).k1
    torch.testing.assert_close(kl, tensor([[0.5, -1.0, 0.0], [1.0, 0.0, 0.0]]))
    rewards = kl_penalised_rewards(tensor([10.0, 20.0]), spoil(kl), MASK, kl_coef=0.1)
    torch.testing.assert_close(rewards, tensor([[-0.05, 0.1, 10.0], [19.9, 0.0, 0.0]]))


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


def test_whitening_leaves_pads_out() -> None:
    # The four response values 1, 2, 3, 6 have mean 3 and population variance (4 + 1 + 0 + 9) / 4 = 3.5.
    values = spoil(tensor([[1.0, 2.0, 3.0], [6.0, 0.0, 0.0]]))
    s = math.sqrt(3.5)
    torch.testing.assert_close(whiten(values, MASK), tensor([[-2 / s, -1 / s, 0], [3 / s, 0, 0]]))


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


def test_clipped_value_loss_matches_numbers_worked_by_hand() -> None:
    # Old value 1, clip 0.2. New 2, return 3: plain 1, clipped (1.2 − 3)² = 3.24 → 3.24 (clipped).
    # New 1.1, return 3: both 3.61. New 0, return 0.5: plain 0.25, clipped (0.8 − 0.5)² = 0.09 → 0.25.
    # New 5, return 1: plain 16 against 0.04 → 16.
    old = spoil(torch.ones(2, 3))
    new = spoil(tensor([[2.0, 1.1, 0.0], [5.0, 0.0, 0.0]]))
    returns = spoil(tensor([[3.0, 3.0, 0.5], [1.0, 0.0, 0.0]]))
    found = clipped_value_loss(new, old, returns, MASK, 0.2, tokens=tensor(4))
    torch.testing.assert_close(found.loss, tensor(0.5 * (3.24 + 3.61 + 0.25 + 16) / 4))
    assert found.clipped == 1


def test_no_gradient_reaches_a_pad_or_is_spoilt_by_one() -> None:
    old = spoil(tensor([[-1.0, -2.0, -0.5], [-3.0, 0.0, 0.0]]))
    new = torch.full((2, 3), -1.0, requires_grad=True)
    values = torch.full((2, 3), 0.1, requires_grad=True)
    loss = clipped_policy_loss(new, old, old, MASK, 0.2, tensor(4)).loss
    (loss + clipped_value_loss(values, old, old, MASK, 0.2, tensor(4)).loss).backward()
    for leaf in (new, values):
        assert leaf.grad is not None
        assert torch.isfinite(leaf.grad).all()
        assert (leaf.grad[~MASK] == 0).all()
        assert (leaf.grad[MASK] != 0).any()


@pytest.mark.parametrize("rows", [[[0], [1]], [[0, 1]], [[1], [0]]])
def test_the_parts_of_a_minibatch_add_up_to_its_mean(rows: list[list[int]]) -> None:
    new, old, advantages = torch.randn(3, 2, 3, generator=torch.Generator().manual_seed(1)).unbind()
    plain = -torch.minimum((new - old).exp() * advantages, (new - old).exp().clamp(0.8, 1.2) * advantages)[MASK].mean()
    parts = [clipped_policy_loss(new[r], old[r], advantages[r], MASK[r], 0.2, tokens=MASK.sum()).loss for r in rows]
    torch.testing.assert_close(torch.stack(parts).sum(), plain)


# ------------------------------------------------------------------------------------------------- on preferences


def test_preference_losses_by_hand() -> None:
    margins, sure = torch.tensor([0.0, 2.0, -1.0]), torch.ones(3)
    # β = 0.5: −log σ(0) = 0.693147, −log σ(1) = 0.313262, −log σ(−0.5) = 0.974077
    assert preference_losses(margins, sure, "sigmoid", 0.5).tolist() == pytest.approx([0.693147, 0.313262, 0.974077])
    # max(0, 1 − 0.5 margin)
    assert preference_losses(margins, sure, "hinge", 0.5).tolist() == pytest.approx([1.0, 0.0, 1.5])
    # (margin − 1 / (2 · 0.25))² = (margin − 2)²
    assert preference_losses(margins, sure, "ipo", 0.25).tolist() == pytest.approx([4.0, 0.0, 9.0])


def test_a_soft_label_and_smoothing_weigh_both_orders() -> None:
    margin, soft = torch.tensor([2.0]), torch.tensor([0.7])
    # 0.7 · 0.313262 + 0.3 · 1.313262
    assert preference_losses(margin, soft, "sigmoid", 0.5).item() == pytest.approx(0.613262)
    # smoothing by 0.1: 0.9 · 0.7 + 0.1 · 0.3 = 0.66 for the given order
    assert preference_losses(margin, soft, "sigmoid", 0.5, 0.1).item() == pytest.approx(
        0.66 * 0.313262 + 0.34 * 1.313262
    )
    assert preference_losses(margin, soft, "hinge", 0.5).item() == pytest.approx(0.3 * 2)
    assert preference_losses(margin, soft, "ipo", 0.25).item() == pytest.approx(0.3 * 16)


def test_the_loss_has_its_least_where_the_policy_gives_the_label() -> None:
    margin = torch.tensor([math.log(0.7 / 0.3) / 0.5], requires_grad=True)
    preference_losses(margin, torch.tensor([0.7]), "sigmoid", 0.5).backward()
    assert margin.grad is not None
    assert margin.grad.item() == pytest.approx(0, abs=1e-6)


def test_the_bradley_terry_loss_by_hand() -> None:
    first, second = torch.tensor([0.0, 1.0]), torch.tensor([2.0, 0.5])
    # σ(2) = 0.880797, σ(−0.5) = 0.377541; the second label is soft
    expected = (-math.log(0.880797) + -(0.3 * math.log(0.377541) + 0.7 * math.log(1 - 0.377541))) / 2
    assert bradley_terry_loss(first, second, torch.tensor([1.0, 0.3])).item() == pytest.approx(expected, abs=1e-5)
    assert bradley_terry_loss(second, first, torch.tensor([0.0, 0.7])).item() == pytest.approx(expected, abs=1e-5)


def test_the_bradley_terry_loss_of_several_members_by_hand() -> None:
    first, second = torch.zeros(2, 2), torch.tensor([[2.0, 0.0], [1.0, -1.0]])
    weights = torch.tensor([[0.5, 1.0], [2.0, 1.0]])
    # σ(2) = 0.880797, σ(1) = 0.731059; labels 1 and 0, the mean over pairs and members
    terms = 0.5 * -math.log(0.880797), math.log(2), 2 * -math.log(1 - 0.731059), -math.log(0.731059)
    found = bradley_terry_loss(first, second, torch.tensor([1.0, 0.0]), weights=weights)
    assert found.item() == pytest.approx(sum(terms) / 4, abs=1e-5)
