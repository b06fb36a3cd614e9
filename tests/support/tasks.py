"""Tiny trainings, alone or, by `main`, in several processes, which keep what each ended with."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from time import sleep
from typing import Any

import pytest
import torch
from forks import OFFLOADED, SHARDED, together
from torch import Tensor
from torch.distributed.tensor import DTensor

from afarm.backend import Backend, CheckpointPolicy, Sampler, SamplingEngine, is_sharded
from afarm.core.config import BackendConfig
from afarm.core.errors import ModelError
from afarm.core.interfaces import Decoding, Method, MethodInputs, TrainContext
from afarm.core.records import JudgedPair, Output, Pair, Preference
from afarm.experiment.process_info import ProcessInfo
from afarm.storage import checkpoints
from afarm.storage.checkpoints import DirectoryCheckpoints, FollowedCheckpoints
from afarm.testing.contexts import KeyedReward, judge_context
from afarm.testing.examples import make_instructions
from afarm.testing.models import tiny_policy, tiny_reward_model
from afarm_plugins.dpo import DPOConfig
from afarm_plugins.quark import QuarkConfig
from afarm_plugins.reward_model import RewardModelConfig
from afarm_plugins.sft import SFTConfig
from afarm_plugins.vllm.config import VllmConfig
from afarm_plugins.vllm.engine import VllmEngine

PROCESS = ProcessInfo()
INSTRUCTIONS = make_instructions(13)
ANSWERS = [" ".join(f"w{(7 * n + k) % 40}" for k in range(1 + n % 5)) for n in range(26)]
STEPS = {"learning_rate": 1e-2, "num_train_epochs": 1, "save_steps": 2, "max_length": 40}
"""Four steps, the last of which has a row for one process only."""
HELD = ("sft", "dpo", "reward_model", "ppo_fitted_even")
"""Those of which is measured what a process with shards holds: that collects garbage and waits."""


def held_bytes() -> int:
    """The bytes of all tensors that this process holds, once gloo's threads have let go of what they sent.

    They let go of a layer's gradients at some time after the collective has ended.
    """
    before, held = None, tensor_bytes()
    while held != before:
        sleep(0.1)
        before, held = held, tensor_bytes()
    return held


def held_before(directory: Path) -> int | None:
    """The bytes held before a training in `directory`; None if they are not measured."""
    begins = not (directory / checkpoints.CHECKPOINTS).exists()
    measured = PROCESS.sharded and not PROCESS.offloads and directory.name in HELD
    return held_bytes() if begins and measured else None


def tensor_bytes() -> int:
    gc.collect()
    tensors = [x for x in gc.get_objects() if issubclass(type(x), Tensor) and not issubclass(type(x), DTensor)]
    storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in tensors if not x.is_meta}
    return sum(storages.values())


@dataclass
class Trained:
    """What a training ended with: weights by name, and a row of metrics for each that was logged."""

    weights: dict[str, Tensor]
    metrics: list[dict[str, float]] = field(default_factory=list)


def context(directory: Path, rows: list[dict[str, float]], before: int | None = None) -> TrainContext:
    """The first row of metrics also has the bytes `held` beyond those of `before`, if that is given."""

    def log(step: int, metrics: Mapping[str, float]) -> None:
        held = {"held": held_bytes() - before} if before is not None and not rows else {}
        rows.append({"step": step, **metrics, **held})

    directory.mkdir(parents=True, exist_ok=True)
    kept = DirectoryCheckpoints(directory) if PROCESS.is_main_process else FollowedCheckpoints(directory)
    config, several = BackendConfig(device="cpu"), PROCESS.is_distributed
    backend = Backend(config, is_distributed=several, sharded=PROCESS.sharded, offloads=PROCESS.offloads)
    return TrainContext(3, directory, backend, kept, log)


def demonstrations() -> list[Output]:
    return [Output(i, answer, "human") for i, answer in zip(INSTRUCTIONS, ANSWERS, strict=False)]


def preferences() -> list[JudgedPair]:
    pairs = [Pair(i, a, b) for i, a, b in zip(INSTRUCTIONS, ANSWERS[:13], ANSWERS[13:], strict=True)]
    return [JudgedPair(pair, Preference(pair.id, (n % 4) / 3)) for n, pair in enumerate(pairs)]


def prefer_long(pairs: Sequence[Pair], *, noiseless: bool = False) -> list[Preference]:
    assert noiseless, "checkpoints are selected by what the judge says"
    assert PROCESS.is_main_process, "the others have no business with judges"
    return [Preference(pair.id, float(len(pair.output_2) > len(pair.output_1))) for pair in pairs]


def own_policy(engine: SamplingEngine | None = None) -> CheckpointPolicy:
    """The policy to start from, as a launch loads it that may shard."""
    policy = tiny_policy()
    policy.backend = Backend(BackendConfig(device="cpu"), sharded=PROCESS.sharded, engine=engine)
    return policy


def method(
    made: Method,
    directory: Path,
    stop_after: int | None = None,
    *,
    reads_tokens: bool = False,
    engine: SamplingEngine | None = None,
) -> Trained:
    """Trained on the tiny data; with `stop_after` that many steps of it, as far as the checkpoint then."""
    rows: list[dict[str, float]] = []
    before = held_before(directory)
    start = own_policy(engine)
    inputs = MethodInputs(
        start,
        preferences=preferences(),
        reward_model=tiny_reward_model(start) if reads_tokens else KeyedReward(),
        unlabeled=INSTRUCTIONS,
        demonstrations=demonstrations(),
        validation=INSTRUCTIONS[:5],
        annotate=prefer_long,
        decoding=Decoding(max_new_tokens=6),
    )
    if stop_after is not None:
        asked = count(1)
        with pytest.raises(KeyboardInterrupt):
            made.train(inputs, replace(context(directory, rows, before), should_stop=lambda: next(asked) == stop_after))
        return Trained({}, rows)
    trained = made.train(inputs, context(directory, rows, before))
    assert isinstance(trained, CheckpointPolicy)
    # PPO's value adapter stays on the policy only where it is the very model that was trained.
    weights = {name: weight for name, weight in trained.model.state_dict().items() if ".value." not in name}
    return Trained(weights, rows)


def sft(directory: Path, stop_after: int | None = None) -> Trained:
    from afarm_plugins.sft import SFT

    config = SFTConfig(**{**STEPS, "num_train_epochs": 2}, per_device_train_batch_size=2, gradient_accumulation_steps=2)
    return method(SFT(config), directory, stop_after)


def feedme(directory: Path) -> Trained:
    from afarm_plugins.feedme import FeedME, FeedMEConfig

    # Where a gradient is rounding, Adam moves a weight by a share of the rate all the same: 1.4 % of it was seen on a
    # processor with AVX2, at this rate a quarter of the tolerance. A whole step is twenty times the tolerance.
    steps = {**STEPS, "learning_rate": 2e-4}
    return method(FeedME(FeedMEConfig(**steps, per_device_train_batch_size=4)), directory)


def reward_conditioning(directory: Path) -> Trained:
    """Its two new tokens give the embeddings, which every process holds whole, two rows more."""
    from afarm_plugins.reward_conditioning import RewardConditioning, RewardConditioningConfig

    return method(RewardConditioning(RewardConditioningConfig(**STEPS, per_device_train_batch_size=4)), directory)


def dpo(directory: Path) -> Trained:
    from afarm_plugins.dpo import DPO

    return method(DPO(DPOConfig(**STEPS, per_device_train_batch_size=4)), directory)


def dpo_adapters(directory: Path, stop_after: int | None = None) -> Trained:
    """Its checkpoint is chosen by an annotator."""
    from afarm_plugins.dpo import DPO

    config = DPOConfig(**STEPS, per_device_train_batch_size=4, lora={"r": 2}, checkpoint="best")
    return method(DPO(config), directory, stop_after)


def reward_model(directory: Path) -> Trained:
    from afarm_plugins.reward_model.bradley_terry import BradleyTerryRewardModel

    rows: list[dict[str, float]] = []
    before, start = held_before(directory), own_policy()
    config = RewardModelConfig(
        **{**STEPS, "num_train_epochs": 2, "learning_rate": 1e-3},  # at 1e-2 AdamW magnifies rounding too far
        per_device_train_batch_size=3,
        gradient_accumulation_steps=2,
        eval_fraction=0.2,
        eval_steps=1,
        early_stopping_patience=5,
    )
    fitted = BradleyTerryRewardModel.fit(preferences(), start, config, context(directory, rows, before))
    return Trained({**fitted.model.state_dict(), "mean and std": torch.tensor([fitted.mean, fitted.std])}, rows)


ROLLOUTS: Mapping[str, Any] = {
    "total_steps": 3,
    "rollout_batch_size": 9,
    "mini_batch_size": 4,
    "per_device_train_batch_size": 2,
    "per_device_rollout_batch_size": 3,
    "learning_rate": 1e-3,
    "warmup_steps": 0,
    "response_length": 6,
    "max_prompt_length": 30,
    "save_steps": 2,
}


def quark(directory: Path, stop_after: int | None = None) -> Trained:
    from afarm_plugins.quark import Quark

    return method(Quark(QuarkConfig(**ROLLOUTS, variant="all", num_quantiles=3, pool="keep")), directory, stop_after)


PPO_SETTINGS: Mapping[str, Any] = {**ROLLOUTS, "mini_batch_size": 4, "value_init": "sft", "kl_coef": 0.1}
TWO_STEPS: Mapping[str, Any] = {"total_steps": 2, "rollout_batch_size": 8, "mini_batch_size": 4}


def ppo(directory: Path, stop_after: int | None = None) -> Trained:
    """Its last minibatch has a row for one process only."""
    from afarm_plugins.ppo import PPO, PPOConfig

    return method(PPO(PPOConfig(**PPO_SETTINGS, checkpoint="last", temperature=0.9)), directory, stop_after)


def ppo_shared(directory: Path) -> Trained:
    """Adapters on one backbone, three responses per prompt, the checkpoint chosen by an annotator, advantages
    standardised by minibatch."""
    from afarm_plugins.ppo import PPO, PPOConfig

    settings = {**PPO_SETTINGS, "mini_batch_size": 5, "num_generations": 3, "whiten_advantages": "minibatch"}
    settings |= {"total_steps": 2, "save_steps": 1}
    return method(PPO(PPOConfig(**settings, layout="shared", lora={"r": 2})), directory)


def ppo_even(directory: Path, stop_after: int | None = None) -> Trained:
    """What sharded weights ask for: shares of one size. Its checkpoint is chosen by an annotator."""
    from afarm_plugins.ppo import PPO, PPOConfig

    settings = {**PPO_SETTINGS, "rollout_batch_size": 12, "mini_batch_size": 8}
    return method(PPO(PPOConfig(**settings, gradient_checkpointing=True)), directory, stop_after)


def ppo_fitted_even(directory: Path, stop_after: int | None = None) -> Trained:
    """A reward model that reads tokens, and a value model that starts from it."""
    from afarm_plugins.ppo import PPO, PPOConfig

    settings = {**PPO_SETTINGS, **TWO_STEPS, "value_init": "reward_model"}
    config = PPOConfig(**settings, checkpoint="last")
    return method(PPO(config), directory, stop_after, reads_tokens=True)


def quark_even(directory: Path) -> Trained:
    from afarm_plugins.quark import Quark

    return method(Quark(QuarkConfig(**{**ROLLOUTS, **TWO_STEPS}, num_quantiles=2)), directory)


def quark_adapters_even(directory: Path, stop_after: int | None = None) -> Trained:
    """Adapters, and the embeddings of control tokens, which every process holds whole."""
    from afarm_plugins.quark import Quark

    settings = {**ROLLOUTS, "rollout_batch_size": 12, "num_generations": 2, "num_quantiles": 2, "variant": "all"}
    return method(Quark(QuarkConfig(**settings, lora={"r": 2})), directory, stop_after)


def expert_iteration(directory: Path) -> Trained:
    """Two rounds, each sampled in four chunks. AdamW at ten times the rate magnifies the last bits to 6e-5."""
    from afarm_plugins.expert_iteration import ExpertIteration, ExpertIterationConfig
    from afarm_plugins.expert_iteration import expert_iteration as module

    config = ExpertIterationConfig(
        n=3, rounds=2, response_length=6, learning_rate=1e-3, num_train_epochs=1, per_device_train_batch_size=4
    )
    with pytest.MonkeyPatch.context() as patch:  # other tests of this process have their chunks whole
        patch.setattr(module, "PROMPTS_PER_FILE", 4)
        return method(ExpertIteration(config), directory)


def ppo_shared_even(directory: Path) -> Trained:
    from afarm_plugins.ppo import PPO, PPOConfig

    settings = {**PPO_SETTINGS, **TWO_STEPS, "save_steps": 1}
    return method(PPO(PPOConfig(**settings, layout="shared", shared_value="adapter", lora={"r": 2})), directory)


def quark_only_adapters_even(directory: Path) -> Trained:
    """Without control tokens, no weight that is kept whole is trained."""
    from afarm_plugins.quark import Quark

    settings = {**ROLLOUTS, **TWO_STEPS, "num_quantiles": 2, "variant": "top", "lora": {"r": 2}}
    return method(Quark(QuarkConfig(**settings)), directory)


class WatchedEngine(VllmEngine):
    """A server's, which is to be asked of shards where there are some: no process has gathered the policy for it."""

    def sampler(self, policy: CheckpointPolicy) -> Sampler:
        assert is_sharded(policy.model) == PROCESS.sharded
        return super().sampler(policy)


