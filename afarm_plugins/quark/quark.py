"""Quark, "quantised reward conditioning": learn from the best of one's own samples by likelihood.

A step: sample a response to each of `rollout_batch_size` prompts; score it; sort the pool of responses into quantiles
by reward; then `num_epochs` passes that raise the likelihood of responses and hold every next-token distribution near
the start policy's, by the exact KL over the whole vocabulary (Lu et al. 2022; Dubois et al. 2023, appendix A).

As in AlpacaFarm, and unlike Lu et al.: `variant=top` learns from the best quantile only, the pool is reset at each
step, and there is no entropy bonus. A control token that stood before every prompt would tell the policy nothing, so
there is none, as in AlpacaFarm's code. `variant=all` is Lu et al.'s: the token of its quantile, <|reward_0|> the
lowest, stands before each prompt, and sampling (but for the first step, of the start policy) asks for the best.

Not as in the reference implementation, and why:

- The end-of-sequence token is learned, where it was sampled. (There: never, so that responses forget to end.)
- Responses follow their prompts directly. (There: left-padded, so that first tokens were predicted from a pad.)
- Quantiles are over all processes' responses. (There: of each device's own, so results depended on their number.)
- Equal rewards share a quantile. (There: an accident of sorting decides.)
- Each minibatch's loss is divided by its response tokens; the reward model reads the tokens that were sampled.
- The learning rate rises from a first step above 0; prompts that are too long are left out, not cut.

The KL is of the policy to the reference, as in both public implementations. Control tokens are no part of it: the
reference has none, and they are never sampled. The likelihood is over all tokens, so that control tokens become
improbable by themselves. Dropout is off throughout.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from afarm import MethodInputs, TrainContext
from afarm.backend import (
    CheckpointPolicy,
    OnPolicyTrainer,
    all_reduce_gradients,
    all_reduce_sum,
    join_and_pad,
    length_sorted_batches,
    response_divergence,
    shard,
    trainable_copy,
    world_size,
)
from afarm_plugins.quark import QuarkConfig
from afarm_plugins.quark.objective import quantile_bins, quark_loss


class Rollout(NamedTuple):
    """A response that was sampled to the prompt of that number, and its reward."""

    prompt: int
    response: tuple[int, ...]
    score: float
    ended: bool


@dataclass(frozen=True, slots=True)
class TrainingExample:
    """A response with the prompt that the policy learns it behind, and the one that the reference reads."""

    prompt: Sequence[int]
    reference_prompt: Sequence[int]
    response: Sequence[int]


class QuarkTrainer(OnPolicyTrainer[list[Rollout]]):
    """The policy, the reference, the reward model, the pool, and the two halves of a step."""

    config: QuarkConfig
    fused_optimizer = False

    def __init__(self, config: QuarkConfig, inputs: MethodInputs, context: TrainContext):
        super().__init__(config, inputs, context)
        self.reference = self.start  # never touched: what is trained is a copy
        self.control_ids: list[int] = self.policy.tokenizer.convert_tokens_to_ids(list(self.policy.control_tokens))
        self.pool: list[Rollout] = []

    def build_policy(self) -> CheckpointPolicy:
        """Copy the start policy into the one that training begins with, with control tokens and adapters."""
        start = self.start.copy_with_tokens(self.tokens) if self.tokens else self.start
        added = start.tokenizer.convert_tokens_to_ids(list(start.control_tokens))
        return trainable_copy(start, self.config.lora, train_tokens=added)

    @cached_property
    def tokens(self) -> list[str]:
        """The control token of each quantile, if quantiles have any."""
        return [f"<|reward_{i}|>" for i in range(self.config.num_quantiles)] if self.config.variant == "all" else []

    @cached_property
    def steered(self) -> list[CheckpointPolicy]:
        """One policy per quantile that is learned from, all of the same weights; the last asks for the best."""
        return [self.policy.controlled(token) for token in self.tokens] or [self.policy]

    def sampling_policy(self, step: int) -> CheckpointPolicy:
        # The start policy knows no control token yet: what it does with one says nothing.
        return self.steered[-1] if step else self.policy

    # ------------------------------------------------------------------------------------------- collecting

    def collect(self, step: int) -> tuple[list[Rollout], dict[str, float]]:
        """Sample and score the responses of `step` and put them into the pool. Returns them, and metrics."""
        rollouts = self.sample_scored(step)
        if not all(math.isfinite(rollout.score) for rollout in rollouts):
            raise self.diverged(step, "a score is not a finite number")
        self.pool = rollouts if self.config.pool == "reset" else self.pool + rollouts
        pooled, bins = self.quantiles()
        scores = torch.tensor([rollout.score for rollout in rollouts], dtype=torch.float64)
        metrics = {
            "objective/scores": float(scores.mean()),
            "objective/scores_std": float(scores.std(correction=0)),
            "objective/length": sum(len(rollout.response) for rollout in rollouts) / len(rollouts),
            "val/num_eos_tokens": sum(rollout.ended for rollout in rollouts),
            "quark/pool": len(self.pool),
            "data/prompts_left_out": self.left_out,
        }
        for quantile in bins.unique().tolist():
            metrics[f"quark/quantile_{quantile}"] = float(pooled[bins == quantile].mean())
        return rollouts, metrics

    def sample_scored(self, step: int) -> list[Rollout]:
        """Sample the responses of `step` and score them behind prompts without control tokens."""
        rollouts: list[Rollout] = []
        for rows, samples in self.draw(step):
            instructions = [self.prompts[row] for row in rows]
            plain = [
                replace(sample, prompt_ids=tuple(prompt))
                for sample, prompt in zip(samples, self.reference.prompt_ids(instructions), strict=True)
            ]
            scores = self.rewards(instructions, plain)
            scored = zip(rows, samples, scores, strict=True)
            rollouts += self.gathered(
                [Rollout(row, s.token_ids, score, s.finish_reason == "stop") for row, s, score in scored]
            )
        return rollouts

    def quantiles(self) -> tuple[Tensor, Tensor]:
        """The scores of the pool and the quantile of each, both [N]."""
        scores = torch.tensor([rollout.score for rollout in self.pool], dtype=torch.float64)
        return scores, quantile_bins(scores, self.config.num_quantiles)

    # --------------------------------------------------------------------------------------------- learning

    def update(self, step: int, rollout: list[Rollout]) -> dict[str, float]:
        """The passes over the pool. Returns metrics, each the mean over all response tokens learned from."""
        minibatches = list(self.minibatches(step))
        passes = self.descend(step, minibatches, self.read)
        left = self.read(minibatches[-1], learn=False)  # of the policy after the step, which is what is kept
        self.watch_kl(step, float(left["loss/kl"] / left["responses"]))
        responses = passes.sums.pop("responses")
        return {
            **passes.metrics(),
            "objective/kl": passes.sums["loss/kl"] / responses,
            "quark/learned_from": responses / self.config.num_epochs,
        }

    def measure(self, done: int) -> None:
        """Nothing is left to do: `update` has read the KL of the policy that it made, exactly."""

    def minibatches(self, step: int) -> Iterator[list[TrainingExample]]:
        """Minibatches of each pass, which takes responses of the pool in a random order of its own."""
        bins = self.quantiles()[1].tolist()
        best = self.config.num_quantiles - 1
        chosen = [row for row, quantile in enumerate(bins) if self.config.variant == "all" or quantile == best]
        for rows in self.shuffled(len(chosen), step, self.config.num_epochs):
            yield [self.example(self.pool[chosen[i]], bins[chosen[i]]) for i in rows]

    def example(self, rollout: Rollout, quantile: int) -> TrainingExample:
        """The response of `rollout` behind the prompt that asks for its quantile."""
        instructions = [self.prompts[rollout.prompt]]
        steered = self.steered[min(quantile, len(self.steered) - 1)]
        [plain], [prompt] = self.reference.prompt_ids(instructions), steered.prompt_ids(instructions)
        return TrainingExample(prompt, plain, rollout.response)

    def read(self, minibatch: Sequence[TrainingExample], learn: bool = True) -> Mapping[str, Tensor]:
        """Sums over the minibatch's tokens, and their count; `learn` adds the gradient of its mean loss."""
        config = self.config
        tokens = sum(len(example.response) for example in minibatch)
        names = ("loss/lm", "loss/kl", "policy/entropy_avg")
        sums = torch.zeros(len(names), dtype=torch.float64, device=self.device)
        examples = shard(minibatch)
        lengths = [len(example.prompt) + len(example.response) for example in examples]
        batches = list(length_sorted_batches(lengths, config.per_device_train_batch_size))
        if self.context.backend.sharded:  # all use the weights equally often, if need be for nothing
            passes = -(-len(minibatch[:: world_size()]) // config.per_device_train_batch_size)
            examples, batches = [*examples, minibatch[0]], batches + [[len(examples)]] * (passes - len(batches))
        for number, rows in enumerate(batches):
            counts = float(number * config.per_device_train_batch_size < len(lengths))
            micro = [examples[row] for row in rows]
            responses = [example.response for example in micro]
            with torch.set_grad_enabled(learn):
                divergence = response_divergence(
                    self.policy.model,
                    self.reference.model,
                    join_and_pad([x.prompt for x in micro], responses, self.policy.pad_id, self.device),
                    join_and_pad([x.reference_prompt for x in micro], responses, self.policy.pad_id, self.device),
                    left_out=self.control_ids,
                )
            if learn:
                (counts * quark_loss(*divergence, config.kl_coef, config.entropy_coef) / tokens).backward()
            logprobs, kl, entropy = divergence
            sums += counts * torch.stack([-logprobs.sum(), kl.sum(), entropy.sum()]).detach()
        all_reduce_sum([sums])
        if learn:
            all_reduce_gradients(self.trained.values())
        sizes = {"tokens": torch.tensor(tokens), "responses": torch.tensor(len(minibatch))}
        return {**dict(zip(names, sums, strict=True)), **sizes}

    # ------------------------------------------------------------------------------------------- going on

    def state(self) -> dict[str, Any]:
        pool = [tuple(rollout) for rollout in self.pool] if self.config.pool == "keep" else []
        return {"pool": pool, "kl": self.kl}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.kl = state["kl"]
        self.pool = [Rollout(*rollout) for rollout in state["pool"]]

    def chosen(self) -> CheckpointPolicy:
        """The policy that asks for the best, as it is."""
        policy = super().chosen()
        return policy.controlled(self.tokens[-1]) if self.tokens else policy
