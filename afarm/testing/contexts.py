"""Contexts for plugins under test, without a farm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from afarm.core.interfaces import AnnotateContext, BuildContext, RewardModel, TrainContext
from afarm.core.judge import Ask
from afarm.core.records import Instruction, Score
from afarm.core.seeding import uniform
from afarm.storage.checkpoints import DirectoryCheckpoints
from afarm.testing.fake_judge import FakeJudgeClient

if TYPE_CHECKING:
    from afarm.backend import Backend


class KeyedReward(RewardModel):
    """Scores each (instruction, output) with a keyed draw from [-1, 1): arbitrary, but always the same."""

    def score(self, instructions: Sequence[Instruction], outputs: Sequence[str]) -> list[Score]:
        return [Score(2 * uniform("reward", i.id, o) - 1) for i, o in zip(instructions, outputs, strict=True)]


class MetricsRecorder:
    """A `log_metrics` that keeps its lines as (step, metrics)."""

    def __init__(self) -> None:
        self.lines: list[tuple[int, dict[str, float]]] = []

    def __call__(self, step: int, metrics: Mapping[str, float]) -> None:
        self.lines.append((step, dict(metrics)))


def annotate_context(seed: int = 0, ask: Ask | None = None) -> AnnotateContext:
    """Make a context for annotators; `ask` is a new `FakeJudgeClient` by default."""
    return AnnotateContext(seed, FakeJudgeClient() if ask is None else ask)


def judge_context(reward_model: RewardModel | None = None) -> BuildContext:
    """Make a context for judges that open `reward_model` (default: `KeyedReward`); a backend loads torch."""
    opened = reward_model or KeyedReward()
    return BuildContext(lambda name: opened, identify=lambda name: name, source="test", backend=cpu_backend)


def cpu_backend(timeout: float = 600, is_distributed: bool = False) -> Backend:
    """Make a backend on the CPU, of this process or of a launch whose processes wait `timeout` seconds."""
    from afarm.backend import Backend
    from afarm.core.config import BackendConfig

    return Backend(BackendConfig(device="cpu", timeout=timeout), is_distributed=is_distributed)


def train_context(directory: Path, seed: int = 0, log_metrics: MetricsRecorder | None = None) -> TrainContext:
    """Make a context for training on the CPU in `directory`, from its newest checkpoint. Loads torch."""
    directory.mkdir(parents=True, exist_ok=True)
    return TrainContext(
        seed=seed,
        directory=directory,
        backend=cpu_backend(),
        checkpoints=DirectoryCheckpoints(directory),
        log_metrics=MetricsRecorder() if log_metrics is None else log_metrics,
    )
