"""Objectives as pure functions of tensors: advantages, KL estimates, on-policy and preference losses.

Shapes: B responses, R tokens of the longest. `mask` [B, R] is True at response tokens (the sampled end-of-sequence
token among them) and False at pads, which only ever follow. No value at a pad, not even a NaN, reaches a result.
Log-probabilities are natural logarithms, divergences are in nats.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

# ------------------------------------------------------------------------------------------------------ masked means


def masked(values: Tensor, mask: Tensor) -> Tensor:
    """Replace `values` by zeros where `mask` is False, even NaN. Same shape."""
    return torch.where(mask, values, torch.zeros((), dtype=values.dtype, device=values.device))


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


# ---------------------------------------------------------------------------------------------- on-policy objectives


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


class PolicyLoss(NamedTuple):
    """A share of the minibatch's mean `loss`; the other fields are sums over tokens, without gradient.

    `ratio` is π/π_old, `approx_kl` ½(log ratio)², `clipped` counts the tokens whose clipped term was the worse one.
    """

    loss: Tensor
    ratio: Tensor
    approx_kl: Tensor
    clipped: Tensor


def clipped_policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    cliprange: float,
    tokens: Tensor,
    cliprange_high: float | None = None,
) -> PolicyLoss:
    """Clipped surrogate −min(ratio·A, clip(ratio, 1 ± cliprange)·A) of PPO (Schulman et al. 2017, eq. 7).

    Summed over `mask` and divided by `tokens`, the response tokens of the whole minibatch: the losses of its parts add
    up to its mean, however it was cut.

    Args:
        logprobs: of the policy that learns, [B, R] or flat; the other tensors have the same shape.
        old_logprobs: of the policy that sampled.
        advantages: A.
        mask: True at response tokens.
        cliprange: how far the ratio may move from 1.
        tokens: a scalar tensor.
        cliprange_high: how far it may move above 1, if further than below (Yu et al. 2025).
    """
    log_ratio = masked(logprobs - old_logprobs, mask)
    ratio = log_ratio.exp()
    advantages = masked(advantages, mask)
    plain = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - cliprange, 1 + (cliprange if cliprange_high is None else cliprange_high))
    loss = masked(torch.maximum(plain, clipped), mask).sum() / tokens
    with torch.no_grad():
        return PolicyLoss(loss, masked(ratio, mask).sum(), 0.5 * (log_ratio**2).sum(), ((clipped > plain) & mask).sum())


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


# --------------------------------------------------------------------------------------------- losses on preferences

PREFERENCE_LOSSES: Mapping[str, Callable[[Tensor, float], Tensor]] = {
    "sigmoid": lambda margin, beta: -F.logsigmoid(beta * margin),
    "hinge": lambda margin, beta: torch.relu(1 - beta * margin),
    "ipo": lambda margin, beta: (margin - 1 / (2 * beta)) ** 2,
}
"""Losses [B] of surely ordered pairs, from margins [B] (chosen − rejected log ratio) and beta.

sigmoid: Rafailov et al. 2023, eq. 7. hinge: Zhao et al. 2023, on log ratios. ipo: Azar et al. 2023, eq. 17.
"""


def preference_losses(
    margins: Tensor, p_chosen: Tensor, loss_type: str, beta: float, label_smoothing: float = 0.0
) -> Tensor:
    """Loss [B] of DPO and its relatives, with labels that may be soft.

    The expected loss over both orders, where `p_chosen` [B] is the probability that the chosen output is better; for
    sigmoid, the cross-entropy of σ(beta · margin) against it. `label_smoothing` ε first turns p into (1 − ε)·p +
    ε·(1 − p). `loss_type` is sigmoid, hinge or ipo. `margins` [B] are differences of summed log ratios, for ipo of
    per-token means.
    """
    p = p_chosen * (1 - 2 * label_smoothing) + label_smoothing
    loss = PREFERENCE_LOSSES[loss_type]
    return p * loss(margins, beta) + (1 - p) * loss(-margins, beta)


def bradley_terry_loss(
    reward_1: Tensor, reward_2: Tensor, p2: Tensor, pairs: float | None = None, weights: Tensor | None = None
) -> Tensor:
    """Cross-entropy (in nats) of σ(reward_2 − reward_1) against the label p2, summed over `pairs`.

    Rewards and `weights` are [B], or [B, K] for K members, whose losses are averaged; p2 is [B]. `pairs` is the number
    in the whole step, of which these may be a part (default: B). Source: Dubois et al. 2023, section 3.2.
    """
    margin = reward_2 - reward_1
    label = p2.view(-1, *[1] * (margin.dim() - 1)).expand_as(margin)
    loss = F.binary_cross_entropy_with_logits(margin, label, weight=weights, reduction="sum")
    return loss / ((pairs or len(p2)) * margin[:1].numel())
