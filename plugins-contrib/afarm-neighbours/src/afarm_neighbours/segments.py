"""Segments rewarded by differences of a reward model's scores, in a clipped policy gradient.

Fine-grained RLHF (Wu et al. 2023, arXiv 2306.01693) rewards sentences, and Yin et al. 2025 (arXiv 2501.02790) segments
of a few tokens, by models made for that. Here segment k of a response gets what it adds to the score of the run's own
reward model, r_k = R(y_≤k) − R(y_<k), with R of nothing as 0: a response's rewards add up to its score. A token learns
from what comes from its segment on, G_k = Σ_{j≥k} γ^{j−k} r_j, less the mean of G_k over the rollout, since scores
depend on how far a response has come (2501.02790, section 2.3, fits a curve there).

Shapes: B responses in a rollout, R tokens in the longest, m response tokens in a chunk. Tensors [B, R] are 0 at pads.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from afarm import MethodInputs, Sample, TrainContext
from afarm.backend import (
    CheckpointPolicy,
    Diverged,
    Training,
    all_reduce_by_name,
    backward_in_chunks,
    begin_update,
    chosen_policy,
    clipped_policy_loss,
    fall_back,
    kl_estimates,
    minibatches,
    optimizer_step,
    read_logprobs,
    response_mask,
    resume_training,
    rollout,
    sampled_logprobs,
    save_if_due,
    score,
    start_training,
    steps_left,
    watch_kl,
)
from afarm_neighbours import SegmentConfig


def train_segments(config: SegmentConfig, inputs: MethodInputs, context: TrainContext) -> CheckpointPolicy:
    """Train a copy of `inputs.start`, and return the policy of the best or the last checkpoint."""
    training = start_training(config, inputs, context)
    piece_of = piece_reader(training.start)
    try:
        done, _ = resume_training(training)
        for step in steps_left(training, done):
            # Sample B responses; read log-probabilities [B, R]
            prompts, samples = rollout(training, step)
            mask = response_mask(samples, context.backend.device)
            logprobs = sampled_logprobs(training, samples)
            reference = read_logprobs(training, training.start, samples)
            kl = kl_estimates(logprobs, reference, mask).k1.sum(1)
            watch_kl(training, step, float(kl.mean()))
            if step > done:  # the policy of the step before has drawn sound samples: only now is it saved
                save_if_due(training, step, kl=training.kl)
            if step == config.total_steps:
                break

            # Score each prefix that ends a segment; a token's advantage is that of its segment
            ends = [segment_ends(config, piece_of, sample.token_ids) for sample in samples]
            rewards = segment_rewards(training, prompts, samples, ends)
            if not all(math.isfinite(reward) for row in rewards for reward in row):
                raise Diverged(config, step + 1, "a reward is not a finite number")
            advantages = spread(segment_advantages(config, rewards), ends, mask)

            # Learn: `totals` are sums over the passes' minibatches
            rate, totals, norms = begin_update(training, step), defaultdict[str, float](float), list[float]()
            for iteration in range(config.num_iterations):
                for rows in minibatches(training, step, iteration, len(samples)):
                    sums, tokens = defaultdict[str, Any](float), mask[rows].sum()
                    loss_of = partial(token_losses, config, sums, tokens)
                    backward_in_chunks(training, samples, rows, loss_of, logprobs, reference, advantages)
                    norms.append(optimizer_step(training, step))
                    for name, total in all_reduce_by_name(sums).items():
                        totals[name] += float(total)

            scores = torch.tensor([sum(row) for row in rewards])
            metrics = {name: total / len(norms) for name, total in totals.items()}
            metrics |= {
                "objective/scores": float(scores.mean()),
                "objective/segments": sum(map(len, ends)) / len(ends),
                "objective/worst_segment": sum(map(min, rewards)) / len(rewards),
                "objective/kl": float(kl.mean()),
                "objective/entropy": -float(logprobs.sum(1).mean()),
                "objective/length": float(mask.sum(1).float().mean()),
                "val/num_eos_tokens": sum(sample.finish_reason == "stop" for sample in samples),
            }
            context.log_metrics(step + 1, {**metrics, "policy/grad_norm": sum(norms) / len(norms), "lr": rate})
    except Diverged as error:
        fall_back(training, error)
    return chosen_policy(training)


def piece_reader(policy: CheckpointPolicy) -> Callable[[int], str]:
    """Return a function that gives the text of one token."""
    return cache(lambda token: str(policy.tokenizer.decode([token], skip_special_tokens=True)))


def segment_ends(config: SegmentConfig, piece_of: Callable[[int], str], tokens: Sequence[int]) -> list[int]:
    """List how many tokens a response has at the end of each of its segments, the last one included.

    A segment ends behind a token whose text ends in a character of `segment_at`. Segments shorter than `segment_tokens`
    are merged with the next one, at the end with the one before.
    """
    ends, last = list[int](), 0
    for count, token in enumerate(tokens, start=1):
        far_enough = min(count - last, len(tokens) - count) >= config.segment_tokens
        if far_enough and piece_of(token).rstrip(" ")[-1:] in {*config.segment_at}:
            ends.append(last := count)
    return [*ends, len(tokens)]


def segment_rewards(
    training: Training, prompts: Sequence[int], samples: Sequence[Sample], ends: Sequence[Sequence[int]]
) -> list[list[float]]:
    """Compute the reward of each segment: what it adds to the score of its response so far."""
    decode = training.start.tokenizer.decode
    owners, prefixes = list[int](), list[Sample]()
    for prompt, sample, counts in zip(prompts, samples, ends, strict=True):
        for count in counts[:-1]:
            tokens = sample.token_ids[:count]
            text = decode(list(tokens), skip_special_tokens=True)
            prefixes.append(replace(sample, text=text, token_ids=tokens, logprobs=None, finish_reason="length"))
        prefixes.append(sample)
        owners += [prompt] * len(counts)
    scores = iter(score(training, owners, prefixes))
    rewards = []
    for counts in ends:
        so_far = [next(scores) for _ in counts]
        rewards.append([new - old for new, old in zip(so_far, [0.0, *so_far], strict=False)])
    return rewards


def segment_advantages(config: SegmentConfig, rewards: Sequence[Sequence[float]]) -> list[list[float]]:
    """Compute the advantage of each segment: its return less its place's mean, over the deviation.

    Two returns at a place are the fewest to compare: a segment alone at its place has the advantage 0.
    """
    returns, places = list[list[float]](), defaultdict[int, list[float]](list)
    for row in rewards:
        own, after = list[float](), 0.0
        for reward in reversed(row):
            own.insert(0, after := reward + config.gamma * after)
        returns.append(own)
        for place, value in enumerate(own):
            places[place].append(value)
    means = {place: sum(values) / len(values) for place, values in places.items()}
    centred = [[value - means[place] for place, value in enumerate(row)] for row in returns]
    flat = [value for row in centred for value in row]
    deviation = (sum(value * value for value in flat) / len(flat)) ** 0.5
    return [[value / (deviation + 1e-4) for value in row] for row in centred]


def spread(values: Sequence[Sequence[float]], ends: Sequence[Sequence[int]], mask: Tensor) -> Tensor:
    """Give each token of B responses the value of its segment: [B, R], 0 at pads."""
    table = torch.zeros(mask.shape, device=mask.device)
    for row, (own, counts) in enumerate(zip(values, ends, strict=True)):
        for value, begin, end in zip(own, [0, *counts], counts, strict=False):
            table[row, begin:end] = value
    return table


def token_losses(
    config: SegmentConfig,
    sums: defaultdict[str, Any],
    tokens: Tensor,
    logprobs: Tensor,
    old: Tensor,
    reference: Tensor,
    advantages: Tensor,
) -> Tensor:
    """Compute the share of m tokens in a minibatch's mean loss, tensors [m]. Adds to `sums`."""
    everywhere = torch.ones_like(advantages, dtype=torch.bool)
    policy = clipped_policy_loss(logprobs, old, advantages, everywhere, config.epsilon, tokens)
    ratio = (logprobs - old).exp()  # with it the gradient is that of KL(π ‖ start)
    kl = (ratio * kl_estimates(logprobs, reference, everywhere).k3).sum() / tokens
    sums["loss/policy_avg"] += policy.loss.detach()
    sums["loss/kl_avg"] += kl.detach()
    sums["policy/clipfrac_avg"] += policy.clipped / tokens
    return policy.loss + config.kl_coef * kl
