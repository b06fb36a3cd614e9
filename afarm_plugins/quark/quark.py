"""Quark, "quantised reward conditioning": learn from the best of one's own samples by likelihood.

A step: sample a response to each of `rollout_batch_size` prompts; score it; sort the pool of responses into quantiles
by reward; then `num_epochs` passes that raise the likelihood of responses, with a penalty on the exact KL to the start
policy at each token (Lu et al. 2022; Dubois et al. 2023, appendix A). Deviations from both, and why:
`docs/methods/quark.md`.

With `variant=all` each prompt begins with the token of its response's quantile (<|reward_0|> is the lowest), and from
the second step on sampling asks for the best. Control tokens are left out of the KL, since the reference has none, and
are never sampled. The likelihood is over all tokens, so they become improbable by themselves.

Shapes: N responses in the pool; tensors [B, R] are of the responses of a batch and 0 at pads.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from afarm import MethodInputs, TrainContext
from afarm.backend import (
    CheckpointPolicy,
    Diverged,
    Training,
    all_reduce_sum,
    begin_update,
    chosen_policy,
    fall_back,
    join_and_pad,
    length_sorted_batches,
    minibatches,
    optimizer_step,
    prompt_order,
    require_checkpoint,
    resume_training,
    rollout,
    save_if_due,
    score,
    shard,
    start_training,
    trainable_copy,
    watch_kl,
    world_size,
)
from afarm_plugins.quark import QuarkConfig
from afarm_plugins.quark.divergence import response_divergence


class Rollout(NamedTuple):
    """A sampled response, the index of its prompt, and its reward."""

    prompt: int
    response: tuple[int, ...]
    score: float
    ended: bool


class TrainingExample(NamedTuple):
    """A response with the policy's prompt and the reference's."""

    prompt: Sequence[int]
    reference_prompt: Sequence[int]
    response: Sequence[int]


def train_quark(config: QuarkConfig, inputs: MethodInputs, context: TrainContext) -> CheckpointPolicy:
    """Train a copy of `inputs.start`. Returns the policy of the last or the best checkpoint.

    With control tokens it asks for the best quantile. If training diverges, it ends at the last checkpoint, or raises
    `TrainingError` naming the step if there is none. Raises `DataError` if no prompt is short enough, and
    `KeyboardInterrupt` once the context says to stop.
    """
    training, steered, unsteered = start_quark(config, inputs, context)
    best, total = config.num_quantiles - 1, config.total_steps
    try:
        done, state = resume_training(training)
        pool = [Rollout(*values) for values in state.get("pool", [])]
        for step in context.progress(range(done, total), config.method_name, total):
            # Sample responses, and score them behind prompts without control tokens
            prompts, samples = rollout(training, step, training.policy if step else unsteered)
            plain = training.start.prompt_ids([training.prompts[prompt] for prompt in prompts])
            read = [replace(sample, prompt_ids=tuple(ids)) for sample, ids in zip(samples, plain, strict=True)]
            scores: list[float] = []
            for _, rows in prompt_order(len(training.prompts), step, len(samples), context.seed, training.section):
                part = slice(len(scores), len(scores) + len(rows))  # of one pass over the prompts
                scores += score(training, prompts[part], read[part])
            if not all(math.isfinite(reward) for reward in scores):
                raise Diverged(config, step + 1, "a score is not a finite number")
            rollouts = [
                Rollout(prompt, sample.token_ids, reward, sample.finish_reason == "stop")
                for prompt, sample, reward in zip(prompts, samples, scores, strict=True)
            ]

            # Sort the pool into quantiles [N]
            pool = rollouts if config.pool == "reset" else pool + rollouts
            pooled = torch.tensor([response.score for response in pool], dtype=torch.float64)
            bins = quantile_bins(pooled, config.num_quantiles)
            metrics = pool_metrics(training, rollouts, pooled, bins)
            chosen = [row for row, quantile in enumerate(bins.tolist()) if config.variant == "all" or quantile == best]

            # Learn: `totals` are sums over the response tokens of all passes
            rate = begin_update(training, step)
            totals, norms = defaultdict[str, float](float), list[float]()
            for epoch in range(config.num_epochs):
                for rows in minibatches(training, step, epoch, len(chosen)):
                    learned = [chosen[row] for row in rows]
                    minibatch = [make_example(training, steered, pool[row], int(bins[row])) for row in learned]
                    sums = read_divergence(training, minibatch, learn=True)
                    norms.append(optimizer_step(training, step))
                    for name, value in sums.items():
                        totals[name] += float(value)

            # Measure the new policy, which is the one to be saved
            watch_kl(
                training, step, float(read_divergence(training, minibatch, learn=False)["loss/kl"]) / len(minibatch)
            )
            tokens, responses = totals.pop("tokens"), totals.pop("responses")
            metrics |= {name: value / tokens for name, value in totals.items()}
            metrics |= {
                "objective/kl": totals["loss/kl"] / responses,
                "quark/learned_from": responses / config.num_epochs,
            }
            metrics |= {"policy/grad_norm": sum(norms) / len(norms), "lr": rate}
            context.log_metrics(step + 1, {**metrics, "episode": (step + 1) * config.rollout_batch_size})
            save_if_due(
                training, step + 1, pool=list(map(tuple, pool)) if config.pool == "keep" else [], kl=training.kl
            )
    except Diverged as error:
        fall_back(training, error)
    return chosen_policy(training)


def start_quark(
    config: QuarkConfig, inputs: MethodInputs, context: TrainContext
) -> tuple[Training, list[CheckpointPolicy], CheckpointPolicy]:
    """Set up the models: (training, a policy for each quantile, one without control tokens).

    All have the same weights. The last quantile is the best: its policy is `training.policy`.
    """
    start = require_checkpoint(inputs.start, "quark")
    context.backend.seed(context.seed)  # adapters start from random numbers
    tokens = [f"<|reward_{i}|>" for i in range(config.num_quantiles)] if config.variant == "all" else []
    extended = start.copy_with_tokens(tokens) if tokens else start
    added = extended.tokenizer.convert_tokens_to_ids(list(extended.control_tokens))
    unsteered = trainable_copy(extended, config.lora, train_tokens=added)
    steered = [unsteered.controlled(token) for token in tokens] or [unsteered]
    return start_training(config, inputs, context, steered[-1], fused=False), steered, unsteered


# ------------------------------------------------------------------------------------------------------------ sampling


def quantile_bins(scores: Tensor, num_quantiles: int) -> Tensor:
    """Compute the quantile [N] of each of `scores` [N], from 0 (the lowest) to num_quantiles − 1.

    It is ⌈m · num_quantiles / n⌉ − 1, where m of the n scores are at most as high. Equal scores share the best quantile
    that they would spread over, so the best one has all of the highest score. With fewer scores than quantiles some are
    empty, never the best.
    """
    count = len(scores)
    at_most = torch.searchsorted(scores.sort().values, scores, right=True)
    return (at_most * num_quantiles + count - 1) // count - 1


def pool_metrics(training: Training, rollouts: Sequence[Rollout], pooled: Tensor, bins: Tensor) -> dict[str, float]:
    """Compute metrics of a step's samples, and of the pool's scores and quantiles, both [N]."""
    scores = torch.tensor([response.score for response in rollouts], dtype=torch.float64)
    return {
        "objective/scores": float(scores.mean()),
        "objective/scores_std": float(scores.std(correction=0)),
        "objective/length": sum(len(response.response) for response in rollouts) / len(rollouts),
        "val/num_eos_tokens": sum(response.ended for response in rollouts),
        "quark/pool": len(pooled),
        "data/prompts_left_out": len(training.inputs.unlabeled) - len(training.prompts),
        **{f"quark/quantile_{q}": float(pooled[bins == q].mean()) for q in bins.unique().tolist()},
    }


# ------------------------------------------------------------------------------------------------------------- learning


def make_example(
    training: Training, steered: Sequence[CheckpointPolicy], response: Rollout, quantile: int
) -> TrainingExample:
    """Put a response behind the prompt that asks for its quantile."""
    instructions = [training.prompts[response.prompt]]
    [plain] = training.start.prompt_ids(instructions)
    [prompt] = steered[min(quantile, len(steered) - 1)].prompt_ids(instructions)
    return TrainingExample(prompt, plain, response.response)


def read_divergence(training: Training, minibatch: Sequence[TrainingExample], *, learn: bool) -> dict[str, Tensor]:
    """Sum losses over the response tokens of a minibatch in all processes, and count the tokens.

    `learn` adds the gradient of this process's share of the mean loss; `optimizer_step` sums it over processes.
    """
    config, policy, device = training.config, training.policy, training.context.backend.device
    control_ids = policy.tokenizer.convert_tokens_to_ids(list(policy.control_tokens))
    tokens = sum(len(example.response) for example in minibatch)
    names = ("loss/lm", "loss/kl", "policy/entropy_avg")
    sums = torch.zeros(len(names), dtype=torch.float64, device=device)
    examples = shard(minibatch)
    lengths = [len(example.prompt) + len(example.response) for example in examples]
    batches = list(length_sorted_batches(lengths, config.per_device_train_batch_size))
    if training.context.backend.sharded:  # all processes must use the weights equally often
        passes = -(-len(minibatch[:: world_size()]) // config.per_device_train_batch_size)
        examples, batches = [*examples, minibatch[0]], batches + [[len(examples)]] * (passes - len(batches))
    for number, rows in enumerate(batches):
        counts = float(number * config.per_device_train_batch_size < len(lengths))
        micro = [examples[row] for row in rows]
        responses = [example.response for example in micro]
        with torch.set_grad_enabled(learn):
            divergence = response_divergence(
                policy.model,
                training.start.model,
                join_and_pad([x.prompt for x in micro], responses, policy.pad_id, device),
                join_and_pad([x.reference_prompt for x in micro], responses, policy.pad_id, device),
                left_out=control_ids,
            )
        if learn:
            (counts * quark_loss(*divergence, config.kl_coef, config.entropy_coef) / tokens).backward()
        logprobs, kl, entropy = divergence
        sums += counts * torch.stack([-logprobs.sum(), kl.sum(), entropy.sum()]).detach()
    all_reduce_sum([sums])
    sizes = {"tokens": torch.tensor(tokens), "responses": torch.tensor(len(minibatch))}
    return {**dict(zip(names, sums, strict=True)), **sizes}


def quark_loss(logprobs: Tensor, kl: Tensor, entropy: Tensor, kl_coef: float, entropy_coef: float) -> Tensor:
    """Sum −log π + kl_coef · KL − entropy_coef · entropy, each [B, R] and 0 at pads."""
    return (-logprobs + kl_coef * kl - entropy_coef * entropy).sum()
