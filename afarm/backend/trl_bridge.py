"""TRL's trainers under afarm: metrics, progress, checkpoints to resume from, divergence."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Sampler
from transformers import Trainer, TrainerCallback
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from afarm.backend.checkpoint_selection import CheckpointSelection
from afarm.backend.distributed import barrier, rank, shard, shared_batch, world_size
from afarm.backend.logprobs import evaluating
from afarm.backend.models import quiet_transformers
from afarm.backend.policy import CheckpointPolicy
from afarm.backend.resume import move_into, restore_checkpoint, write_checkpoint
from afarm.backend.sharding import (
    average_gradients,
    clip_gradients,
    empty_copy,
    gathered_weights,
    is_sharded,
    shard_model,
    whole_model,
)
from afarm.core.config import CheckpointChoice, TrainerConfig
from afarm.core.errors import TrainingError
from afarm.core.interfaces import ModelBackend, TrainContext
from afarm.core.seeding import integer

FEWEST_CHECKPOINTS = 5
"""Fewest checkpoints of a stage, so that one shorter than `save_steps` can resume and has candidates."""


def trainer_arguments(kind: type, config: TrainerConfig, context: TrainContext, **more: Any) -> Any:
    """Make arguments of the class `kind` (TrainingArguments, or TRL's SFTConfig …) from `config`.

    Nothing is pushed or reported. A step's batch does not depend on the number of processes: raises `ConfigError` if
    they do not divide it. `more` are further arguments of `kind`.
    """
    backend = context.backend
    batch_size, accumulation = shared_batch(config, world_size())
    chooses = isinstance(config, CheckpointChoice) and config.checkpoint == "best"
    settings: dict[str, Any] = {
        "output_dir": str(context.directory / "trainer"),
        "learning_rate": config.learning_rate,
        "lr_scheduler_type": config.lr_scheduler_type,
        "warmup_steps": config.warmup_ratio,  # below 1: a share of all steps
        "num_train_epochs": config.num_train_epochs,
        "per_device_train_batch_size": batch_size,
        "gradient_accumulation_steps": accumulation,
        "weight_decay": config.weight_decay,
        "max_grad_norm": config.max_grad_norm,
        "gradient_checkpointing": config.gradient_checkpointing,
        "bf16": False,
        "fp16": False,
        "use_cpu": backend.device.type == "cpu",
        "seed": context.seed % 2**32,
        "logging_steps": 1,  # each step's loss is checked
        "logging_nan_inf_filter": False,
        "save_strategy": "steps" if config.save_steps or chooses else "no",
        "save_steps": config.save_steps or 1,
        "save_total_limit": 1,
        "report_to": "none",  # trackers get everything through context.log_metrics
        "push_to_hub": False,
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "dataloader_pin_memory": backend.device.type == "cuda",
    }
    if hasattr(kind, "max_length"):
        settings["max_length"] = None  # examples are cut, and counted, before
    with quiet_transformers():
        arguments = kind(**(settings | more))
    # One process drives one device; the trainer would multiply the batch by the number of visible ones.
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments


@dataclass(eq=False)
class StepBatches(Sampler[list[int]]):
    """Batches of rows in an epoch's random order, each optimiser step's sorted by length.

    Sorting saves pads, and does not change which rows a step learns from. The order is a function of seed and epoch, so
    resuming needs no generator's state. Each process gets its shard of a step, in equally many batches of about
    `batch_size` rows. If the last step has fewer rows than there are processes, rows are repeated.
    """

    lengths: Sequence[int]
    rows_per_step: int
    batch_size: int
    seed: int
    epoch: int = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def steps(self) -> Iterator[list[int]]:
        """Yield the rows of each step of the epoch, for all processes together."""
        generator = torch.Generator().manual_seed(integer(self.seed, "training order", self.epoch))
        order = torch.randperm(len(self.lengths), generator=generator).tolist()
        for start in range(0, len(order), self.rows_per_step):
            yield sorted(order[start : start + self.rows_per_step], key=lambda row: -self.lengths[row])

    def __len__(self) -> int:
        left = range(len(self.lengths), 0, -self.rows_per_step)
        return sum(self._count(min(self.rows_per_step, rows)) for rows in left)

    def __iter__(self) -> Iterator[list[int]]:
        for rows in self.steps():
            count = self._count(len(rows))
            own = shard(rows) if len(rows) >= world_size() else [rows[rank() % len(rows)]]
            even = [number * len(own) // count for number in range(count)]
            starts = even if world_size() > 1 else range(0, len(own), self.batch_size)
            yield from (list(own[start:end]) for start, end in pairwise([*starts, len(own)]))

    def _count(self, rows: int) -> int:
        largest_share, smallest_share = -(-rows // world_size()), max(1, rows // world_size())
        return min(smallest_share, -(-largest_share // self.batch_size))


class _Loader(DataLoader[Any]):
    """A data loader that passes the epoch to its batches, as accelerate's loaders do."""

    def set_epoch(self, epoch: int) -> None:
        self.batch_sampler.set_epoch(epoch)  # type: ignore[union-attr]


class LengthSortedTrainer:
    """A mixin for TRL's trainers: rows by `StepBatches`, from the data set's `length` column.

    A step's rows do not depend on the number of processes, which average gradients here.
    """

    args: Any
    train_dataset: Any
    data_collator: Any
    accelerator: Any
    model: Any
    optimizer: Any
    lr_scheduler: Any
    backend: ModelBackend

    def get_train_dataloader(self) -> DataLoader[Any]:
        args, size = self.args, self.args.per_device_train_batch_size
        rows_per_step = size * args.gradient_accumulation_steps * args.world_size
        batches = StepBatches(self.train_dataset["length"], rows_per_step, size, args.seed)
        pinned = args.dataloader_pin_memory
        return _Loader(self.train_dataset, batch_sampler=batches, collate_fn=self.data_collator, pin_memory=pinned)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        loss: torch.Tensor = super().training_step(model, inputs, num_items_in_batch)  # type: ignore[misc]
        if self.accelerator.sync_gradients:
            average_gradients(model.parameters())
        return loss

    def _clip_grad_norm(self, model: Any) -> float:
        return clip_gradients(list(model.parameters()), self.args.max_grad_norm)

    def _move_model_to_device(self, model: Any, device: torch.device) -> None:
        """Leave the model where it was loaded: on the device, or on the host to be sharded."""

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> LambdaLR:
        """Make the trainer's schedule, but warm up from above 0: else the first step learns nothing."""
        scheduler: LambdaLR = super().create_scheduler(num_training_steps, optimizer)  # type: ignore[misc]
        warmup, after_warmup = self.args.get_warmup_steps(num_training_steps), scheduler.lr_lambdas[0]

        def rate(step: int) -> float:
            return (step + 1) / (warmup + 1) if step < warmup else after_warmup(step)

        self.lr_scheduler = LambdaLR(scheduler.optimizer, rate)
        return self.lr_scheduler

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """Shard the model if the launch shards, and make the optimiser."""
        if self.backend.sharded:
            shard_model(self.model, self.backend)
        return self._optimizer()

    def _optimizer(self) -> torch.optim.Optimizer:
        return super().create_optimizer()  # type: ignore[misc]

    # Checkpoints hold trained weights and the optimiser's state by name, for any number of processes.

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        steps = self.lr_scheduler.last_epoch
        write_checkpoint(Path(output_dir), self._checkpoint_parameters(), self.optimizer, steps=steps)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        state = restore_checkpoint(Path(checkpoint), self._checkpoint_parameters(), self.optimizer)
        scheduler = self.lr_scheduler
        scheduler.last_epoch = state["steps"]
        rates = zip(scheduler.base_lrs, scheduler.lr_lambdas, strict=True)
        scheduler._last_lr = [peak * factor(scheduler.last_epoch) for peak, factor in rates]
        for group, rate in zip(self.optimizer.param_groups, scheduler.get_last_lr(), strict=True):
            group["lr"] = rate

    def _checkpoint_parameters(self) -> dict[str, torch.nn.Parameter]:
        """Map the trained parameters by name, with adapters that are trained earlier or later."""
        adapters = ("lora_", "modules_to_save", "trainable_tokens")
        named = self.model.named_parameters()
        return {name: p for name, p in named if p.requires_grad or any(part in name for part in adapters)}

    def _save(self, *args: Any, **kwargs: Any) -> None:
        """Save no model: `_save_optimizer_and_scheduler` saves the trained weights."""

    def _load_from_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        """Load nothing: `_load_optimizer_and_scheduler` loads the trained weights."""

    def _send_telemetry(self) -> None:
        """Send nothing."""

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write no card, which takes TRL longer than the checkpoint."""


@dataclass(eq=False)
class TrainerBridge(TrainerCallback):
    """A callback that carries a trainer's events to a `TrainContext`.

    Raises `TrainingError` at the first step whose loss or gradient is not finite, before weights are saved.
    """

    context: TrainContext
    description: str
    advice: str
    candidates: CandidatePolicies | None = None
    interrupted: bool = False
    _bar: Iterator[int] = field(default_factory=lambda: iter(()))
    _micro_batch: int | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        between = math.ceil(state.max_steps / FEWEST_CHECKPOINTS)
        state.save_steps = between if self.candidates else min(state.save_steps, between)
        each = args.gradient_accumulation_steps
        total = state.max_steps * each
        description = self.description if each == 1 else f"{self.description}, micro-batches"
        self._bar = iter(self.context.progress(range(state.global_step * each, total), description, total))
        self._micro_batch = next(self._bar, None)

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._micro_batch = next(self._bar, None)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # The last step of an epoch may have fewer micro-batches than the others.
        done = state.global_step * args.gradient_accumulation_steps
        while self._micro_batch is not None and self._micro_batch < done:
            self._micro_batch = next(self._bar, None)
        if self.context.should_stop():
            self.interrupted = True
            control.should_training_stop = True
            control.should_save = args.save_strategy != "no"

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        numbers = {name: value for name, value in (logs or {}).items() if isinstance(value, int | float)}
        for name in ("loss", "grad_norm"):
            if not math.isfinite(numbers.get(name, 0.0)):
                latest = self.context.checkpoints.latest()
                where = (
                    f"the checkpoint of step {latest[0]} is kept at {latest[1]}"
                    if latest
                    else "the model it started from is unchanged"
                )
                raise TrainingError(
                    f"{self.description}: {name} is {numbers[name]} at step {state.global_step}; {where}. {self.advice}"
                )
        if "loss" in numbers:  # not the summary at the end
            self.context.log_metrics(state.global_step, numbers)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # The trainer's checkpoint may be half-written; only whole ones are published to resume from.
        barrier()  # each process has written a part
        step = state.global_step
        written = Path(args.output_dir) / f"checkpoint-{step}"
        is_candidate = step % state.save_steps == 0 or step == state.max_steps  # not if the run is being stopped
        if self.candidates and is_candidate:
            self.context.log_metrics(step, self.candidates.judge(step))
        weights = self.candidates.weights() if self.candidates else {}

        def write(directory: Path) -> None:
            move_into(directory, written)
            if self.candidates:
                self.candidates.selection.save(step, weights, directory)

        self.context.checkpoints.save(step, write)


@dataclass(frozen=True)
class CandidatePolicies:
    """The policy that a trainer trains, and the selection among its checkpoints."""

    policy: CheckpointPolicy
    selection: CheckpointSelection

    def judge(self, step: int) -> dict[str, float]:
        """Judge the current policy, without dropout, as the candidate of `step`. Returns metrics."""
        with torch.no_grad(), evaluating(self.policy.model), self.policy.ready_to_sample():
            return self.selection.compare(step, self.policy)

    def weights(self) -> dict[str, torch.Tensor]:
        """Return the trained parameters by name: themselves, or if sharded copies gathered on the host."""
        trained = {name: p.data for name, p in self.policy.model.named_parameters() if p.requires_grad}
        return gathered_weights(trained) if is_sharded(self.policy.model) else trained

    @torch.no_grad()
    def choose(self) -> None:
        """Give the model the weights of the best candidate."""
        best = self.selection.best_weights()
        for name, weights in self.weights().items():
            weights.copy_(best[name])


def run_trainer(
    trainer: Trainer,
    context: TrainContext,
    description: str,
    setting: str,
    candidates: CandidatePolicies | None = None,
) -> None:
    """Run `trainer` to its end, from the stage's last checkpoint if there is one.

    If the launch shards, the model is sharded while it trains, and then `trainer.model` is a new one, whole on the
    host. With `candidates` it gets the best one's weights. `setting` is the config's name in a recipe ("sft"), for the
    advice in errors. Raises `TrainingError` if the loss is not finite, and `KeyboardInterrupt`, after a checkpoint, if
    the run was asked to stop.
    """
    advice = f"Try a lower learning rate (--set {setting}.learning_rate={trainer.args.learning_rate / 10:g})"
    bridge = TrainerBridge(context, description, advice, candidates)
    for noisy in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(noisy)
    trainer.add_callback(bridge)
    latest = context.checkpoints.latest()
    if candidates and latest:
        candidates.selection.load(latest[1])
    empty = empty_copy(trainer.model) if context.backend.sharded else None
    trainer.backend = context.backend
    # So that accelerate does not wrap it: `LengthSortedTrainer` averages the gradients.
    trainer.model._is_accelerate_prepared = world_size() > 1
    with quiet_transformers(), torch.enable_grad():
        trainer.train(resume_from_checkpoint=str(latest[1]) if latest else None)
    del trainer.model._is_accelerate_prepared
    trainer.accelerator.free_memory()
    if empty:
        trainer.optimizer = trainer.model_wrapped = None
        trainer.model = whole_model(empty, gathered_weights(dict(trainer.model.named_parameters())))
    trainer.model.eval()
    trainer.accelerator.wait_for_everyone()  # transformers looks into the directory at its end
    shutil.rmtree(trainer.args.output_dir, ignore_errors=True)
    if bridge.interrupted:
        raise KeyboardInterrupt
    if candidates:
        candidates.policy.model = trainer.model
        candidates.choose()


def trained_model(trainer: Trainer) -> Any:
    """Return the model that `trainer` trained, its adapters not merged."""
    model = trainer.model
    # TRL puts a bound forward on the instance: a copy would run the original.
    model.__dict__.pop("forward", None)
    return model
