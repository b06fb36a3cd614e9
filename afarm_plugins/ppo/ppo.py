"""Proximal policy optimisation against a reward model, read from top to bottom.

A step: sample a response to each of `rollout_batch_size` prompts; score it; take the KL to the start policy off the
reward, token by token; estimate advantages with the value model; then `num_ppo_epochs` passes of the clipped update.
The loop around it (checkpoints, resuming, choosing, stopping) is `afarm.backend.PolicyGradientTrainer`'s.

As in the paper (Dubois et al. 2023, section 4 and appendix B), and unlike PPO elsewhere: advantages are standardised
over the whole rollout, not each minibatch; the value model starts from the reward model; the KL coefficient is fixed.

Not as in the paper or its reference implementation, and why:

- Pads enter no statistic, loss, value or KL, and each minibatch's loss is divided by its response tokens, so results
  depend neither on padding nor on how a minibatch is cut for memory. (There: no masks, statistics per device.)
- The KL of a token is not clamped at 0: clamped, its mean is no longer the KL divergence but something larger, so one
  `kl_coef` is a stronger penalty there than here. `kl_penalty=clamped` does it.
- Rewards are divided by their standard deviation over response tokens. The reference implementation standardises them
  over all positions, pads included, and adds the mean back: a constant at every position, in all the same for every
  length. `whiten_rewards=shift` does that.
- The reward model reads the tokens that were sampled, not text decoded and tokenised again.
- The learning rate rises from a first step above 0, so that no rollout is collected for nothing.
- What is kept is the checkpoint with the highest win rate on the validation split: the reward rises to the very end.

The value head starts at zero: the backbone knows what is good, the scale of returns is learned. Overlong prompts
are left out, since a cut prompt no longer asks for what is scored. Old log-probabilities come from the training
forward at collection, except in float32: elsewhere the sampler's cache and left padding round differently, and the
ratio must start at 1. Dropout is off throughout, for the same reason. The reference is the start policy
itself, since what is trained is a copy. Every draw is keyed by seed and step: resuming needs no generator state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from afarm import MethodInputs, Sample, TrainContext
from afarm.backend import (
    Chunk,
    KLEstimates,
    PolicyGradientTrainer,
    RolloutBatch,
    TokenBatch,
    clipped_policy_loss,
    clipped_value_loss,
    generalised_advantages,
    kl_estimates,
    kl_penalised_rewards,
    masked_mean_variance,
    of_chunks,
    response_mask,
    whiten,
    world_size,
)
from afarm_plugins.ppo import PPOConfig, objective
from afarm_plugins.ppo.networks import Learner, Losses, Networks, SeparateNetworks, SharedNetworks, start_value_model

T = TypeVar("T")


@dataclass
class ValuedRollouts(RolloutBatch):
    """A rollout with the values of the states before each token, and the returns from there, both [B, R]."""

    values: Tensor
    returns: Tensor


class PPOTrainer(PolicyGradientTrainer[ValuedRollouts]):
    """The four models of PPO (policy, reference, value, reward), and the two halves of a step."""

    config: PPOConfig
    networks: Networks

    def __init__(self, config: PPOConfig, inputs: MethodInputs, context: TrainContext):
        super().__init__(config, inputs, context)
        self.kl_coef = config.kl_coef

    def build_other_networks(self) -> Mapping[str, nn.Module]:
        if self.config.layout == "shared":
            self.networks = SharedNetworks(self.policy, self.config)
        else:
            self.networks = SeparateNetworks(self.policy, self.start.model, self.build_value_model(), self.config)
        return {} if self.networks.value is None else {"value": self.networks.value}

    def build_value_model(self) -> Any | None:
        """Build the value model of the separate layout. A subclass may return None: values are then 0."""
        assert self.inputs.reward_model is not None  # named in `needs`
        return start_value_model(self.start, self.inputs.reward_model, self.config)

    def peak_learning_rate(self, name: str) -> float:
        network, *path = name.split(".")
        is_head = network == "value" and (self.config.layout == "shared" or "score" in path)
        own = self.config.value_head_learning_rate if is_head else None
        return own or self.config.learning_rate

    # ------------------------------------------------------------------------------------------- collecting

    def collect(self, step: int) -> tuple[ValuedRollouts, dict[str, float]]:
        """Sample, score, and estimate advantages. Returns the rollout and its metrics."""
        instructions, samples = self.sample(step)
        mask = response_mask(samples, self.device)
        scores, logprobs, ref_logprobs, values = self.together(
            lambda: self.score(instructions, samples),
            lambda: self.sampled_logprobs(samples),
            lambda: self.read(self.ref_logprobs, samples),
            lambda: self.read_values(samples, mask),
        )
        scores = self.penalise_cut_off(scores, samples)
        kl = kl_estimates(logprobs, ref_logprobs, mask)
        self.require_near_start(step, scores, float(kl.k1.sum(1).mean()))
        rewards = self.shape_rewards(scores, self.charged(kl), mask)
        advantages, returns = self.estimate_advantages(rewards, values, mask)
        rollout = ValuedRollouts(samples, scores, mask, logprobs, ref_logprobs, advantages, values, returns)
        return rollout, self.rollout_metrics(rollout, kl)

    def read_values(self, samples: Sequence[Sample], mask: Tensor) -> Tensor:
        """The value [B, R] of the state before each response token; 0 without a value model."""
        if self.networks.value is None:
            return torch.zeros(mask.shape, device=self.device)
        return self.read(self.networks.values, samples)

    def penalise_cut_off(self, scores: Tensor, samples: Sequence[Sample]) -> Tensor:
        """Take `missing_eos_penalty` off the score [B] of each response that did not end by itself."""
        if self.config.missing_eos_penalty is None:
            return scores
        cut_off = torch.tensor([sample.finish_reason != "stop" for sample in samples], device=self.device)
        return scores - self.config.missing_eos_penalty * cut_off

    def require_near_start(self, step: int, scores: Tensor, kl: float) -> None:
        """Raise `Diverged` if a score or the KL (nats per response) is not finite, or the KL exceeds `max_kl`."""
        if not (torch.isfinite(scores).all() and math.isfinite(kl)):
            raise self.diverged(step, "a score or a log-probability is not a finite number")
        self.watch_kl(step, kl)

    def charged(self, kl: KLEstimates) -> Tensor:
        """The log ratios [B, R] that tokens are charged for, by `kl_penalty`."""
        return kl.k1.clamp(min=0) if self.config.kl_penalty == "clamped" else kl.k1

    def shape_rewards(self, scores: Tensor, kl: Tensor, mask: Tensor) -> Tensor:
        """Rewards [B, R]: the score [B] on the last token, less the KL penalty on each; scaled as configured."""
        rewards = kl_penalised_rewards(scores, kl, mask, self.kl_coef)
        if self.config.whiten_rewards == "scale":
            return objective.scale_rewards(rewards, mask)
        if self.config.whiten_rewards == "shift":
            return objective.shift_rewards(rewards, mask, self.config.response_length)
        return rewards

    def estimate_advantages(self, rewards: Tensor, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """(advantages, returns), both [B, R] and 0 at pads. Override for another estimate than GAE's.

        With `num_generations` n, rows n·i to n·i + n − 1 answer one prompt.
        """
        advantages, returns = generalised_advantages(rewards, values, mask, self.config.gamma, self.config.lam)
        if self.config.whiten_advantages == "rollout":
            advantages = whiten(advantages, mask)
        return advantages, returns

    def rollout_metrics(self, rollout: ValuedRollouts, kl: KLEstimates) -> dict[str, float]:
        """Metrics of what was sampled, before the update."""
        scores, mask = rollout.scores, rollout.mask
        non_score = -self.kl_coef * self.charged(kl).sum(1)
        metrics: dict[str, Tensor | float] = {
            "objective/kl": kl.k1.sum(1).mean(),
            "objective/kl_k2": kl.k2.sum(1).mean(),
            "objective/kl_k3": kl.k3.sum(1).mean(),
            "objective/kl_coef": self.kl_coef,
            "objective/entropy": -rollout.logprobs.sum(1).mean(),
            "objective/scores": scores.mean(),
            "objective/scores_std": scores.std(correction=0),
            "objective/non_score_reward": non_score.mean(),
            "objective/rlhf_reward": (scores + non_score).mean(),
            "objective/length": mask.sum(1).float().mean(),
            "val/num_eos_tokens": sum(sample.finish_reason == "stop" for sample in rollout.samples),
            "data/prompts_left_out": self.left_out,
        }
        if self.networks.value is not None:
            _, unexplained = masked_mean_variance(rollout.returns - rollout.values, mask)
            _, variance = masked_mean_variance(rollout.returns, mask)
            metrics["val/explained_variance"] = 1 - unexplained / variance.clamp(min=1e-8)
        return {name: float(value) for name, value in metrics.items()}

    def ref_logprobs(self, batch: TokenBatch) -> Tensor:
        return self.networks.ref_logprobs(batch)

    def together(self, *calls: Callable[[], T]) -> list[T]:
        """Results of `calls`, side by side if the networks allow it. Never if processes add up in between."""
        side_by_side = self.networks.independent and world_size() == 1
        return self.context.backend.together(*calls) if side_by_side else [call() for call in calls]

    # --------------------------------------------------------------------------------------------- learning

    def update(self, step: int, rollout: ValuedRollouts) -> dict[str, float]:
        """The passes over the rollout. Returns metrics, each the mean over all tokens trained on."""
        config = self.config
        if config.kl_controller == "adaptive" and self.kl is not None:  # from the next rollout on
            count = len(rollout.samples)
            self.kl_coef = objective.next_kl_coef(self.kl_coef, self.kl, config.kl_target, config.kl_horizon, count)
        passes = self.descend(step, self.minibatches(step, rollout), self.backward, self.moved_far)
        return {**passes.metrics(), "policy/skipped_minibatches": passes.skipped}

    def minibatches(self, step: int, rollout: ValuedRollouts) -> Iterator[ValuedRollouts]:
        """The part of the rollout that each optimiser step learns from: every pass in an order of its own."""
        for rows in self.shuffled(len(rollout.samples), step, self.config.num_ppo_epochs):
            minibatch = rollout.part(rows)
            if self.config.whiten_advantages == "minibatch":
                minibatch.advantages = whiten(minibatch.advantages, minibatch.mask)
            yield minibatch

    def moved_far(self, sums: Mapping[str, Tensor]) -> bool:
        """True once a minibatch is further than `target_approx_kl` nats per token from what sampled it."""
        target = self.config.target_approx_kl
        return target is not None and bool(sums["policy/approxkl_avg"] / sums["tokens"] > target)

    def learn(self, rows: ValuedRollouts, tokens: Tensor) -> Mapping[str, Tensor]:
        """Add the gradient of these rows' share in both losses of a minibatch of `tokens` response tokens."""
        calls = [partial(self.learn_with, learner, rows, tokens) for learner in self.networks.learners()]
        return {name: total for sums in self.together(*calls) for name, total in sums.items()}

    def learn_with(self, learner: Learner, rows: ValuedRollouts, tokens: Tensor) -> Mapping[str, Tensor]:
        """Add the gradient of what `learner` takes on. Returns sums over tokens."""
        sums: dict[str, Tensor] = {}
        for part, batch in self.micro_batches(rows):
            policy, value = (of_chunks(loss, part, tokens, sums) for loss in (self.policy_loss, self.value_loss))
            learner(batch, Losses(policy, value))
        return sums

    def policy_loss(self, logprobs: Tensor, chunk: Chunk) -> Tensor:
        """The clipped policy loss of a chunk, from its tokens' log-probabilities [m]."""
        old, advantages = chunk.flat(chunk.rows.logprobs), chunk.flat(chunk.rows.advantages)
        clipped = clipped_policy_loss(logprobs, old, advantages, chunk.mask, self.config.cliprange, chunk.tokens)
        chunk.add("loss/policy_avg", clipped.loss.detach() * chunk.tokens)
        chunk.add("policy/approxkl_avg", clipped.approx_kl)
        chunk.add("policy/clipfrac_avg", clipped.clipped)
        chunk.add("val/ratio", clipped.ratio)
        return clipped.loss

    def value_loss(self, values: Tensor, chunk: Chunk) -> Tensor:
        """The clipped value loss of a chunk, from its values [m], times `vf_coef`."""
        old, returns = chunk.flat(chunk.rows.values), chunk.flat(chunk.rows.returns)
        clipped = clipped_value_loss(values, old, returns, chunk.mask, self.config.cliprange_value, chunk.tokens)
        chunk.add("loss/value_avg", clipped.loss.detach() * chunk.tokens)
        chunk.add("val/clipfrac_avg", clipped.clipped)
        return self.config.vf_coef * clipped.loss

    # ------------------------------------------------------------------------------------------- going on

    def state(self) -> dict[str, Any]:
        return {"kl_coef": self.kl_coef}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.kl_coef = state["kl_coef"]
