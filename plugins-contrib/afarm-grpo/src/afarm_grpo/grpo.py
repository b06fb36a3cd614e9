"""Group relative policy optimisation and its variants, read from top to bottom.

A step: sample `num_generations` responses to each prompt; score them; a response's advantage is its reward less its
group's; then `num_iterations` passes of the clipped update. `train_grpo` is that loop. What the variants change is in
`group_advantages`, `token_weights` and `token_losses`; `docs/methods/grpo.md` has papers and formulas.

Shapes: B responses in a rollout, R tokens in the longest, m response tokens in a chunk. Tensors [B, R] are 0 at pads.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
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
    fall_back,
    kl_estimates,
    micro_batches,
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
    states_before,
    steps_left,
    token_logprobs,
    watch_kl,
)
from afarm_grpo import GRPOConfig


def train_grpo(config: GRPOConfig, inputs: MethodInputs, context: TrainContext) -> CheckpointPolicy:
    """Train a copy of `inputs.start`, and return the policy of the best or the last checkpoint."""
    training = start_training(config, inputs, context)
    try:
        done, _ = resume_training(training)
        for step in steps_left(training, done):
            # Sample B responses, n to each prompt, with their rewards [B]; read log-probabilities [B, R]
            samples, rewards, metrics = sample_groups(training, step)
            mask = response_mask(samples, context.backend.device)
            logprobs = sampled_logprobs(training, samples)
            reference = read_logprobs(training, training.start, samples)
            kl = kl_estimates(logprobs, reference, mask).k1.sum(1)
            watch_kl(training, step, float(kl.mean()))
            if step > done:  # the policy of the step before has drawn sound samples: only now is it saved
                save_if_due(training, step, kl=training.kl)
            if step == config.total_steps:
                break

            # Compare each response with the others to its prompt
            if config.kl_in == "reward":
                rewards = rewards - config.kl_coef * kl
            advantages = group_advantages(config, rewards).unsqueeze(1) * mask
            learned, owners = learned_tokens(config, samples, mask)

            # Learn: `totals` are sums over the passes' minibatches
            rate, totals, norms = begin_update(training, step), defaultdict[str, float](float), list[float]()
            for iteration in range(config.num_iterations):
                for rows in minibatches(training, step, iteration, len(samples)):
                    sums, weights = defaultdict[str, Any](float), token_weights(config, learned, rows)
                    tensors = logprobs, reference, advantages, weights, owners
                    add_gradients(training, samples, rows, partial(token_losses, config, sums), *tensors)
                    norms.append(optimizer_step(training, step))
                    for name, total in all_reduce_by_name(sums).items():
                        totals[name] += float(total)

            metrics |= {name: total / len(norms) for name, total in totals.items()}
            metrics |= {"objective/kl": float(kl.mean()), "objective/entropy": -float(logprobs.sum(1).mean())}
            metrics |= {
                "objective/length": float(mask.sum(1).float().mean()),
                "val/num_eos_tokens": sum(s.finish_reason == "stop" for s in samples),
            }
            context.log_metrics(step + 1, {**metrics, "policy/grad_norm": sum(norms) / len(norms), "lr": rate})
    except Diverged as error:
        fall_back(training, error)
    return chosen_policy(training)


def sample_groups(training: Training, step: int) -> tuple[list[Sample], Tensor, dict[str, float]]:
    """Sample the B responses of a step, those to one prompt in a row: (samples, rewards [B], metrics).

    Groups with equal rewards are replaced by others' from up to `dynamic_sampling` further rollouts; if these do not
    suffice, some stay. The rollout after the last step only measures the policy, and its rewards are 0.
    """
    config, n = training.config, training.config.num_generations
    device, size = training.context.backend.device, config.rollout_batch_size
    if step == config.total_steps:
        return rollout(training, step)[1], torch.zeros(size, device=device), {}
    reward_of = score if config.reward == "reward_model" else ask_judge
    told_apart, equal, rollouts = list[tuple[Sample, float]](), list[tuple[Sample, float]](), 0
    while len(told_apart) < size and rollouts <= config.dynamic_sampling:
        # Steps end at total_steps, so that numbers above it are other draws, of other prompts
        prompts, samples = rollout(training, step + rollouts * (config.total_steps + 1))
        scored = [
            (sample, value - overlong_penalty(config, len(sample.token_ids)))
            for sample, value in zip(samples, reward_of(training, prompts, samples), strict=True)
        ]
        for first in range(0, size, n):
            group = scored[first : first + n]
            marks = [reward for _, reward in group if not math.isnan(reward)]
            differ = marks and not math.isclose(max(marks), min(marks), abs_tol=1e-6)
            (told_apart if differ else equal).extend(group)
        rollouts += 1
    rewards = torch.tensor([reward for _, reward in [*told_apart, *equal]], device=device)
    known = rewards[~rewards.isnan()]
    if config.reward == "reward_model" and not torch.isfinite(rewards).all():
        raise Diverged(config, step + 1, "a reward is not a finite number")
    metrics = {  # of all that was sampled
        "objective/scores": float(known.mean()) if len(known) else 0.0,
        "objective/scores_std": float(known.std()) if len(known) > 1 else 0.0,
        "objective/unjudged": len(rewards) - len(known),
        "frac_reward_zero_std": len(equal) / len(rewards),
        "dynamic_sampling/rollouts": rollouts,
        "dynamic_sampling/equal_groups": max(0, size - len(told_apart)) // n,
    }
    return [sample for sample, _ in [*told_apart, *equal]][:size], rewards[:size], metrics


def ask_judge(training: Training, prompts: Sequence[int], samples: Sequence[Sample]) -> list[float]:
    """Have the judge rate B samples, or rank each group. Returns NaN where its answer cannot be read."""
    config, judge, n = training.config, training.inputs.judge, training.config.num_generations
    assert judge is not None  # named in `needs`
    tasks, texts = [training.prompts[number] for number in prompts], [sample.text for sample in samples]
    if config.reward == "rating":
        marks = judge.rate(tasks, texts, rubric=config.rubric)
    else:
        groups = [texts[first : first + n] for first in range(0, len(texts), n)]
        ranked = judge.rank(tasks[::n], groups, rubric=config.rubric)
        marks = [-place if places else None for places in ranked for place in places or [0.0] * n]
    return [math.nan if mark is None else mark for mark in marks]


def overlong_penalty(config: GRPOConfig, length: int) -> float:
    """Compute what DAPO takes off the reward of a response of `length` tokens (Yu et al. 2025, eq. 13)."""
    last = config.overlong_share * config.response_length
    return config.overlong_penalty * max(0.0, 1 - (config.response_length - length) / last) if last else 0.0


def group_advantages(config: GRPOConfig, rewards: Tensor) -> Tensor:
    """Compute advantages [B] of `rewards` [B], `num_generations` in a row to each prompt.

    A response whose reward is NaN is left out: its advantage is 0.
    """
    groups = rewards.view(-1, config.num_generations)
    known = ~groups.isnan()
    count = known.sum(1, keepdim=True)
    relative = (groups - groups.nanmean(1, keepdim=True)).nan_to_num()
    if config.scale_rewards == "group":
        std = ((relative**2).sum(1, keepdim=True) / (count - 1).clamp(min=1)).sqrt()
        relative = relative / (std + 1e-4)
    elif config.scale_rewards == "batch":
        relative = relative / (groups[known].std() + 1e-4)
    if config.baseline == "leave_one_out":  # the same as the reward less the mean of the others
        relative = relative * count / (count - 1).clamp(min=1)
    return relative.view(-1)


def learned_tokens(config: GRPOConfig, samples: Sequence[Sample], mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mask of the tokens learned from, and the number of each one's response, both [B, R]."""
    owners = torch.arange(len(samples), device=mask.device).unsqueeze(1) * mask
    ended = torch.tensor([sample.finish_reason != "length" for sample in samples], device=mask.device)
    return mask & ended.unsqueeze(1) if config.mask_truncated_completions else mask, owners


