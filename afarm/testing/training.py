"""Promises of everything that trains: it can be interrupted, and does not change its inputs."""

from __future__ import annotations

import gc
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from afarm.core.interfaces import Policy, RewardModel, TrainContext
from afarm.testing.conformance import require
from afarm.testing.contexts import MetricsRecorder, train_context

T = TypeVar("T")
Line = tuple[int, dict[str, float]]

MEASURES_TIME = re.compile("time|second|speed")
"""Names of metrics that differ from run to run."""


# ----------------------------------------------------------------------------------------------------------- weights


def copy_weights(component: object) -> dict[str, Any]:
    """Copy the weights of a policy or reward model and of others inside it; empty without a `model`."""
    state: Callable[[], Mapping[str, Any]] = getattr(getattr(component, "model", None), "state_dict", dict)
    copied = {path: weight.detach().clone() for path, weight in state().items()}
    for name, value in getattr(component, "__dict__", {}).items():
        if isinstance(value, Policy | RewardModel):
            copied |= {f"{name}.{path}": weight for path, weight in copy_weights(value).items()}
    return copied


def equal_weights(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Compare weights as copied by `copy_weights`, to the last bit."""
    return one.keys() == other.keys() and all(weight.equal(other[path]) for path, weight in one.items())


@contextmanager
def check_untouched(component: object, broken: str, read: Callable[[], object]) -> Iterator[None]:
    """Check that the block changes neither a component's weights nor what `read` returns."""
    before, weights = read(), copy_weights(component)
    yield
    require(equal_weights(copy_weights(component), weights) and read() == before, broken)


# ----------------------------------------------------------------------------------------------------- interruptions


class Killed(BaseException):
    """Stands for a kill: nothing in between may catch it."""


class InterruptedLog(MetricsRecorder):
    """A `log_metrics` that keeps what `metrics.jsonl` would over several trainings, and kills the first."""

    def __init__(self) -> None:
        super().__init__()
        self.kills = True
        self.killed_at = 0
        self.new_lines = 0
        self.resumed_from = 0
        self.repeated: set[int] = set()

    def resume(self, checkpoint: int | None) -> None:
        """Drop the lines after the step of the checkpoint, as a resumed stage does."""
        self.lines = [line for line in self.lines if checkpoint is not None and line[0] <= checkpoint]
        self.kills, self.new_lines, self.resumed_from = False, 0, checkpoint or 0

    def __call__(self, step: int, metrics: Mapping[str, float]) -> None:
        if self.kills and len({step, *(before for before, _ in self.lines)}) == 3:
            self.killed_at = step
            raise Killed
        if step < self.resumed_from:
            self.repeated.add(step)
        if (step, dict(metrics)) not in self.lines:  # resumed at its end, training logs its last line again
            self.new_lines += 1
            super().__call__(step, metrics)


@contextmanager
def freeze_modules() -> Iterator[None]:
    """Keep modules out of garbage collection meanwhile: half of a check's time goes there."""
    is_frozen = gc.get_freeze_count() > 0
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        if not is_frozen:
            gc.unfreeze()


@freeze_modules()
def check_goes_on(
    train: Callable[[TrainContext], T],
    as_expected: Callable[[T], bool],
    expected_lines: Sequence[Line],
    directory: Path,
) -> None:
    """Check that `train` gives the same result when it is killed, resumed, stopped and resumed again.

    It is killed as it logs its third step; with fewer steps there is nothing to resume. All calls share `directory`.
    `as_expected` compares a result with an uninterrupted training's, which logs `expected_lines`. Raises
    `ConformanceError` naming the broken promise.
    """
    log = InterruptedLog()

    def resumed() -> TrainContext:
        context = train_context(directory, log_metrics=log)
        latest = context.checkpoints.latest()
        log.resume(latest and latest[0])
        return context

    try:
        train(train_context(directory, log_metrics=log))
    except Killed:
        pass
    else:
        return
    try:
        stopped = train(replace(resumed(), should_stop=lambda: log.new_lines > 0))
    except KeyboardInterrupt:
        pass
    else:
        require(as_expected(stopped), "asked to stop, training must raise KeyboardInterrupt, not return half its work")
    end = train(resumed())
    require(as_expected(end), "killed and gone on with, stopped and gone on with, training must end as it would have")
    again = f"gone on with from step {log.resumed_from}, training must not learn steps before it again"
    require(not log.repeated, f"{again}: {sorted(log.repeated)}")
    # The step that it was killed at may have been saved but not logged
    ours, theirs = ([line for line in lines if line[0] != log.killed_at] for lines in (log.lines, expected_lines))
    check_same_lines(ours, theirs, "killed and gone on with")
    finished = train(resumed())  # as if killed after the last step, before the result was kept
    require(as_expected(finished), "killed and gone on with at its very end, training must end as it had")


def check_same_lines(lines: Sequence[Line], expected: Sequence[Line], how: str, apart: float = 0.0) -> None:
    """Check that trained in another way, but for rounding by a share `apart`, the same metrics are logged."""

    def names(log: Sequence[Line]) -> list[tuple[int, list[str]]]:
        return [(step, sorted(metrics)) for step, metrics in log]

    broken = f"{how}, training must log the metrics that it would have"
    require(names(lines) == names(expected), f"{broken}: {names(expected)}, not {names(lines)}")
    for (step, metrics), (_, others) in zip(lines, expected, strict=True):
        for name, value in metrics.items():
            is_same = value == others[name] or math.isclose(value, others[name], rel_tol=apart, abs_tol=apart)
            told = f"{broken}: step {step}, {name}: {others[name]:.4g}, not {value:.4g}"
            require(is_same or bool(MEASURES_TIME.search(name)), told)


def check_metrics(lines: Sequence[Line]) -> None:
    """Check that logged metrics are finite numbers in the order of steps."""
    steps = [step for step, _ in lines]
    require(steps == sorted(steps), f"metrics must be logged in the order of steps, not {steps}")
    for step, line in lines:
        for name, value in line.items():
            number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            require(number, f"step {step}: metric {name!r} must be a finite number, not {value!r}")
        json.dumps(line)
