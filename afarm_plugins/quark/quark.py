"""Quark, "quantised reward conditioning": from one's own samples, learn from the best by plain likelihood.

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

import logging
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from afarm import Decoding, Method, MethodInputs, Policy, TrainContext, seeding
from afarm.backend import (
    CheckpointPolicy,
    Diverged,
    all_finite,
    all_gather,
    all_reduce_gradients,
    all_reduce_sum,
    clip_gradients,
    enable_gradient_checkpointing,
    full_tensor,
    join_and_pad,
    length_sorted_batches,
    linear_schedule,
    permutation,
    prompt_order,
    require_checkpoint,
    response_divergence,
    restore,
    sample_scorer,
    set_checkpointing_layers_to_train,
    shard,
    shard_model,
    short_prompts,
    trainable_copy,
    training_state,
    unsharded_weights,
    world_size,
    write_training_state,
)
from afarm_plugins.quark import QuarkConfig
from afarm_plugins.quark.objective import quantile_bins, quark_loss

logger = logging.getLogger(__name__)


class Quark(Method):
    """Returns the policy after the last step. The start policy and the reward model are left as they were."""

    needs = frozenset({"reward_model", "unlabeled"})

    def __init__(self, config: QuarkConfig | None = None):
        self.config: QuarkConfig = config or QuarkConfig()

    def train(self, inputs: MethodInputs, context: TrainContext) -> Policy:
        """Raises `TrainingError` where it diverges before a checkpoint, `DataError` where all prompts are too long."""
        trainer = Trainer(self.config, inputs, context)
        try:
            self.learn(trainer, context)
        except Diverged as error:
            if trainer.resume() == 0:  # what is on the disk is from before
                raise
            context.log_metrics(error.step, {f"stopped/{error.reason}": error.step, "last/kl": trainer.kl})
            logger.warning("%s. The last checkpoint before is kept", error)
        else:
            context.log_metrics(trainer.done, {"last/kl": trainer.kl})
        return trainer.learned()

    def learn(self, trainer: Trainer, context: TrainContext) -> None:
        config, first = self.config, trainer.resume()
        for step in context.progress(range(first, config.total_steps), "Quark", config.total_steps - first):
            collected = trainer.collect(step)
            updated = trainer.update(step)
            done = step + 1
            context.log_metrics(done, {**collected, **updated, "episode": done * config.rollout_batch_size})
            stopping = done < config.total_steps and context.should_stop()
            if stopping or done % config.save_steps == 0 or done == config.total_steps:
                trainer.save(done)
            if stopping:
                # An unfinished policy must not be taken for the result, so stopping ends as Ctrl-C does.
                raise KeyboardInterrupt(f"Quark stopped after step {done}; the same command goes on from there")


class Attempt(NamedTuple):
    """A response that was sampled to the prompt of that number, and its reward."""

    prompt: int
    response: tuple[int, ...]
    score: float
    ended: bool


@dataclass(frozen=True, slots=True)
class Lesson:
    """An attempt with the prompt that the policy learns it behind, and the one that the reference reads."""

    prompt: Sequence[int]
    reference_prompt: Sequence[int]
    response: Sequence[int]


class Trainer:
    """The policy, the reference, the reward model, the pool, the optimiser, and the two halves of a step."""

    def __init__(self, config: QuarkConfig, inputs: MethodInputs, context: TrainContext):
        assert inputs.reward_model is not None  # named in `needs`
        self.config, self.context = config, context
        self.device = context.backend.device
        context.backend.seed(context.seed)  # adapters start from random numbers
        self.reference = require_checkpoint(inputs.start, "quark")  # never touched: what is trained is a copy
        self.rewards = sample_scorer(inputs.reward_model, self.reference)
        self.reference.model.eval()
        self.tokens = [f"<|reward_{i}|>" for i in range(config.num_quantiles)] if config.variant == "all" else []
        self.policy = self.untrained()
        self.control_ids: list[int] = self.policy.tokenizer.convert_tokens_to_ids(list(self.policy.control_tokens))
        if context.backend.sharded:
            shard_model(self.policy.model, even={"quark.rollout_batch_size": config.rollout_batch_size})
        if config.gradient_checkpointing:
            enable_gradient_checkpointing(self.policy.model)
        # One policy for each quantile that is learned from, all of the same weights; the last asks for the best.
        self.steered = [self.policy.controlled(token) for token in self.tokens] or [self.policy]
        self.trained = {name: p for name, p in self.policy.model.named_parameters() if p.requires_grad}
        self.optimizer = torch.optim.AdamW(
            self.trained.values(), lr=config.learning_rate, eps=config.adam_epsilon, weight_decay=0.0
        )
        self.prompts = short_prompts(
            self.steered[-1],
            inputs.unlabeled,
            config.max_prompt_length,
            config.response_length,
            "quark.max_prompt_length",
        )
        self.left_out = len(inputs.unlabeled) - len(self.prompts)
        self.pool: list[Attempt] = []
        self.done, self.kl = 0, 0.0

    def untrained(self) -> CheckpointPolicy:
        """The start policy's copy that training begins with, with control tokens and adapters."""
        start = self.reference.copy_with_tokens(self.tokens) if self.tokens else self.reference
        added = start.tokenizer.convert_tokens_to_ids(list(start.control_tokens))
        policy = trainable_copy(start, self.config.lora, train_tokens=added)
        policy.model.eval()
        return policy

    # ------------------------------------------------------------------------------------------- collecting

    def collect(self, step: int) -> dict[str, float]:
        """Put the responses of `step`, scored, into the pool. Returns metrics of them and of the pool."""
        attempts = self.sample(step)
        if not all(math.isfinite(attempt.score) for attempt in attempts):
            raise self.diverged(step, "a score is not a finite number")
        self.pool = attempts if self.config.pool == "reset" else self.pool + attempts
        pooled, bins = self.quantiles()
        scores = torch.tensor([attempt.score for attempt in attempts], dtype=torch.float64)
        metrics = {
            "objective/scores": float(scores.mean()),
            "objective/scores_std": float(scores.std(correction=0)),
            "objective/length": sum(len(attempt.response) for attempt in attempts) / len(attempts),
            "val/num_eos_tokens": sum(attempt.ended for attempt in attempts),
            "quark/pool": len(self.pool),
            "data/prompts_left_out": self.left_out,
        }
        for quantile in bins.unique().tolist():
            metrics[f"quark/quantile_{quantile}"] = float(pooled[bins == quantile].mean())
        return metrics

    def sample(self, step: int) -> list[Attempt]:
        """A scored response to each prompt of `step`. Seeds differ by pass, so a repeated prompt is a new draw."""
        config, seed = self.config, self.context.seed
        decoding = Decoding(
            temperature=config.temperature,
            max_new_tokens=config.response_length,
            per_device_batch_size=config.per_device_rollout_batch_size,
        )
        # The start policy knows no control token yet: what it does with one says nothing.
        policy = self.steered[-1] if step else self.policy
        attempts: list[Attempt] = []
        for number, batch in prompt_order(len(self.prompts), step, config.rollout_batch_size, seed, "quark"):
            rows = shard(batch)
            asked = [self.prompts[row] for row in rows]
            with unsharded_weights(self.policy.model):
                samples = list(
                    policy.sample(asked, decoding, seed=seeding.integer(seed, "quark", "rollout", step, number))
                )
            plain = [
                replace(sample, prompt_ids=tuple(prompt))
                for sample, prompt in zip(samples, self.reference.prompt_ids(asked), strict=True)
            ]
            scores = self.rewards(asked, plain)
            made = zip(rows, samples, scores, strict=True)
            attempts += all_gather(
                [Attempt(row, s.token_ids, score, s.finish_reason == "stop") for row, s, score in made]
            )
        return attempts

    def quantiles(self) -> tuple[Tensor, Tensor]:
        """The scores of the pool and the quantile of each, both [N]."""
        scores = torch.tensor([attempt.score for attempt in self.pool], dtype=torch.float64)
        return scores, quantile_bins(scores, self.config.num_quantiles)

    # --------------------------------------------------------------------------------------------- learning

    def update(self, step: int) -> dict[str, float]:
        """The passes over the pool. Returns metrics, each the mean over all response tokens learned from."""
        config = self.config
        learning_rate = linear_schedule(step, config.learning_rate, config.warmup_steps, config.total_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        if config.gradient_checkpointing:
            set_checkpointing_layers_to_train(self.policy.model)
        totals: dict[str, float] = defaultdict(float)
        norms = []
        for minibatch in self.minibatches(step):
            self.optimizer.zero_grad()
            sums = self.read(minibatch)
            norm = clip_gradients(self.trained.values(), config.max_grad_norm)
            if not math.isfinite(norm):
                raise self.diverged(step, f"the norm of the gradient is {norm}")
            self.optimizer.step()
            for name, value in sums.items():
                totals[name] += float(value)
            norms.append(norm)
        left = self.read(minibatch, learn=False)  # what is kept is the policy after the step, not those within it
        self.done, self.kl = step + 1, float(left["loss/kl"] / left["responses"])
        if not math.isfinite(self.kl):
            raise self.diverged(step, "the KL is not a finite number")
        if config.max_kl is not None and self.kl > config.max_kl:
            raise self.diverged(step, f"the KL of {self.kl:.3g} nats a response exceeds quark.max_kl", "max_kl")
        tokens, responses = totals.pop("tokens"), totals.pop("responses")
        return {
            **{name: total / tokens for name, total in totals.items()},
            "objective/kl": totals["loss/kl"] / responses,
            "policy/grad_norm": sum(norms) / len(norms),
            "quark/learned_from": responses / config.num_epochs,
            "lr": learning_rate,
        }

    def minibatches(self, step: int) -> Iterator[list[Lesson]]:
        """What each optimiser step learns from: in every pass, responses of the pool in a random order of its own."""
        config = self.config
        bins = self.quantiles()[1].tolist()
        best_only = config.variant == "top"
        chosen = [row for row, quantile in enumerate(bins) if not best_only or quantile == config.num_quantiles - 1]
        for epoch in range(config.num_epochs):
            order = permutation(len(chosen), self.context.seed, "quark", "minibatches", step, epoch)
            rows = [chosen[i] for i in order[: config.rollout_batch_size]]
            for start in range(0, len(rows), config.mini_batch_size):
                yield [self.lesson(self.pool[r], bins[r]) for r in rows[start : start + config.mini_batch_size]]

    def lesson(self, attempt: Attempt, quantile: int) -> Lesson:
        asked = [self.prompts[attempt.prompt]]
        steered = self.steered[min(quantile, len(self.steered) - 1)]
        [plain], [prompt] = self.reference.prompt_ids(asked), steered.prompt_ids(asked)
        return Lesson(prompt, plain, attempt.response)

    def read(self, minibatch: Sequence[Lesson], learn: bool = True) -> Mapping[str, Tensor]:
        """Sums over the minibatch's tokens, and how many there are. To `learn` adds the gradient of its mean loss."""
        config = self.config
        tokens = sum(len(lesson.response) for lesson in minibatch)
        names = ("loss/lm", "loss/kl", "policy/entropy_avg")
        sums = torch.zeros(len(names), dtype=torch.float64, device=self.device)
        lessons = shard(minibatch)
        lengths = [len(lesson.prompt) + len(lesson.response) for lesson in lessons]
        batches = list(length_sorted_batches(lengths, config.per_device_train_batch_size))
        if self.context.backend.sharded:  # all use the weights equally often, if need be for nothing
            passes = -(-len(minibatch[:: world_size()]) // config.per_device_train_batch_size)
            lessons, batches = [*lessons, minibatch[0]], batches + [[len(lessons)]] * (passes - len(batches))
        for number, rows in enumerate(batches):
            counts = float(number * config.per_device_train_batch_size < len(lengths))
            micro = [lessons[row] for row in rows]
            responses = [lesson.response for lesson in micro]
            with torch.set_grad_enabled(learn):
                found = response_divergence(
                    self.policy.model,
                    self.reference.model,
                    join_and_pad([x.prompt for x in micro], responses, self.policy.pad_id, self.device),
                    join_and_pad([x.reference_prompt for x in micro], responses, self.policy.pad_id, self.device),
                    left_out=self.control_ids,
                )
            if learn:
                (counts * quark_loss(*found, config.kl_coef, config.entropy_coef) / tokens).backward()
            sums += counts * torch.stack([-found.logprobs.sum(), found.kl.sum(), found.entropy.sum()]).detach()
        all_reduce_sum([sums])
        if learn:
            all_reduce_gradients(self.trained.values())
        sizes = {"tokens": torch.tensor(tokens), "responses": torch.tensor(len(minibatch))}
        return {**dict(zip(names, sums, strict=True)), **sizes}

    # ------------------------------------------------------------------------------------------- going on

    def save(self, done: int) -> None:
        """Keep all that step `done` + 1 needs. The draws are keyed by seed and step: there is no generator to keep."""
        if not all_finite(self.trained.values()):
            raise self.diverged(done - 1, "a weight is not a finite number")
        pool = [tuple(attempt) for attempt in self.pool] if self.config.pool == "keep" else []
        state = training_state(self.trained, self.optimizer, pool=pool, kl=self.kl)
        self.context.checkpoints.save(done, lambda directory: write_training_state(state, directory))

    @torch.no_grad()
    def learned(self) -> CheckpointPolicy:
        """The policy that asks for the best, as it is."""
        if not self.context.backend.sharded:
            return self.steered[-1]
        weights = {name: full_tensor(p.data) for name, p in self.trained.items()}
        policy = self.untrained()
        for name, parameter in policy.model.named_parameters():
            if parameter.requires_grad:
                parameter.copy_(weights[name])
        return policy.controlled(self.tokens[-1]) if self.tokens else policy

    def resume(self) -> int:
        """Take up the newest checkpoint, if there is one. Returns the number of steps done."""
        found = restore(self.context.checkpoints, self.trained, self.optimizer)
        if found is None:
            return 0
        self.done, _, state = found
        self.kl = state["kl"]
        self.pool = [Attempt(*attempt) for attempt in state["pool"]]
        return self.done

    def diverged(self, step: int, what: str, reason: str = "not_finite") -> Diverged:
        return Diverged("Quark", self.config, step + 1, what, reason)
