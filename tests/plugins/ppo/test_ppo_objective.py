"""The mathematics of PPO alone against numbers worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import tensor

from afarm.backend import kl_estimates
from afarm_plugins.ppo import PPOConfig
from afarm_plugins.ppo.objectives import generalised_advantages
from afarm_plugins.ppo.ppo import next_kl_coef, scale_rewards, shape_rewards, shift_rewards


def test_scaling_leaves_pads_out() -> None:
    # The four response values 1, 2, 3, 6 have mean 3 and population variance (4 + 1 + 0 + 9) / 4 = 3.5.
    mask = tensor([[True, True, True], [True, False, False]])
    values = torch.where(mask, tensor([[1.0, 2.0, 3.0], [6.0, 0.0, 0.0]]), float("nan"))
    s = math.sqrt(3.5)
    torch.testing.assert_close(scale_rewards(values, mask), tensor([[1 / s, 2 / s, 3 / s], [6 / s, 0, 0]]))


LENGTHS = (10, 20, 40, 80, 160, 300)


def reference_returns(rewards: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Advantages and returns [B, 300] as the reference code has them: no mask, pads are positions, gamma = lam = 1."""
    whitened = (rewards - rewards.mean()) / np.sqrt(rewards.var() + 1e-8) + rewards.mean()
    advantages = np.zeros_like(rewards)
    for row in range(len(rewards)):
        following = 0.0
        for t in reversed(range(rewards.shape[1])):
            next_value = values[row, t + 1] if t + 1 < rewards.shape[1] else 0.0
            following = whitened[row, t] + next_value - values[row, t] + following
            advantages[row, t] = following
    return advantages, advantages + values


@pytest.mark.parametrize("score", [1.0, -1.0])
def test_shifted_rewards_total_the_same_for_every_length(score: float) -> None:
    # Equal scores, no KL: of 1,800 positions 6 hold ±1, so the mean is ±1/300 and every total is again ±1.
    mask = torch.arange(300) < tensor(LENGTHS).unsqueeze(1)
    config, no_kl = PPOConfig(whiten_rewards="shift", response_length=300), torch.zeros(6, 300)
    shifted = shape_rewards(config, 0.002, torch.full((6,), score), kl_estimates(no_kl, no_kl, mask), mask)
    torch.testing.assert_close(shifted.sum(1), torch.full((6,), score), rtol=0, atol=1e-4)
    assert not shifted[~mask].any()


def test_shifted_rewards_have_the_returns_of_the_reference_code_on_its_padded_tensor() -> None:
    generator = np.random.default_rng(0)
    lengths = np.array([1, 7, 40, 300])
    mask = np.arange(300) < lengths[:, None]
    rewards = np.where(mask, generator.normal(-0.01, 0.02, (4, 300)), 0.0)  # the KL penalty; pads have none there
    rewards[np.arange(4), lengths - 1] += generator.normal(0.5, 2.0, 4)
    values = generator.normal(size=(4, 300))  # at pads too, where ours are never read
    expected, expected_returns = reference_returns(rewards, values)
    given = tensor(np.where(mask, rewards, np.nan)), tensor(mask), tensor(values)
    shifted = shift_rewards(given[0], given[1], 300)
    advantages, returns = generalised_advantages(shifted, given[2], given[1], gamma=1.0, lam=1.0)
    np.testing.assert_allclose(advantages[given[1]], expected[mask], rtol=0, atol=1e-10)
    np.testing.assert_allclose(returns[given[1]], expected_returns[mask], rtol=0, atol=1e-10)


def test_shifted_rewards_do_not_depend_on_the_longest_response_of_a_rollout() -> None:
    rewards, mask = torch.rand(3, 5), torch.arange(5) < tensor([[2], [5], [3]])
    wider = torch.nn.functional.pad(rewards, (0, 4), value=float("nan")), torch.nn.functional.pad(mask, (0, 4))
    narrow = shift_rewards(rewards, mask, 20)
    torch.testing.assert_close(shift_rewards(*wider, 20)[:, :5], narrow)


def test_shifting_is_refused_for_discounted_returns() -> None:
    with pytest.raises(ValidationError, match="whiten_rewards=shift is known for gamma=1 and lam=1 only"):
        PPOConfig(whiten_rewards="shift", lam=0.95)


def test_the_adaptive_coefficient_matches_numbers_worked_by_hand() -> None:
    # Target 6, horizon 1000, 100 responses a step. KL 6.6: error 0.1, so 0.5·(1 + 0.1·0.1) = 0.505.
    # KL 12 and 60: error clipped at 0.2, so 0.5·1.02 = 0.51. KL 0 and −1: clipped at −0.2, so 0.5·0.98 = 0.49.
    def after(kl: float) -> float:
        return next_kl_coef(0.5, kl, target=6.0, horizon=1000, episodes=100)

    assert [after(kl) for kl in (6.0, 6.6, 12.0, 60.0, 0.0, -1.0)] == pytest.approx(
        [0.5, 0.505, 0.51, 0.51, 0.49, 0.49]
    )
