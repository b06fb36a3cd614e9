"""PPO's own objectives as pure functions: rewards with a KL penalty, advantages, the value loss.

Shapes and masks are as in `afarm.backend.clipped_policy_loss`: [B, R], True at response tokens. No value at a pad, not
even a NaN, reaches a result.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from afarm.backend import masked


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean (a scalar) over the True entries of `mask`; 0 if there are none."""
    return masked(values, mask).sum() / mask.sum().clamp(min=1)


def masked_mean_variance(values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and population variance (divided by the count) over the True entries of `mask`."""
    mean = masked_mean(values, mask)
    return mean, masked_mean((values - mean) ** 2, mask)


def whiten(values: Tensor, mask: Tensor) -> Tensor:
    """Standardise `values` [B, R] over `mask` to mean 0 and variance 1."""
    mean, variance = masked_mean_variance(values, mask)
    return masked((values - mean) * torch.rsqrt(variance + 1e-8), mask)


def kl_penalised_rewards(scores: Tensor, kl: Tensor, mask: Tensor, kl_coef: float) -> Tensor:
    """Rewards [B, R]: the score [B] on the last response token, less `kl_coef` × `kl` at every token.

    `kl` is `KLEstimates.k1`, whose mean is the KL; clamped at zero it would overstate it. Source: Stiennon et al. 2020.
    """
    last = mask.sum(dim=1, keepdim=True) - 1
    rewards = -kl_coef * masked(kl, mask)
    return rewards.scatter_add(1, last, scores.unsqueeze(1).to(rewards.dtype))


def generalised_advantages(
    rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """Estimate (advantages, returns), both [B, R] and 0 at pads, by GAE (Schulman et al. 2016).

    values[:, t] is the value of the state before token t. An episode ends with its last response token, at whatever
    length: nothing is bootstrapped.
    """
    rewards, values = masked(rewards, mask), masked(values, mask)  # 0 from a row's end on
    advantages = torch.zeros_like(rewards)
    following_value = following_advantage = torch.zeros_like(rewards[:, 0])
    for t in reversed(range(rewards.shape[1])):
        delta = rewards[:, t] + gamma * following_value - values[:, t]
        following_advantage = delta + gamma * lam * following_advantage
        following_value = values[:, t]
        advantages[:, t] = following_advantage
    return advantages, advantages + values


class ValueLoss(NamedTuple):
    """A share of the minibatch's mean `loss`, and how many tokens had a worse clipped term (`clipped`)."""

    loss: Tensor
    clipped: Tensor


def clipped_value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, mask: Tensor, cliprange_value: float, tokens: Tensor
) -> ValueLoss:
    """Clipped value loss ½·max((v − R)², (clip(v, v_old ± cliprange_value) − R)²) of PPO.

    Summed over `mask` and divided by `tokens`.

    Args:
        values: v, of the value model that learns, [B, R] or flat; the other tensors have the same shape.
        old_values: v_old, of the value model when the responses were collected.
        returns: R.
        mask: True at response tokens.
        cliprange_value: how far a value may move from the old one.
        tokens: a scalar tensor; see `clipped_policy_loss`.
    """
    error = masked(values - returns, mask)
    near = torch.maximum(torch.minimum(values, old_values + cliprange_value), old_values - cliprange_value)
    clipped_error = masked(near - returns, mask)
    loss = 0.5 * torch.maximum(error**2, clipped_error**2).sum() / tokens
    with torch.no_grad():
        return ValueLoss(loss, (clipped_error**2 > error**2).sum())