def token_weights(config: GRPOConfig, mask: Tensor, rows: Sequence[int]) -> Tensor:
    """Compute the weight [B, R] that a token has in the loss of the minibatch of `rows`."""
    if config.loss_type == "grpo":
        return mask / mask.sum(1, keepdim=True).clamp(min=1) / len(rows)
    if config.loss_type == "dr_grpo":
        return mask / (len(rows) * config.response_length)
    return mask / mask[rows].sum().clamp(min=1)


def token_losses(
    config: GRPOConfig,
    sums: defaultdict[str, Any],
    logprobs: Tensor,
    old: Tensor,
    reference: Tensor,
    advantages: Tensor,
    weights: Tensor,
    owners: Tensor,
) -> Tensor:
    """Compute the share of m response tokens in a minibatch's loss. Adds to `sums`, for metrics.

    All tensors are [m]: log-probabilities, advantages, the weight of each token, and the number of its response, whose
    tokens are all there unless each token has a ratio of its own.
    """
    log_ratio = logprobs - old
    if config.importance_sampling_level != "token":
        reduce = "mean" if config.importance_sampling_level == "sequence" else "sum"
        whole = log_ratio.new_zeros(int(owners.max()) + 1)
        log_ratio = whole.scatter_reduce(0, owners, log_ratio, reduce, include_self=False)[owners]
    ratio, high = log_ratio.exp(), 1 + (config.epsilon if config.epsilon_high is None else config.epsilon_high)
    if config.loss_type == "cispo":
        loss, clipped = -ratio.clamp(max=high).detach() * advantages * logprobs, ratio > high
    else:
        plain, limited = -advantages * ratio, -advantages * ratio.clamp(1 - config.epsilon, high)
        loss, clipped = torch.maximum(plain, limited), limited > plain
    kl = kl_estimates(logprobs, reference, weights > 0).k3 * (ratio if config.use_bias_correction_kl else 1)
    sums["loss/policy_avg"] += (weights * loss).detach().sum()
    sums["loss/kl_avg"] += (weights * kl).detach().sum()
    sums["policy/clipfrac_avg"] += (weights * clipped).sum()
    kl_coef = config.kl_coef if config.kl_in == "loss" else 0.0
    return (weights * (loss + kl_coef * kl)).sum()


def add_gradients(
    training: Training, samples: Sequence[Sample], rows: Sequence[int], loss_of: Callable[..., Tensor], *tensors: Tensor
) -> None:
    """Add the gradient of a minibatch's loss.

    If a ratio is of a whole response, its tokens are read together."""
    if training.config.importance_sampling_level == "token":
        backward_in_chunks(training, samples, rows, loss_of, *tensors)
        return
    model, temperature = training.policy.model, training.config.temperature
    for batch, flat in micro_batches(training, samples, rows, *tensors):
        hidden, targets = states_before(model, batch)
        loss_of(token_logprobs(model, hidden, targets, temperature=temperature), *flat).backward()
