"""The mathematics of Quark as pure functions of tensors (Lu et al. 2022, section 2)."""

from __future__ import annotations

import torch
from torch import Tensor


def quantile_bins(scores: Tensor, num_quantiles: int) -> Tensor:
    """The quantile [N] of each of `scores` [N], from 0 (the lowest) to num_quantiles − 1.

    With n scores of which m are at most as high as this one, it is ⌈m · num_quantiles / n⌉ − 1. Without ties that cuts
    the sorted scores into pieces of equal size. Equal scores share the best of the quantiles that they would spread
    over, whatever order they come in: the best quantile always holds all of the highest score, and everything where
    the scores are all the same. With fewer scores than quantiles some stay empty, never the best.
    """
    count = len(scores)
    at_most = torch.searchsorted(scores.sort().values, scores, right=True)
    return (at_most * num_quantiles + count - 1) // count - 1


def quark_loss(logprobs: Tensor, kl: Tensor, entropy: Tensor, kl_coef: float, entropy_coef: float) -> Tensor:
    """−log π + kl_coef · KL − entropy_coef · entropy, summed. All [B, R], and 0 at pads."""
    return (-logprobs + kl_coef * kl - entropy_coef * entropy).sum()
