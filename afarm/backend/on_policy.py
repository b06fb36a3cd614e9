"""Training loop of on-policy methods: sample, score, learn, keep a checkpoint, resume, stop.

A method subclasses `OnPolicyTrainer` and says in `collect` what it samples, in `update` how it learns from that; see
`policy_gradient` for an update by advantages. Every draw is keyed by seed and step, so resuming needs no generator's
state.
"""

from __future__ import annotations

import copy
import logging
import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from afarm.backend.checkpoint_selection import selection_of
from afarm.backend.distributed import (
    all_gather,
    all_reduce_sum,
    barrier,
    shard,
    world_size,
)
from afarm.backend.models import enable_gradient_checkpointing, set_checkpointing_layers_to_train
from afarm.backend.policy import CheckpointPolicy, require_checkpoint, trainable_copy
from afarm.backend.resume import move_into, restore, write_checkpoint
from afarm.backend.reward_model import TorchRewardModel
from afarm.backend.rollouts import permutation, prompt_order, sample_scorer, short_prompts
from afarm.backend.sharding import (
    all_finite,
    clip_gradients,
    empty_copy,
    gathered_weights,
    parameter_groups,
    shard_model,
    whole_model,
)
from afarm.backend.shares import uneven_sizes
from afarm.core.config import OnPolicyConfig
from afarm.core.errors import ConfigError, TrainingError
from afarm.core.interfaces import Decoding, MethodInputs, TrainContext
from afarm.core.records import Instruction, Sample
from afarm.core.seeding import integer

logger = logging.getLogger(__name__)

R = TypeVar("R")
"""The rollouts that `collect` gives and `update` learns from."""
M = TypeVar("M")
"""A minibatch: the rows of one optimiser step."""


class Diverged(TrainingError):
    """Training cannot go on from `step` (from 1); `reason` is "max_kl" or "not_finite", as in the log."""

    def __init__(self, config: OnPolicyConfig, step: int, what: str, reason: str = "not_finite"):
        self.step, self.reason = step, reason
        name = config.method_name
        section = name.lower()
        super().__init__(
            f"{name} diverged at step {step}: {what}. "
            f"Try --set {section}.learning_rate={config.learning_rate / 2:g}, "
            f"a larger {section}.kl_coef (now {config.kl_coef:g}), or --set backend.dtype=float32"
        )


def linear_schedule(step: int, peak: float, warmup_steps: int, total_steps: int) -> float:
    """Learning rate of `step` (from 0): up to `peak` over `warmup_steps`, then straight down towards 0.

    Above 0 at the first step, so that no rollout is collected for nothing.
    """
    if step < warmup_steps:
        return peak * (step + 1) / (warmup_steps + 1)
    return peak * (total_steps - step) / (total_steps - warmup_steps)


@dataclass
class Passes:
    """The optimiser steps over one rollout.

    `sums` are over all that was learned from, "tokens" being the count of response tokens; `norms` are the gradients'
    before clipping. `skipped` minibatches were left out.
    """

    learning_rate: float
    sums: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    norms: list[float] = field(default_factory=list)
    skipped: int = 0

    def metrics(self) -> dict[str, float]:
        """Means per response token, the mean norm of the gradient before clipping, and the learning rate."""
        means = {name: total / self.sums["tokens"] for name, total in self.sums.items() if name != "tokens"}
        return {**means, "policy/grad_norm": sum(self.norms) / len(self.norms), "lr": self.learning_rate}


