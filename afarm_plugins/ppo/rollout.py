"""What a step collects and learns from."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from afarm.backend import clipped_policy_loss, clipped_value_loss, permutation
from afarm_plugins.ppo import PPOConfig

Tokens = Sequence[int]


@dataclass
class Rollout:
    """B prompts and their responses; `scores` is [B], the other tensors are [B, R] with R the longest response. `kl` is
    the mean KL of the responses to the start policy, in nats."""

    prompts: Sequence[Tokens]
    responses: Sequence[Tokens]
    scores: Tensor
    mask: Tensor
    logprobs: Tensor
    values: Tensor
    advantages: Tensor
    returns: Tensor
    kl: float = math.nan

    def part(self, rows: Sequence[int]) -> Rollout:
        """Some rows, without the columns in which all of them are pads."""
        responses = [self.responses[i] for i in rows]
        index, width = torch.tensor(rows, device=self.mask.device), max(map(len, responses))
        columns = (self.mask, self.logprobs, self.values, self.advantages, self.returns)
        mask, logprobs, values, advantages, returns = (column[index, :width] for column in columns)
        prompts = [self.prompts[i] for i in rows]
        return Rollout(prompts, responses, self.scores[index], mask, logprobs, values, advantages, returns)


def minibatches(rows: int, step: int, config: PPOConfig, seed: int) -> Iterator[list[int]]:
    """The rows of each optimiser step: every pass over the rollout in a random order of its own."""
    for epoch in range(config.num_ppo_epochs):
        order = permutation(rows, seed, "ppo", "minibatches", step, epoch)
        for start in range(0, rows, config.mini_batch_size):
            yield order[start : start + config.mini_batch_size]


@dataclass
class Losses:
    """The losses of some rows of a minibatch, of `tokens` response tokens in all, as functions of what is predicted.

    Predictions are flat, row after row. `sums` collects sums over tokens, for metrics.
    """

    rows: Rollout
    tokens: Tensor
    config: PPOConfig
    sums: dict[str, Tensor] = field(default_factory=dict)

    def policy(self, logprobs: Tensor, where: slice) -> Tensor:
        """The share of the tokens `where` in the minibatch's policy loss."""
        rows = self.rows
        old, advantages = (x[rows.mask][where] for x in (rows.logprobs, rows.advantages))
        everything = torch.ones_like(logprobs, dtype=torch.bool)
        found = clipped_policy_loss(logprobs, old, advantages, everything, self.config.cliprange, self.tokens)
        self.add("loss/policy_avg", found.loss.detach() * self.tokens)
        self.add("policy/approxkl_avg", found.approx_kl)
        self.add("policy/clipfrac_avg", found.clipped)
        self.add("val/ratio", found.ratio)
        return found.loss

    def value(self, values: Tensor) -> Tensor:
        """These rows' share in the minibatch's value loss, times its weight."""
        rows, config = self.rows, self.config
        old, returns = rows.values[rows.mask], rows.returns[rows.mask]
        everything = torch.ones_like(values, dtype=torch.bool)
        found = clipped_value_loss(values, old, returns, everything, config.cliprange_value, self.tokens)
        self.add("loss/value_avg", found.loss.detach() * self.tokens)
        self.add("val/clipfrac_avg", found.clipped)
        return config.vf_coef * found.loss

    def add(self, name: str, total: Tensor) -> None:
        self.sums[name] = self.sums[name] + total if name in self.sums else total
