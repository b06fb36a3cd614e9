"""Differences between two runs: settings, versions, judging, and instructions that flipped.

A win rate moves for three reasons, and they call for different cures. On each instruction that both runs have, the
first of these that holds is the reason:

    reference   the reference's output differs
    policy      the system's output differs
    label       both outputs are the same, and the judge's label differs

So the change of the win rate is the sum of what each reason contributes, and of the instructions (and usable labels)
that only one run has.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Literal

from afarm import JudgedPair, Row, RunRecord, read_run, standard_error
from afarm.results import OUTPUTS, EvaluationProtocol, comparable, differences, finite_number, read_preferences

Reason = Literal["label", "policy", "reference"]
REASONS: tuple[Reason, ...] = ("label", "policy", "reference")


@dataclass(frozen=True, slots=True)
class Change:
    """An instruction on which runs differ: the system's win `before` and `now`, None without an answer."""

    instruction: str
    input: str
    reason: Reason
    before: float | None
    now: float | None

    @property
    def flip(self) -> bool:
        return _side(self.before) != _side(self.now)


def _side(win: float | None) -> int | None:
    return None if win is None else (win > 0.5) - (win < 0.5)


@dataclass(frozen=True, slots=True)
class Contribution:
    """A reason's `changed` instructions, its `flips`, and its `points` over labels usable in both runs."""

    changed: int = 0
    flips: int = 0
    points: float = 0.0


@dataclass(frozen=True, slots=True)
class Diff:
    """The differences between two runs.

    `settings`, `versions` and `stages` are sentences, one per difference; `incomparable` are the reasons why their win
    rates cannot be compared. `difference` is the paired one, in points, over the `shared` instructions with two usable
    labels, with its standard error, clustered by instruction. `metrics` are (name, before, now).
    """

    runs: tuple[str, str]
    settings: tuple[str, ...]
    versions: tuple[str, ...]
    stages: tuple[str, ...]
    incomparable: tuple[str, ...]
    metrics: tuple[tuple[str, float | None, float | None], ...]
    shared: int
    only_first: int
    only_second: int
    difference: float | None
    standard_error: float | None
    contributions: Mapping[Reason, Contribution] = field(default_factory=dict)
    changes: tuple[Change, ...] = ()

    def to_row(self) -> Row:
        return {**asdict(self), "changes": [{**asdict(change), "flip": change.flip} for change in self.changes]}


def diff_runs(first: Path, second: Path) -> Diff:
    """Compare the runs in two directories. Raises `DataError` naming the file that cannot be read."""
    one, two = read_run(first), read_run(second)
    for record in (one, two):
        record.require_results()
    before, now = _labels(first), _labels(second)
    shared = [key for key in before if key in now]
    changes = [change for key in shared if (change := _change(before[key], now[key])) is not None]
    wins = [(before[key].win, now[key].win) for key in shared]
    gaps = [(task, b - a) for (task, _), (a, b) in zip(shared, wins, strict=True) if a is not None and b is not None]
    values = [gap for _, gap in gaps]
    error = standard_error(values, [task for task, _ in gaps])
    protocols = [EvaluationProtocol.from_row(run.results[0].protocol) for run in (one, two) if run.results]
    return Diff(
        runs=(one.name, two.name),
        settings=tuple(differences(one.section("config"), two.section("config"))),
        versions=tuple(differences(one.section("versions"), two.section("versions"))),
        stages=tuple(_stages(one, two)),
        incomparable=tuple(comparable(*protocols)) if len(protocols) == 2 else ("a run has no result",),
        metrics=tuple(_metrics(one, two)),
        shared=len(gaps),
        only_first=sum(key not in now for key in before),
        only_second=sum(key not in before for key in now),
        difference=100 * fmean(values) if values else None,
        standard_error=None if error is None else 100 * error,
        contributions={reason: _contribution(reason, changes, len(gaps)) for reason in REASONS},
        changes=tuple(changes),
    )


Key = tuple[str, int]
"""An instruction's id, and the number of the judgement among its own."""


def _labels(directory: Path) -> dict[Key, JudgedPair]:
    path = directory / OUTPUTS
    labels: dict[Key, JudgedPair] = {}
    for row in read_preferences(path) if path.is_file() else ():
        instruction, number = row.pair.instruction.id, 0
        while (instruction, number) in labels:
            number += 1
        labels[instruction, number] = row
    return labels


def _change(before: JudgedPair, now: JudgedPair) -> Change | None:
    """The change between the judgements of one instruction, None if there is none."""
    reason: Reason = "label"
    if before.pair.output_1 != now.pair.output_1:
        reason = "reference"
    elif before.pair.output_2 != now.pair.output_2:
        reason = "policy"
    elif before.win == now.win:
        return None
    task = now.pair.instruction
    return Change(task.instruction, task.input, reason, before.win, now.win)


def _contribution(reason: Reason, changes: Sequence[Change], shared: int) -> Contribution:
    by_reason = [change for change in changes if change.reason == reason]
    gained = math.fsum(c.now - c.before for c in by_reason if c.now is not None and c.before is not None)
    return Contribution(len(by_reason), sum(c.flip for c in by_reason), 100 * gained / shared if shared else 0.0)


def _stages(one: RunRecord, two: RunRecord) -> Iterator[str]:
    """Stages whose keys differ; one that is not listed is one and the same artifact."""
    keys = [{stage["stage"]: stage.get("key") for stage in record.stages} for record in (one, two)]
    for stage in dict.fromkeys([*keys[0], *keys[1]]):
        was, is_now = (of_run.get(stage) for of_run in keys)
        if was is None or is_now is None:
            yield f"{stage}: only in the {'second' if was is None else 'first'}"
        elif was != is_now:
            yield f"{stage}: {was[:8]} → {is_now[:8]}"


def _metrics(one: RunRecord, two: RunRecord) -> Iterator[tuple[str, float | None, float | None]]:
    """The metrics of each evaluator against the first reference of each run, if they differ."""
    metrics = []
    for record in (one, two):
        results = [result for result in record.results if result.reference == record.results[0].reference]
        metrics.append({f"{result.evaluator}.{k}": v for result in results for k, v in result.metrics.items()})
    for name in dict.fromkeys([*metrics[0], *metrics[1]]):
        was, is_now = (finite_number(of_run.get(name)) for of_run in metrics)
        if was != is_now:
            yield name, was, is_now
