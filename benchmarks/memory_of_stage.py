"""Memory that a stage takes at most in each process: `python -m benchmarks.memory_of_stage sft --model DIR`.

Under torchrun with `ACCELERATE_USE_FSDP=true` the processes shard the stage. The first prints a JSON line: for each
moment of the stage's second step the bytes that tensors held at most in any process (what a card's allocator would
count, from the allocations that torch's profiler records), and the arithmetic of `afarm memory` for the same sizes.
`--largest` tells what it was at the fullest moment. Without `--model` it is a tiny one.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.profiler import ProfilerActivity, profile

from afarm import (
    Decoding,
    Instruction,
    JudgedPair,
    MethodInputs,
    Output,
    Pair,
    Preference,
    Sample,
    TrainContext,
)
from afarm.backend import Backend, CheckpointPolicy, TorchRewardModel, Training
from afarm.backend.distributed import all_gather_object
from afarm.core.config import BackendConfig
from afarm.experiment.process_info import ProcessInfo
from afarm.storage.checkpoints import DirectoryCheckpoints, FollowedCheckpoints
from afarm.testing.models import tiny_policy
from afarm_plugins.memory.estimate import Held, Workload

PROCESS = ProcessInfo.of(os.environ)
os.environ.pop("ACCELERATE_USE_FSDP", None)  # as the command line does, lest accelerate wraps models itself
MARK = "moment: "

T = TypeVar("T")


class OneByOne(Backend):
    """A backend that has no threads beside the one that is watched, as on a card."""

    def together(self, *calls: Callable[[], T]) -> list[T]:
        return [call() for call in calls]


class Watch:
    """The most that tensors hold in each moment of what is watched, by bytes and by what allocated them."""

    def __init__(self) -> None:
        self.on_host: Sequence[nn.Module] = ()
        self.peaks: dict[str, int] = {}
        self.largest: Mapping[str, int] = {}
        self._profile: profile | None = None
        self._mark: Any = None
        self._before = 0

    @property
    def began(self) -> bool:
        return self._profile is not None

    def begin(self, moment: str) -> None:
        """Begin a moment, which ends the one before it."""
        if not self.began:
            self._before = held_bytes(self.on_host)
            self._profile = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
            self._profile.start()
        if self._mark:
            self._mark.__exit__(None, None, None)
        self._mark = torch.profiler.record_function(MARK + moment)
        self._mark.__enter__()

    def end(self) -> None:
        """End the last moment, and take the peaks of all."""
        assert self._profile is not None
        self._mark.__exit__(None, None, None)
        self._profile.stop()
        events = list(self._profile.profiler.kineto_results.experimental_event_tree())  # type: ignore[union-attr]
        starts = sorted((e.start_time_ns, e.name.removeprefix(MARK)) for e in flat(events) if e.name.startswith(MARK))
        held, live, most = self._before, dict[int, tuple[int, str]](), 0
        for when, address, size, by in sorted(allocations(events)):
            known = live.pop(address, (0, ""))[0]
            held += max(size, 0) - (known or max(-size, 0))  # what is not known was there before
            if size > 0:
                live[address] = size, by
            moment = next(name for start, name in reversed(starts) if start <= when)
            self.peaks[moment] = max(self.peaks.get(moment, 0), held)
            if held > most:
                most, self.largest = held, by_what(live.values())


def held_bytes(but: Sequence[nn.Module]) -> int:
    """Bytes of all tensors of this process but the weights of some models."""
    gc.collect()
    left_out = {p.untyped_storage().data_ptr() for model in but for p in model.parameters()}
    tensors = [x for x in gc.get_objects() if issubclass(type(x), Tensor) and not issubclass(type(x), DTensor)]
    storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in tensors if not x.is_meta}
    return sum(size for address, size in storages.items() if address not in left_out)


def flat(events: Iterable[Any]) -> Iterator[Any]:
    for event in events:
        yield event
        yield from flat(event.children)


def allocations(events: Iterable[Any], above: tuple[str, ...] = ()) -> Iterator[tuple[int, int, int, str]]:
    """Yield (time, address, bytes, by what) of all that was allocated, or freed with bytes below 0.

    Without gloo's own copies of what it sends, which NCCL does not make: its threads free them unseen.
    """
    for event in events:
        if isinstance(what := event.extra_fields, torch._C._profiler._ExtraFields_Allocation):
            yield event.start_time_ns, what.ptr, what.alloc_size, " < ".join(reversed(above[-3:]))
        elif not event.name.startswith("c10d::"):
            yield from allocations(event.children, (*above, event.name[:40]))


def by_what(live: Iterable[tuple[int, str]]) -> Mapping[str, int]:
    sums: Counter[str] = Counter()
    for size, by in live:
        sums[by] += size
    return dict(sums.most_common(12))


# ------------------------------------------------------------------------------------------------------------- stages


def text(rows: int, tokens: int) -> list[str]:
    """Texts of more than so many tokens, of which none is the other."""
    return [f"{row} " + "word " * tokens for row in range(rows)]


def context(backend: Backend, directory: Path, log: Any) -> TrainContext:
    checkpoints = DirectoryCheckpoints(directory) if PROCESS.is_main_process else FollowedCheckpoints(directory)
    return TrainContext(0, directory, backend, checkpoints, log)


class Steps:
    """A log of training by epochs, which watches its second step."""

    def __init__(self, watch: Watch):
        self.watch = watch

    def __call__(self, step: int, metrics: Mapping[str, float]) -> None:
        if "loss" in metrics and step == 1:
            self.watch.begin("learning")
        if "loss" in metrics and step == 2:
            self.watch.end()


def by_epochs(a: argparse.Namespace) -> dict[str, Any]:
    """Settings of two steps, with `passes` forward passes in each process."""
    return {
        "per_device_train_batch_size": a.rows, "gradient_accumulation_steps": PROCESS.size * a.passes,
        "max_length": a.tokens, "num_train_epochs": 1, "save_steps": 0, "gradient_checkpointing": a.checkpointing,
        "lora": {} if a.lora else None,
    }  # fmt: skip


def pairs(a: argparse.Namespace) -> list[JudgedPair]:
    """As many as two steps take."""
    count = 2 * a.rows * PROCESS.size * a.passes
    both = [Pair(Instruction(f"Write {row}."), f"a {x}", f"b {x}") for row, x in enumerate(text(count, a.tokens))]
    return [JudgedPair(pair, Preference(pair.id, 1.0)) for pair in both]


def sft(a: argparse.Namespace, policy: CheckpointPolicy, directory: Path, watch: Watch) -> list[Held]:
    from afarm_plugins.sft import SFT, SFTConfig

    config, log = SFTConfig(**by_epochs(a)), Steps(watch)
    answers = text(2 * a.rows * PROCESS.size * a.passes, a.tokens)
    demonstrations = [Output(Instruction(f"Write {row}."), answer, "human") for row, answer in enumerate(answers)]
    if PROCESS.sharded:
        watch.on_host = [policy.model]
    inputs = MethodInputs(policy, demonstrations=demonstrations)
    SFT(config).train(inputs, context(policy.backend, directory, log))
    return Workload(policy.model.config, policy.backend.config, PROCESS.size).training(config)


def dpo(a: argparse.Namespace, policy: CheckpointPolicy, directory: Path, watch: Watch) -> list[Held]:
    from afarm_plugins.dpo import DPO, DPOConfig

    config, log = DPOConfig(**by_epochs(a)), Steps(watch)
    if PROCESS.sharded:
        watch.on_host = [policy.model]
    inputs = MethodInputs(policy, preferences=pairs(a))
    DPO(config).train(inputs, context(policy.backend, directory, log))
    return Workload(policy.model.config, policy.backend.config, PROCESS.size).training(config, pairs=True)


def fit_reward(a: argparse.Namespace, policy: CheckpointPolicy, directory: Path, watch: Watch) -> list[Held]:
    from afarm_plugins.reward_model import RewardModelConfig, UnfittedBradleyTerry

    config, log = RewardModelConfig(**by_epochs(a), eval_fraction=0), Steps(watch)
    if PROCESS.sharded:
        watch.on_host = [policy.model]
    UnfittedBradleyTerry.fit(pairs(a), policy, config, context(policy.backend, directory, log))
    return Workload(policy.model.config, policy.backend.config, PROCESS.size).training(config, scores=True)


def sample(a: argparse.Namespace, policy: CheckpointPolicy, directory: Path, watch: Watch) -> list[Held]:
    """A batch of samples in one process, all of them as long as they may be."""
    prompts = [Instruction(written) for written in text(a.rows, a.tokens // 2)]
    longest = max(map(len, policy.prompt_ids(prompts)))
    decoding = Decoding(max_new_tokens=a.tokens // 2, per_device_batch_size=a.rows)
    endless(policy)
    watch.begin("sampling")
    list(policy.sample(prompts, decoding, seed=0))
    watch.end()
    return Workload(policy.model.config, policy.backend.config).sampling(a.rows, longest, decoding.max_new_tokens)


def scored(a: argparse.Namespace, policy: CheckpointPolicy, directory: Path, watch: Watch) -> list[Held]:
    """The best of `rows` samples of one prompt: two batches, of which the second is watched."""
    from afarm_plugins.best_of_n.best_of_n import BestOfNPolicy

    [written] = text(1, a.tokens // 2)
    prompts = [Instruction(f"{written} {row}") for row in range(2)]
    longest = max(map(len, policy.prompt_ids(prompts)))
    decoding = Decoding(max_new_tokens=a.tokens // 2, per_device_batch_size=a.rows)
    endless(policy)
    best = BestOfNPolicy(policy, fitted(policy, directory), n=a.rows)
    score = best._scores

    def watched(instructions: Sequence[Instruction], samples: Sequence[Sample]) -> list[float]:
        watch.begin("scoring")
        try:
            return score(instructions, samples)
        finally:
            watch.begin("sampling")

    best._scores = watched
    watch.begin("sampling")
    list(best.sample(prompts, decoding, seed=0))
    watch.end()
    workload = Workload(policy.model.config, policy.backend.config)
    return workload.sampling(a.rows, longest, decoding.max_new_tokens, scored=True)


def endless(policy: CheckpointPolicy) -> None:
    """Have no response end before it must: by a token that is as good as never drawn."""
    policy.model.generation_config.eos_token_id = None
    policy.tokenizer.eos_token = policy.tokenizer.convert_ids_to_tokens(0)


def fitted(policy: CheckpointPolicy, directory: Path) -> TorchRewardModel:
    """A reward model as a run loads it."""
    model = TorchRewardModel.make_classifier(policy)
    TorchRewardModel(model, policy.tokenizer, policy.template, policy.backend).save(directory / "reward")
    policy.backend.barrier()
    del model
    return TorchRewardModel.load(directory / "reward", context(policy.backend, directory, None))


def on_policy(a: argparse.Namespace) -> dict[str, Any]:
    """Settings of two steps: each samples, reads and takes two optimiser steps."""
    batch, half = a.rows * PROCESS.size * a.passes, a.tokens // 2
    return {
        "total_steps": 2, "warmup_steps": 0, "rollout_batch_size": 2 * batch, "mini_batch_size": batch,
        "per_device_train_batch_size": a.rows, "per_device_rollout_batch_size": 2 * a.rows, "max_prompt_length": half,
        "response_length": half, "checkpoint": "last", "lora": {} if a.lora else None, "save_steps": 2,
        "gradient_checkpointing": a.checkpointing,
    }  # fmt: skip


def inputs_of(policy: CheckpointPolicy, config: Any, directory: Path) -> MethodInputs:
    """Inputs of an on-policy method, whose prompts are nearly as long as they may be."""
    endless(policy)
    around = len(policy.prompt_ids([Instruction("")])[0])
    written = text(2 * config.rollout_batch_size, config.max_prompt_length - around - 8)
    return MethodInputs(
        policy, reward_model=fitted(policy, directory), unlabeled=[Instruction(prompt) for prompt in written]
    )


def ppo(a: argparse.Namespace, policy: CheckpointPolicy, directory: Path, watch: Watch) -> list[Held]:
    from afarm_plugins.ppo import PPOConfig
    from afarm_plugins.ppo import ppo as method

    config = PPOConfig(**on_policy(a), num_ppo_epochs=1)
    inputs = inputs_of(policy, config, directory)
    with second_step_watched(method, watch) as log:
        method.train_ppo(config, inputs, context(policy.backend, directory, log))
    return Workload(policy.model.config, policy.backend.config, PROCESS.size).on_policy(config)


def quark(a: argparse.Namespace, policy: CheckpointPolicy, directory: Path, watch: Watch) -> list[Held]:
    from afarm_plugins.quark import QuarkConfig
    from afarm_plugins.quark import quark as method

    config = QuarkConfig(**on_policy(a), num_epochs=1)
    inputs = inputs_of(policy, config, directory)
    with second_step_watched(method, watch) as log:
        method.train_quark(config, inputs, context(policy.backend, directory, log))
    return Workload(policy.model.config, policy.backend.config, PROCESS.size).on_policy(config)


@contextmanager
def second_step_watched(method: ModuleType, watch: Watch) -> Iterator[Callable[[int, Mapping[str, float]], None]]:
    """Watch the second step of an on-policy method, by what its loop calls. Yields the log that ends watching."""
    rollout, begin_update = method.rollout, method.begin_update

    def watched_rollout(training: Training, step: int, *more: Any) -> Any:
        if step != 1:
            return rollout(training, step, *more)
        watch.begin("sampling")
        drawn = rollout(training, step, *more)
        watch.begin("reading")
        return drawn

    def watched_update(training: Training, step: int) -> float:
        if step == 1:
            watch.begin("learning")
        return begin_update(training, step)

    def log(step: int, metrics: Mapping[str, float]) -> None:
        if step == 2 and "lr" in metrics:
            watch.end()

    with patch.multiple(method, rollout=watched_rollout, begin_update=watched_update):
        yield log


Stage = Callable[[argparse.Namespace, CheckpointPolicy, Path, Watch], list[Held]]
STAGES: Mapping[str, Stage] = {
    "sft": sft, "sample": sample, "best-of-n": scored, "fit-reward": fit_reward, "dpo": dpo, "ppo": ppo, "quark": quark,
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--model", help="a directory: its weights are mapped, not copied")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--rows", type=int, default=2, help="rows of a forward pass in each process")
    parser.add_argument("--tokens", type=int, default=128, help="of prompt and response together")
    parser.add_argument("--passes", type=int, default=1, help="forward passes per step")
    parser.add_argument("--lora", action="store_true")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--largest", action="store_true", help="tell what the tensors of the fullest moment were")
    a = parser.parse_args(arguments)
    config = BackendConfig(device="cpu", threads=1, dtype=a.dtype, cpu_tuning=False)  # what is freed is given back
    backend = OneByOne(config, is_distributed=PROCESS.is_distributed, sharded=PROCESS.sharded)
    watch = Watch()
    policy = backend.load_policy(a.model) if a.model else layered(backend)
    with tempfile.TemporaryDirectory() as own:
        directory = Path(all_gather_object(own)[0])  # of the first process, as all see one output directory
        counted = STAGES[a.stage](a, policy, directory, watch)
        found = all_gather_object(watch.peaks)
    if PROCESS.is_main_process:
        row: dict[str, Any] = {"measured": {moment: max(peaks[moment] for peaks in found) for moment in watch.peaks}}
        row["counted"] = {held.moment: {**asdict(held), "total": held.total} for held in counted}
        row |= {"largest": watch.largest} if a.largest else {}
        sys.stdout.write(json.dumps(row) + "\n")


def layered(backend: Backend) -> CheckpointPolicy:
    """A tiny policy whose layers are nearly all of it, as a large model's are."""
    policy = tiny_policy(hidden_size=128, intermediate_size=512, num_hidden_layers=12, num_attention_heads=4)
    policy.backend = backend
    return policy


if __name__ == "__main__":
    main()
