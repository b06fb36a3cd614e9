"""The mathematics that PPO alone needs; what it shares with other methods is in `afarm.backend`."""

from __future__ import annotations

import torch
from torch import Tensor

from afarm.backend import masked, masked_mean_variance


def scale_rewards(rewards: Tensor, mask: Tensor) -> Tensor:
    """Divide `rewards` [B, R] by their standard deviation over `mask`, so that returns have a usual size.

    A common factor leaves the optimum where it was. Subtracting a mean, or adding it back unscaled as
    `whiten(shift_mean=False)` does, pays a constant for each token: a hidden bonus or fine on length.
    """
    _, variance = masked_mean_variance(rewards, mask)
    return masked(rewards * torch.rsqrt(variance + 1e-8), mask)


def next_kl_coef(kl_coef: float, kl: float, target: float, horizon: int, episodes: int) -> float:
    """KL coefficient after a step of `episodes` responses whose mean KL was `kl`: it rises above `target`.

    Proportional to the relative error, which is clipped at ±0.2 (Ziegler et al. 2019, section 2.2): within `horizon`
    responses the coefficient moves by about a fifth at most.
    """
    error = min(max(kl / target - 1, -0.2), 0.2)
    return kl_coef * (1 + error * episodes / horizon)
