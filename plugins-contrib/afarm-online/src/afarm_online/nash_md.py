"""Nash-MD (Munos et al. 2023): towards what is preferred to a mixture of the policy and its start.

Each response y of the policy π meets a response y' of the opponent, whose logits are (1 − β) those of π + β those of
the start π₀ (`mixture_coef`). With P(y ≻ y') from the annotator, the policy gradient is (section 7)

    E[∇ log π(y|x) · (P(y ≻ y') − ½ − τ log π(y|x)/π₀(y|x))],    τ = `kl_coef`

where ½ is a control variate. Under `kl_level=token` each token has only its own log ratio in that bracket.

Shapes: B responses of the policy in a rollout and as many of the opponent, R tokens in the longest, m in a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean

import torch
from torch import Tensor

from afarm import MethodInputs, TrainContext, TrainingError
from afarm.backend import (
    CheckpointPolicy,
    Diverged,
    Sampler,
    TorchEngine,
    TorchSampler,
    backward_in_chunks,
    begin_update,
    chosen_policy,
    fall_back,
    minibatches,
    optimizer_step,
    read_logprobs,
    response_mask,
    resume_training,
    rollout,
    sampled_logprobs,
    save_if_due,
    start_training,
    steps_left,
    watch_kl,
)
from afarm_online import NashMDConfig
from afarm_online.pairs import describe_samples, label_pairs


def train_nash_md(config: NashMDConfig, inputs: MethodInputs, context: TrainContext) -> CheckpointPolicy:
    """Train a copy of `inputs.start`, and return the policy of the best or the last checkpoint."""
    training = start_training(config, inputs, context)
    opponent = make_opponent(training.policy, training.start, config)
    try:
        done, _ = resume_training(training)
        for step in steps_left(training, done):
            # Sample B responses of the policy; log-probabilities [B, R] of it and of its start
            prompts, own = rollout(training, step)
            mask = response_mask(own, context.backend.device)
            logprobs = sampled_logprobs(training, own)
            log_ratios = logprobs - read_logprobs(training, training.start, own)
            kl = float(log_ratios.sum(1).mean())
            watch_kl(training, step, kl)
            if step > done:  # the policy of the step before has drawn sound samples: only now is it saved
                save_if_due(training, step, kl=training.kl)
            if step == config.total_steps:
                break

            # Pair each with a response of the opponent; P [B] is ½ for pairs that nobody could decide
            _, others = rollout(training, step, opponent, draws="opponent")
            samples = [sample for both in zip(own, others, strict=True) for sample in both]
            doubled = [number for number in prompts for _ in range(2)]
            pairs, metrics = label_pairs(training, step, doubled, samples, soft=True)
            preferred = torch.tensor([pair.p for pair in pairs], device=context.backend.device)

            # Learn: one pass, since the gradient is that of the policy that has sampled
            advantages = nash_advantages(config, preferred, log_ratios, mask)
            rate, norms = begin_update(training, step), list[float]()
            for rows in minibatches(training, step, 0, len(own)):
                backward_in_chunks(training, own, rows, partial(nash_loss, len(rows)), advantages)
                norms.append(optimizer_step(training, step))

            metrics |= describe_samples(own, logprobs.sum(1), kl)
            metrics["rewards/probabilities"] = fmean(pair.p for pair in pairs)
            metrics["loss/policy"] = float(nash_loss(len(own), logprobs, advantages))
            metrics["loss/score"] = float(((preferred - 0.5) * logprobs.sum(1)).mean())
            context.log_metrics(step + 1, {**metrics, "policy/grad_norm": fmean(norms), "lr": rate})
    except Diverged as error:
        fall_back(training, error)
    return chosen_policy(training)


def nash_advantages(config: NashMDConfig, preferred: Tensor, log_ratios: Tensor, mask: Tensor) -> Tensor:
    """Compute the factor of each ∇ log π: P − ½ less τ times the KL that the token answers for.

    `preferred` [B] are P(y ≻ y'), `log_ratios` [B, R] those of the policy to its start, 0 at pads. Returns [B, R], 0 at
    pads.
    """
    kl = log_ratios if config.kl_level == "token" else log_ratios.sum(1, keepdim=True)
    return (preferred.unsqueeze(1) - 0.5 - config.kl_coef * kl) * mask


def nash_loss(responses: int, logprobs: Tensor, advantages: Tensor) -> Tensor:
    """Compute the share of m tokens in a loss that is the mean over so many responses of sums over tokens."""
    return -(advantages * logprobs).sum() / responses


@dataclass(eq=False, repr=False)
class Opponent(CheckpointPolicy):
    """A policy that samples from the geometric mixture of its model, as it is now, and of `start`'s."""

    start: CheckpointPolicy | None = None
    share: float = 0.0

    def sampler(self) -> Sampler:
        sampler = super().sampler()
        assert isinstance(sampler, TorchSampler)  # by `make_opponent`
        assert self.start is not None
        return replace(sampler, mixed_with=(self.start.model, self.share))

    @contextmanager
    def ready_to_sample(self) -> Iterator[None]:
        assert self.start is not None
        with self.start.ready_to_sample(), super().ready_to_sample():
            yield


def make_opponent(policy: CheckpointPolicy, start: CheckpointPolicy, config: NashMDConfig) -> CheckpointPolicy:
    """Make the policy that the trained one is compared with: one of the two, or their mixture.

    Raises `TrainingError` if the engine that samples cannot mix two models.
    """
    share = config.mixture_coef
    if share in (0, 1):
        return start if share else policy
    if not isinstance(policy.backend.engine, TorchEngine):
        raise TrainingError(
            f"{config.section} samples from a mixture of two models, which only the engine torch can: --set "
            f"backend.sampler=torch, or --set {config.section}.mixture_coef=0 for self-play"
        )
    tokens = policy.control_tokens
    return Opponent(policy.model, policy.tokenizer, policy.template, policy.backend, tokens, start=start, share=share)