class OnPolicyTrainer(ABC, Generic[R]):
    """The policy, its optimiser and the loop over `total_steps`; what a step is, a subclass says.

    `start` is the policy that training starts from and the KL reference, never touched. `policy` is what is trained,
    with all other trained networks in `models`; `trained` are their parameters by name. `prompts` are the unlabeled
    instructions that are short enough, `rewards` scores samples. Dropout is off throughout.
    """

    fused_optimizer = True

    def __init__(self, config: Any, inputs: MethodInputs, context: TrainContext):
        """Raises `TrainingError` for a start without weights, `DataError` if no prompt is short enough."""
        assert inputs.reward_model is not None  # named in `needs`
        self.config, self.inputs, self.context = config, inputs, context
        self.section = config.method_name.lower()
        self.device = context.backend.device
        context.backend.seed(context.seed)  # adapters start from random numbers
        self.start = require_checkpoint(inputs.start, self.section)
        self.start.model.eval()
        self.rewards = sample_scorer(inputs.reward_model, self.start)
        self.policy = self.build_policy()
        self.models = nn.ModuleDict({"policy": self.policy.model, **self.build_other_networks()})
        if context.backend.sharded:
            self.empty = empty_copy(self.policy.model)
            if uneven := uneven_sizes(self.section, config, world_size(), sharded=True):
                raise ConfigError(uneven)
            shard_model(self.models, context.backend)
            shard_model(self.frozen_models(), context.backend)
        self.models.eval()
        if config.gradient_checkpointing:
            enable_gradient_checkpointing(self.models)
        self.trained = {name: p for name, p in self.models.named_parameters() if p.requires_grad}
        by_peak: dict[float, list[nn.Parameter]] = defaultdict(list)
        for name, parameter in self.trained.items():
            by_peak[self.peak_learning_rate(name)].append(parameter)
        self.optimizer = torch.optim.AdamW(
            parameter_groups(
                {"params": group, "factor": peak / config.learning_rate} for peak, group in by_peak.items()
            ),
            lr=config.learning_rate,
            eps=config.adam_epsilon,
            weight_decay=0.0,
            fused=self.fused_optimizer,
        )
        self.prompts = short_prompts(
            self.sampling_policy(config.total_steps),
            inputs.unlabeled,
            config.max_prompt_length,
            config.response_length,
            f"{self.section}.max_prompt_length",
        )
        self.left_out = len(inputs.unlabeled) - len(self.prompts)
        self.selection = selection_of(config, inputs, context)
        self.kl: float | None = None
        self._ahead: tuple[R, dict[str, float]] | None = None

    # ------------------------------------------------------------------------------------------ what a method says

    @abstractmethod
    def collect(self, step: int) -> tuple[R, dict[str, float]]:
        """Sample and score for `step` (from 0). Returns what to learn from, and metrics.

        Calls `watch_kl` with the KL of the policy to its start.
        """

    @abstractmethod
    def update(self, step: int, rollout: R) -> dict[str, float]:
        """Learn from what `step` collected; see `descend`. Returns metrics."""

    def build_policy(self) -> CheckpointPolicy:
        """Copy `start` into the policy that training begins with."""
        return trainable_copy(self.start, self.config.lora)

    def build_other_networks(self) -> Mapping[str, nn.Module]:
        """Build what is trained beside the policy, by name: a value model, say."""
        return {}

    def frozen_models(self) -> nn.ModuleList:
        """Frozen models that steps read: the start policy, and a reward model that reads tokens."""
        reward_model = self.inputs.reward_model
        reads_tokens = isinstance(reward_model, TorchRewardModel) and reward_model.reads_tokens_of(self.start)
        return nn.ModuleList([self.start.model, *([reward_model.model] if reads_tokens else [])])  # type: ignore[union-attr]

    def peak_learning_rate(self, name: str) -> float:
        """The peak of the learning rate of the trained parameter `name`.

        Override for a network with one of its own. All rates rise and fall together.
        """
        peak: float = self.config.learning_rate
        return peak

    def sampling_policy(self, step: int) -> CheckpointPolicy:
        """The policy that `step` samples with, of the weights that are trained."""
        return self.policy

    def measure(self, done: int) -> None:
        """Measure the policy after step `done`, before it is kept.

        By the samples that it draws for the next step, which are not drawn twice. Override if `update` has called
        `watch_kl` of the policy that it made.
        """
        self._ahead = self.collect(done)

    def state(self) -> dict[str, Any]:
        """State that a checkpoint must hold beside weights, optimiser and selection."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take what `state` gave."""

    # ---------------------------------------------------------------------------------------------------- the loop

    def train(self) -> CheckpointPolicy:
        """Train from the newest checkpoint on. Returns the policy of the best or the last step.

        If training diverges, that of the checkpoint before counts. Raises `TrainingError` naming the step if there is
        none yet, `KeyboardInterrupt` once the context says to stop and a checkpoint is kept.
        """
        try:
            self.run()
        except Diverged as error:
            if not self.resume():  # from before: what has diverged is never saved
                raise
            self.context.log_metrics(error.step, {f"stopped/{error.reason}": error.step, **self.last_kl()})
            logger.warning("%s. The %s checkpoint before is kept", error, "best" if self.selection else "last")
        return self.chosen()

    def run(self) -> None:
        """Take the steps that are left, one after the other."""
        context, total, first = self.context, self.config.total_steps, self.resume()
        for step in context.progress(range(first, total), self.config.method_name, total - first):
            rollout, collected = self._ahead or self.collect(step)
            self._ahead = None
            updated = self.update(step, rollout)
            done = step + 1
            context.log_metrics(done, {**collected, **updated, "episode": done * self.config.rollout_batch_size})
            self.measure(done)
            if done == total and self.kl is not None:
                context.log_metrics(done, self.last_kl())
            self.keep(done)

    def keep(self, done: int) -> None:
        """Judge and save the policy of step `done` if it is a candidate, and stop if the context says so."""
        total = self.config.total_steps
        is_candidate = done % self.config.save_steps == 0 or done == total
        if is_candidate and (judged := self.judge(done)):
            self.context.log_metrics(done, judged)
        stopping = done < total and self.context.should_stop()
        if stopping or is_candidate:
            self.save(done)
        if stopping:
            # An unfinished policy must not be taken for the result, so stopping ends as Ctrl-C does.
            name = self.config.method_name
            raise KeyboardInterrupt(f"{name} stopped after step {done}; the same command goes on from there")

    def judge(self, done: int) -> dict[str, float]:
        """Metrics of the policy of step `done` as a candidate; none if no checkpoint is selected."""
        if self.selection is None:
            return {}
        self.require_finite_weights(done)
        if not self.selection.knows_start:  # apart, so that no process holds both models whole
            with self.start.ready_to_sample():
                self.selection.answer_start()
        policy = self.sampling_policy(done)
        with policy.ready_to_sample():
            return self.selection.compare(done, policy, self.kl)

    def save(self, done: int) -> None:
        """Keep all that step `done` + 1 needs. Raises `Diverged` if a weight is not finite."""
        self.require_finite_weights(done)
        unpublished = self.context.directory / ".checkpoint"
        write_checkpoint(unpublished, self.trained, self.optimizer, **self.state())
        of_policy: dict[str, Tensor] = {}
        if self.selection:
            named = {n.removeprefix("policy."): p for n, p in self.trained.items() if n.startswith("policy.")}
            of_policy = gathered_weights(named, by_all=False)
        barrier()  # each process has written its part

        def write(directory: Path) -> None:
            move_into(directory, unpublished)
            if self.selection:
                self.selection.save(done, of_policy, directory)

        self.context.checkpoints.save(done, write)

    def resume(self) -> int:
        """Restore the newest checkpoint, if there is one. Returns the number of steps done."""
        self.kl = self._ahead = None
        restored = restore(self.context.checkpoints, self.trained, self.optimizer)
        if restored is None:
            return 0
        done, directory, state = restored
        self.load_state(state)
        if self.selection:
            self.selection.load(directory)
        return done

    @torch.no_grad()
    def chosen(self) -> CheckpointPolicy:
        """The policy that counts: of the best step if there is a selection, else as it is."""
        policy = self.policy
        if self.context.backend.sharded:
            policy = copy.copy(self.policy)
            policy.model = whole_model(self.empty, gathered_weights(dict(self.policy.model.named_parameters())))
        if self.selection and self.selection.best:
            weights = self.selection.best_weights()
            for name, parameter in policy.model.named_parameters():
                if parameter.requires_grad:
                    parameter.copy_(weights[name])
        return policy

    def watch_kl(self, step: int, kl: float) -> None:
        """Note the KL of the policy to its start, in nats per response.

        Raises `Diverged` naming `step` if it is not finite or exceeds `max_kl`.
        """
        if not math.isfinite(kl):
            raise self.diverged(step, "the KL is not a finite number")
        if self.config.max_kl is not None and kl > self.config.max_kl:
            limit = f"more than {self.section}.max_kl ({self.config.max_kl:g})"
            raise self.diverged(step, f"the KL to the start policy is {kl:.3g} nats, {limit}", "max_kl")
        self.kl = kl

    def last_kl(self) -> dict[str, float]:
        """The KL of the policy as it is, as a metric, if it is known."""
        return {} if self.kl is None else {"last/kl": self.kl}

    def require_finite_weights(self, done: int) -> None:
        """Raises `Diverged` naming step `done` if a weight is not a finite number."""
        if not all_finite(self.trained.values()):
            raise self.diverged(done - 1, "a weight is not a finite number")

    def diverged(self, step: int, what: str, reason: str = "not_finite") -> Diverged:
        """The error to raise if training cannot go on from `step` (from 0)."""
        return Diverged(self.config, step + 1, what, reason)

    # ------------------------------------------------------------------------------------------------- collecting

    def draw(self, step: int) -> Iterator[tuple[list[int], list[Sample]]]:
        """Sample `num_generations` responses to each prompt of `step`, one pass over the prompts at a time.

        Yields this process's shard: the prompts by number in `prompts` and the samples, those of a prompt consecutive.
        Seeds differ by pass, so a repeated prompt is a new draw.
        """
        config, seed = self.config, self.context.seed
        decoding = Decoding(
            temperature=config.temperature,
            max_new_tokens=config.response_length,
            n=config.num_generations,
            per_device_batch_size=config.per_device_rollout_batch_size,
        )
        policy, size = self.sampling_policy(step), config.rollout_batch_size // config.num_generations
        for number, batch in prompt_order(len(self.prompts), step, size, seed, self.section):
            rows = shard(batch)
            key = integer(seed, self.section, "rollout", step, number)
            with policy.ready_to_sample():
                samples = list(policy.sample([self.prompts[row] for row in rows], decoding, seed=key))
            yield [row for row in rows for _ in range(decoding.n)], samples

    def sample(self, step: int) -> tuple[list[Instruction], list[Sample]]:
        """Sample the B responses of `step`, with the instruction of each; those of one prompt are consecutive."""
        drawn = [x for rows, samples in self.draw(step) for x in self.gathered(list(zip(rows, samples, strict=True)))]
        return [self.prompts[row] for row, _ in drawn], [sample for _, sample in drawn]

    def gathered(self, drawn: Sequence[M]) -> list[M]:
        """Gather what `draw` gave each process, or something made of each sample, in the order of prompts."""
        n = self.config.num_generations
        groups = [drawn[start : start + n] for start in range(0, len(drawn), n)]
        return [x for group in all_gather(groups) for x in group]

    @torch.no_grad()
    def score(self, instructions: Sequence[Instruction], samples: Sequence[Sample]) -> Tensor:
        """The reward model's scores [B], of the very tokens that were sampled wherever it can read them."""
        rows = shard(range(len(samples)))
        rewards = self.rewards([instructions[row] for row in rows], [samples[row] for row in rows])
        scores = torch.zeros(len(samples), device=self.device)
        scores[list(rows)] = torch.tensor(rewards, device=self.device)
        all_reduce_sum([scores])
        return scores

    # --------------------------------------------------------------------------------------------------- learning

    def descend(
        self,
        step: int,
        minibatches: Iterable[M],
        backward: Callable[[M], Mapping[str, Tensor]],
        is_enough: Callable[[Mapping[str, Tensor]], bool] = lambda sums: False,
    ) -> Passes:
        """Take one optimiser step per minibatch, at the learning rate of `step`, with clipped gradients.

        Raises `Diverged` before a gradient that is not finite would spoil the weights.

        Args:
            step: from 0.
            minibatches: what each optimiser step learns from.
            backward: adds the gradient of a minibatch's mean loss over all processes. Returns sums over its response
                tokens for metrics, among them their number as "tokens".
            is_enough: from these sums, whether to leave out all minibatches from this one on. Not asked of the first.
        """
        config = self.config
        passes = Passes(linear_schedule(step, config.learning_rate, config.warmup_steps, config.total_steps))
        for group in self.optimizer.param_groups:
            group["lr"] = passes.learning_rate * group["factor"]
        if config.gradient_checkpointing:
            set_checkpointing_layers_to_train(self.models)
        left = iter(minibatches)
        for minibatch in left:
            self.optimizer.zero_grad()
            sums = backward(minibatch)
            if passes.norms and is_enough(sums):
                passes.skipped = 1 + sum(1 for _ in left)
                break
            norm = clip_gradients(self.trained.values(), config.max_grad_norm)
            if not math.isfinite(norm):
                raise self.diverged(step, f"the norm of the gradient is {norm}")
            self.optimizer.step()
            for name, value in sums.items():
                passes.sums[name] += float(value)
            passes.norms.append(norm)
        self.optimizer.zero_grad()  # gradients take no memory while the next step samples
        return passes

    def shuffled(self, count: int, step: int, epochs: int) -> Iterator[list[int]]:
        """The rows of each minibatch of `step`: every pass over `count` rows in a random order of its own.

        A pass takes `rollout_batch_size` rows at most.
        """
        config = self.config
        for epoch in range(epochs):
            order = permutation(count, self.context.seed, self.section, "minibatches", step, epoch)
            order = order[: config.rollout_batch_size]
            for start in range(0, len(order), config.mini_batch_size):
                yield order[start : start + config.mini_batch_size]