def by_server(variable: str) -> SamplingEngine:
    """The engine of the server whose address this environment variable holds."""
    return WatchedEngine(VllmConfig(max_concurrency=4), os.environ[variable], judge_context())


SERVED: Mapping[str, Any] = {**PPO_SETTINGS, **TWO_STEPS}


def ppo_by_server(directory: Path) -> Trained:
    """Adapters, sampled by a vLLM server; the checkpoint is chosen by an annotator."""
    from afarm_plugins.ppo import PPO, PPOConfig

    return method(PPO(PPOConfig(**SERVED, lora={"r": 2})), directory, engine=by_server(SERVER))


def ppo_by_stale_server(directory: Path) -> Trained:
    """The server does not follow the second step, which all processes are told."""
    from afarm_plugins.ppo import PPO, PPOConfig

    config = PPOConfig(**SERVED, lora={"r": 2})
    with pytest.raises(ModelError, match="holds other weights than the policy"):
        method(PPO(config), directory, engine=by_server(STALE_SERVER))
    return Trained({})


SERVER, STALE_SERVER = "TEST_VLLM_URL", "TEST_STALE_VLLM_URL"
"""Environment variables with the addresses of two vLLM servers of the tiny policy."""

Task = Callable[..., Trained]
TASKS: Mapping[str, Task] = {
    "sft": sft,
    "reward_model": reward_model,
    "dpo": dpo,
    "expert_iteration": expert_iteration,
    "quark": quark,
    "ppo": ppo,
    "ppo_shared": ppo_shared,
    "ppo_by_server": ppo_by_server,
}
SHARDED_TASKS: Mapping[str, Task] = {
    "sft": sft,
    "feedme": feedme,
    "reward_conditioning": reward_conditioning,
    "reward_model": reward_model,
    "dpo": dpo,
    "dpo_adapters": dpo_adapters,
    "expert_iteration": expert_iteration,
    "ppo_even": ppo_even,
    "ppo_fitted_even": ppo_fitted_even,
    "ppo_shared_even": ppo_shared_even,
    "quark_even": quark_even,
    "quark_adapters_even": quark_adapters_even,
    "quark_only_adapters_even": quark_only_adapters_even,
    "ppo_by_server": ppo_by_server,
    "ppo_by_stale_server": ppo_by_stale_server,
}
ON_HOST: Mapping[str, Task] = {name: SHARDED_TASKS[name] for name in ("sft", "dpo_adapters", "ppo_fitted_even")}
"""Those that are trained once more with shards on the host."""
ALL = {**TASKS, **SHARDED_TASKS}
STOPPED, SHARDED_STOPPED = ("sft", "quark", "ppo"), ("sft", "dpo_adapters", "ppo_even", "quark_adapters_even")
"""Those that are stopped after two steps and go on; a copy of what they left is kept."""


