"""The mathematics of PPO alone against numbers worked by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import tensor

from afarm.backend import whiten
from afarm_plugins.ppo import objective


def test_scaling_leaves_pads_out() -> None:
    # The four response values 1, 2, 3, 6 have mean 3 and population variance (4 + 1 + 0 + 9) / 4 = 3.5.
    mask = tensor([[True, True, True], [True, False, False]])
    values = torch.where(mask, tensor([[1.0, 2.0, 3.0], [6.0, 0.0, 0.0]]), float("nan"))
    s = math.sqrt(3.5)
    torch.testing.assert_close(objective.scale_rewards(values, mask), tensor([[1 / s, 2 / s, 3 / s], [6 / s, 0, 0]]))


def test_scaled_rewards_keep_the_order_of_returns_where_whitened_ones_need_not() -> None:
    # A long response of score 2 beats a short one of score 1.9 by a little. Scaling cannot turn that round;
    # adding the mean back unscaled pays each token of the long one a constant and does.
    rewards = torch.zeros(2, 8)
    rewards[0, 7], rewards[1, 0] = 2.0, 1.9
    mask = torch.zeros(2, 8, dtype=torch.bool)
    mask[0, :], mask[1, 0] = True, True
    scaled = objective.scale_rewards(rewards, mask).sum(1)
    whitened = whiten(rewards, mask, shift_mean=False).sum(1)
    assert scaled[0] > scaled[1]
    assert whitened[0] < whitened[1]


def test_the_adaptive_coefficient_matches_numbers_worked_by_hand() -> None:
    # Target 6, horizon 1000, 100 responses a step. KL 6.6: error 0.1, so 0.5·(1 + 0.1·0.1) = 0.505.
    # KL 12 and 60: error clipped at 0.2, so 0.5·1.02 = 0.51. KL 0 and −1: clipped at −0.2, so 0.5·0.98 = 0.49.
    def after(kl: float) -> float:
        return objective.next_kl_coef(0.5, kl, target=6.0, horizon=1000, episodes=100)

    assert [after(kl) for kl in (6.0, 6.6, 12.0, 60.0, 0.0, -1.0)] == pytest.approx(
        [0.5, 0.505, 0.51, 0.51, 0.49, 0.49]
    )
