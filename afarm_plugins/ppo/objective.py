"""The mathematics that PPO alone needs; what it shares with other methods is in `afarm.backend`."""

from __future__ import annotations

import torch
from torch import Tensor

from afarm.backend import masked, masked_mean_variance


def scale_rewards(rewards: Tensor, mask: Tensor) -> Tensor:
    """Divide `rewards` [B, R] by their standard deviation over `mask`, so that returns have a usual size.

    A common factor leaves the optimum where it was. Subtracting a mean over `mask` would pay or charge a constant for
    each token: a hidden bonus or fine on length.
    """
    _, variance = masked_mean_variance(rewards, mask)
    return masked(rewards * torch.rsqrt(variance + 1e-8), mask)


def shift_rewards(rewards: Tensor, mask: Tensor, length: int) -> Tensor:
    """Standardise `rewards` [B, R] over B · `length` positions and add their mean back unscaled.

    As AlpacaFarm's released code does to a tensor [B, `length`] in which pads are positions like any other, with the
    reward 0. A constant is thus paid at every position. Behind the end of a response it is paid with the last token,
    which is the same for undiscounted returns: in all, every response is paid it `length` times, whatever its own
    length, and returns differ from scaled ones by a term in the token's position alone.
    """
    rewards = masked(rewards, mask)
    lengths = mask.sum(1)
    positions = len(rewards) * length
    mean = rewards.sum() / positions
    deviations = masked((rewards - mean) ** 2, mask).sum() + (positions - lengths.sum()) * mean**2
    scale = torch.rsqrt(deviations / positions + 1e-8)
    constant = mean * (1 - scale)
    is_last = torch.arange(rewards.shape[1], device=rewards.device) == (lengths - 1).unsqueeze(1)
    return masked(rewards * scale + constant, mask) + is_last * ((length - lengths) * constant).unsqueeze(1)


def next_kl_coef(kl_coef: float, kl: float, target: float, horizon: int, episodes: int) -> float:
    """KL coefficient after a step of `episodes` responses whose mean KL was `kl`: it rises above `target`.

    Proportional to the relative error, which is clipped at ±0.2 (Ziegler et al. 2019, section 2.2): within `horizon`
    responses the coefficient moves by about a fifth at most.
    """
    error = min(max(kl / target - 1, -0.2), 0.2)
    return kl_coef * (1 + error * episodes / horizon)
