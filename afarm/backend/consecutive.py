"""Several trainings in one stage, one after the other: members of an ensemble, or rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from afarm.core.interfaces import Checkpoints, TrainContext


def after(context: TrainContext, steps: int, *, seed: int) -> TrainContext:
    """`context` for a training that follows `steps` steps of others and counts its own from 1.

    In the log and in the checkpoints its steps come after theirs; it is shown no checkpoint of theirs.
    """

    def log_metrics(step: int, metrics: Mapping[str, float]) -> None:
        context.log_metrics(steps + step, metrics)

    checkpoints = _After(context.checkpoints, steps)
    return replace(context, seed=seed, checkpoints=checkpoints, log_metrics=log_metrics)


@dataclass
class _After:
    whole: Checkpoints
    steps: int

    def save(self, step: int, write: Callable[[Path], None]) -> None:
        self.whole.save(self.steps + step, write)

    def latest(self) -> tuple[int, Path] | None:
        found = self.whole.latest()
        return (found[0] - self.steps, found[1]) if found and found[0] > self.steps else None
