"""PPO's own objectives against numbers worked by hand, and with pads that would show if they counted."""

from __future__ import annotations

import math

import torch
from torch import Tensor, tensor

from afarm.backend import kl_estimates
from afarm_plugins.ppo.objectives import clipped_value_loss, generalised_advantages, kl_penalised_rewards, whiten

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


def test_whitening_leaves_pads_out() -> None:
    # The four response values 1, 2, 3, 6 have mean 3 and population variance (4 + 1 + 0 + 9) / 4 = 3.5.
    values = spoil(tensor([[1.0, 2.0, 3.0], [6.0, 0.0, 0.0]]))
    s = math.sqrt(3.5)
    torch.testing.assert_close(whiten(values, MASK), tensor([[-2 / s, -1 / s, 0], [3 / s, 0, 0]]))


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


def test_no_gradient_of_a_value_reaches_a_pad_or_is_spoilt_by_one() -> None:
    old = spoil(tensor([[-1.0, -2.0, -0.5], [-3.0, 0.0, 0.0]]))
    values = torch.full((2, 3), 0.1, requires_grad=True)
    clipped_value_loss(values, old, old, MASK, 0.2, tensor(4)).loss.backward()
    assert values.grad is not None
    assert torch.isfinite(values.grad).all()
    assert (values.grad[~MASK] == 0).all()
    assert (values.grad[MASK] != 0).any()
