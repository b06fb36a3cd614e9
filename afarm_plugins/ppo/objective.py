"""The mathematics of PPO as pure functions of tensors.

Shapes: B rollouts, R response tokens, the longest of them; `mask` [B, R] is True at response tokens (the sampled
end-of-sequence token among them) and False at pads, which only ever follow. No value at a pad, not even a NaN, reaches
a result. Log-probabilities are natural logarithms.

Sources: Schulman et al. 2016 (GAE), Schulman et al. 2017 (the clipped objective), Dubois et al. 2023, appendix B
(the figures), Stiennon et al. 2020 (the reward with its KL penalty), Ziegler et al. 2019 (the adaptive coefficient).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


def masked(values: Tensor, mask: Tensor) -> Tensor:
    """`values` with zeros where `mask` is False, whatever stood there. Same shape."""
    return torch.where(mask, values, torch.zeros((), dtype=values.dtype, device=values.device))


def masked_mean_variance(values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and population variance (divided by the count) over the True entries of `mask`."""
    count = mask.sum().clamp(min=1)
    mean = masked(values, mask).sum() / count
    variance = masked((values - mean) ** 2, mask).sum() / count
    return mean, variance


def whiten(values: Tensor, mask: Tensor, *, shift_mean: bool = True) -> Tensor:
    """`values` [B, R] with variance 1 and mean 0 over `mask`; their own mean again unless `shift_mean`; 0 at pads."""
    mean, variance = masked_mean_variance(values, mask)
    whitened = (values - mean) * torch.rsqrt(variance + 1e-8)
    return masked(whitened if shift_mean else whitened + mean, mask)


def scale_rewards(rewards: Tensor, mask: Tensor) -> Tensor:
    """`rewards` [B, R] divided by their standard deviation over `mask`, so that returns have a usual size.

    A common factor leaves the optimum where it was. Subtracting a mean, or adding it back unscaled as
    `whiten(shift_mean=False)` does, pays a constant for each token: a hidden bonus or fine on length.
    """
    _, variance = masked_mean_variance(rewards, mask)
    return masked(rewards * torch.rsqrt(variance + 1e-8), mask)


def kl_penalised_rewards(scores: Tensor, kl: Tensor, mask: Tensor, kl_coef: float) -> Tensor:
    """Rewards [B, R]: the score [B] on the last response token, less `kl_coef` × `kl` at every token.

    `kl` is `KLEstimates.k1`. It is negative as often as the reference likes a token better, and only so is its mean
    the KL divergence: clamping it at zero would overstate and distort it.
    """
    last = mask.sum(dim=1, keepdim=True) - 1
    rewards = -kl_coef * masked(kl, mask)
    return rewards.scatter_add(1, last, scores.unsqueeze(1).to(rewards.dtype))


class KLEstimates(NamedTuple):
    """Three estimates of KL(π ‖ π_ref) from tokens drawn from π, each [B, R] and 0 at pads.

    With x = log π_ref − log π of the token: `k1` is −x, without bias but of either sign; `k2` is ½x², biased, small
    variance; `k3` is eˣ − 1 − x, without bias and never negative, but large where π is far below π_ref.
    """

    k1: Tensor
    k2: Tensor
    k3: Tensor


def kl_estimates(logprobs: Tensor, ref_logprobs: Tensor, mask: Tensor) -> KLEstimates:
    """The estimates at each token, from log-probabilities [B, R] of the tokens drawn (Schulman 2020)."""
    x = masked(ref_logprobs - logprobs, mask)
    return KLEstimates(-x, 0.5 * x**2, x.expm1() - x)


def next_kl_coef(kl_coef: float, kl: float, target: float, horizon: int, episodes: int) -> float:
    """The KL coefficient after a step of `episodes` responses whose mean KL was `kl`: up above `target`, down below.

    Proportional to the relative error, which is clipped at ±0.2 (Ziegler et al. 2019, section 2.2): within `horizon`
    responses the coefficient moves by about a fifth at most.
    """
    error = min(max(kl / target - 1, -0.2), 0.2)
    return kl_coef * (1 + error * episodes / horizon)


def generalised_advantages(
    rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """(advantages, returns), both [B, R] and 0 at pads, by generalised advantage estimation.

    values[:, t] is the value of the state before token t. An episode ends with its last response token, at whatever
    length: nothing follows it, so nothing is bootstrapped.
    """
    rewards, values = masked(rewards, mask), masked(values, mask)  # so that all is 0 from a row's end on
    advantages = torch.zeros_like(rewards)
    following_value = following_advantage = torch.zeros_like(rewards[:, 0])
    for t in reversed(range(rewards.shape[1])):
        delta = rewards[:, t] + gamma * following_value - values[:, t]
        following_advantage = delta + gamma * lam * following_advantage
        following_value = values[:, t]
        advantages[:, t] = following_advantage
    return advantages, advantages + values


class PolicyLoss(NamedTuple):
    """`loss` is a share of the minibatch's mean (see `tokens`); the rest are plain sums over tokens, without gradient.

    `ratio` is π/π_old, `approx_kl` ½(log ratio)², `clipped` counts the tokens whose clipped term was the worse one.
    """

    loss: Tensor
    ratio: Tensor
    approx_kl: Tensor
    clipped: Tensor


def policy_loss(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor, cliprange: float, tokens: Tensor
) -> PolicyLoss:
    """The clipped surrogate −min(ratio·A, clip(ratio, 1 ± cliprange)·A), summed over `mask` and divided by `tokens`.

    `tokens` counts the response tokens of the whole minibatch, of which these rows may be a part: the parts' losses
    then add up to the minibatch's mean, however it was cut.
    """
    log_ratio = masked(logprobs - old_logprobs, mask)
    ratio = log_ratio.exp()
    advantages = masked(advantages, mask)
    plain = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - cliprange, 1 + cliprange)
    loss = masked(torch.maximum(plain, clipped), mask).sum() / tokens
    with torch.no_grad():
        return PolicyLoss(loss, masked(ratio, mask).sum(), 0.5 * (log_ratio**2).sum(), ((clipped > plain) & mask).sum())


class ValueLoss(NamedTuple):
    """`loss` is a share of the minibatch's mean; `clipped` counts the tokens whose clipped term was the worse one."""

    loss: Tensor
    clipped: Tensor


def value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, mask: Tensor, cliprange_value: float, tokens: Tensor
) -> ValueLoss:
    """½·max((v − R)², (clip(v, v_old ± cliprange_value) − R)²), summed over `mask` and divided by `tokens`."""
    error = masked(values - returns, mask)
    near = torch.maximum(torch.minimum(values, old_values + cliprange_value), old_values - cliprange_value)
    clipped_error = masked(near - returns, mask)
    loss = 0.5 * torch.maximum(error**2, clipped_error**2).sum() / tokens
    with torch.no_grad():
        return ValueLoss(loss, (clipped_error**2 > error**2).sum())
