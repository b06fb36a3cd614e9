"""Objectives of on-policy methods as pure functions: the clipped policy loss, and estimates of the KL.

Shapes: B responses, R tokens of the longest. `mask` [B, R] is True at response tokens (the sampled end-of-sequence
token among them) and False at pads, which only ever follow. No value at a pad, not even a NaN, reaches a result.
Log-probabilities are natural logarithms, divergences are in nats.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


def masked(values: Tensor, mask: Tensor) -> Tensor:
    """Replace `values` by zeros where `mask` is False, even NaN. Same shape."""
    return torch.where(mask, values, torch.zeros((), dtype=values.dtype, device=values.device))


class KLEstimates(NamedTuple):
    """Three estimates of KL(π ‖ π_ref) from tokens drawn from π, each [B, R] in nats and 0 at pads.

    With x = log π_ref − log π of the token: `k1` is −x, unbiased, of either sign; `k2` is ½x², biased, with a small
    variance; `k3` is eˣ − 1 − x, unbiased and never negative, but large where π is far below π_ref.
    """

    k1: Tensor
    k2: Tensor
    k3: Tensor


def kl_estimates(logprobs: Tensor, ref_logprobs: Tensor, mask: Tensor) -> KLEstimates:
    """Estimate the KL at each drawn token from log-probabilities [B, R], differentiably (Schulman 2020)."""
    x = masked(ref_logprobs - logprobs, mask)
    return KLEstimates(-x, 0.5 * x**2, x.expm1() - x)


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