def main(directory: Path) -> None:
    """Run everything, each in forks of this process, and measure what one holds at most."""
    gc.freeze()
    together(partial(train_all, directory / "two", TASKS, STOPPED), 2)
    together(partial(train_all, directory / "sharded", SHARDED_TASKS, SHARDED_STOPPED), 2, **SHARDED)
    together(partial(train_all, directory / "on host", ON_HOST, ["sft"]), 2, **OFFLOADED)
    shutil.copytree(directory / "sharded" / "sft left", directory / "four" / "sft left")
    together(partial(go_on, directory / "four"), 4, **SHARDED)
    together(partial(measure, directory / "memory.json"), 2, **SHARDED)


def begin() -> None:
    """Read which process this is."""
    global PROCESS
    PROCESS = ProcessInfo.of(os.environ)
    checkpoints.PAUSE = 0.02  # a tiny step takes less than what one waits between two looks
    os.environ.pop("ACCELERATE_USE_FSDP", None)  # as the command line does, lest accelerate wraps models itself


def train_all(directory: Path, named: Mapping[str, Task], stopped: Collection[str]) -> None:
    begin()
    directory.mkdir(exist_ok=True)
    for name, task in named.items():
        rows = []
        if name in stopped:
            rows = task(directory / name, stop_after=2).metrics
            torch.distributed.barrier()
            if PROCESS.is_main_process:
                shutil.copytree(directory / name, directory / f"{name} left")
            torch.distributed.barrier()
        trained = task(directory / name)
        save(Trained(trained.weights, [*rows, *trained.metrics]), directory / f"{name}-{PROCESS.rank}.pt")


def go_on(directory: Path) -> None:
    """Go on with what another launch has left of SFT."""
    begin()
    save(sft(directory / "sft left"), directory / f"sft left-{PROCESS.rank}.pt")


def measure(printed: Path) -> None:
    """Measure the memory of a tiny SFT."""
    from benchmarks import memory_of_stage  # it reads which process this is

    with printed.open("a") as file, redirect_stdout(file):
        memory_of_stage.main(["sft", "--rows", "1", "--tokens", "16"])


def save(trained: Trained, path: Path) -> None:
    torch.save((trained.weights, trained.metrics), path)
