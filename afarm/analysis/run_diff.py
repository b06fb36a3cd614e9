"""What sets two runs apart: settings, versions, how they were judged, and, instruction by instruction, what flipped.

A win rate moves for three reasons, and they call for different cures. On each instruction that both runs have, the
first of these that holds is the reason:

    reference   the reference answered otherwise
    policy      the system answered otherwise
    label       both answers are the same, and the judge's label is another

So that the change of the win rate is the sum of what each reason contributes, and of the instructions (and usable
labels) that only one run has.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from afarm.core.errors import DataError, did_you_mean
from afarm.core.records import JudgedPair, Row
from afarm.evaluation.metrics import clustered_mean, number
from afarm.evaluation.protocol import EvaluationProtocol, comparable
from afarm.storage.reuse import differences
from afarm.storage.rows import read_preferences

Reason = Literal["label", "policy", "reference"]
REASONS: tuple[Reason, ...] = ("label", "policy", "reference")


@dataclass(frozen=True, slots=True)
class Change:
    """An instruction on which the runs differ. `before` and `now` are the system's share of a win, None without an
    answer; it is a `flip` where another side is ahead."""

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
    """What a reason does: `changed` instructions, `flips` of them another side ahead, and the `points` of the win rate
    that come of it, over the instructions that both runs have a usable label for."""

    changed: int = 0
    flips: int = 0
    points: float = 0.0


@dataclass(frozen=True, slots=True)
class Diff:
    """Two runs compared. `settings`, `versions` and `stages` are sentences, one a difference; `incomparable` the
    reasons why their win rates cannot be compared. `difference` is the paired one, in points, over the `shared`
    instructions with two usable labels, with its standard error, clustered where there are several labels of one;
    `metrics` are (name, before, now)."""

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


def find_run(name: str, output_dir: Path) -> Path:
    """The directory of a run, by its name, its directory or its `run.json`. Raises `DataError` where there is none."""
    runs = output_dir / "runs"
    for path in (Path(name), runs / name):
        directory = path.parent if path.name == "run.json" else path
        if (directory / "run.json").is_file():
            return directory
    known = [path.parent.name for path in runs.glob("*/run.json")]
    raise DataError(f"no run {name!r}, neither here nor in {runs} (--output-dir).{did_you_mean(name, known)}")


def diff(first: Path, second: Path) -> Diff:
    """What sets the runs in two directories apart. Raises `DataError` naming the file that cannot be read."""
    one, two = _record(first), _record(second)
    before, now = _labels(first), _labels(second)
    shared = [key for key in before if key in now]
    changes = [found for key in shared if (found := _change(before[key], now[key])) is not None]
    wins = [(before[key].win, now[key].win) for key in shared]
    gaps = [(task, b - a) for (task, _), (a, b) in zip(shared, wins, strict=True) if a is not None and b is not None]
    difference = clustered_mean(gaps, 100)
    protocols = [
        EvaluationProtocol.from_row(record["results"][0].get("protocol")) for record in (one, two) if record["results"]
    ]
    return Diff(
        runs=(str(one.get("name") or first.name), str(two.get("name") or second.name)),
        settings=tuple(differences(_mapping(one, "config"), _mapping(two, "config"))),
        versions=tuple(differences(_mapping(one, "versions"), _mapping(two, "versions"))),
        stages=tuple(_stages(one, two)),
        incomparable=tuple(comparable(*protocols)) if len(protocols) == 2 else ("a run has no result",),
        metrics=tuple(_metrics(one, two)),
        shared=len(gaps),
        only_first=sum(key not in now for key in before),
        only_second=sum(key not in before for key in now),
        difference=None if difference is None else difference.value,
        standard_error=None if difference is None else difference.error,
        contributions={reason: _contribution(reason, changes, len(gaps)) for reason in REASONS},
        changes=tuple(changes),
    )


def _record(directory: Path) -> dict[str, Any]:
    path = directory / "run.json"
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error}); the same `afarm` command writes it afresh") from error
    if not isinstance(record, dict) or not isinstance(record.get("results"), list):
        raise DataError(f"{path}: is no record of a run; the same `afarm` command writes it afresh")
    return record


def _mapping(record: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = record.get(name)
    return value if isinstance(value, Mapping) else {}


Key = tuple[str, int]
"""An instruction's id, and which of its judgements."""


def _labels(directory: Path) -> dict[Key, JudgedPair]:
    path = directory / "outputs.jsonl"
    found: dict[Key, JudgedPair] = {}
    for row in read_preferences(path) if path.is_file() else ():
        instruction, number = row.pair.instruction.id, 0
        while (instruction, number) in found:
            number += 1
        found[instruction, number] = row
    return found


def _change(before: JudgedPair, now: JudgedPair) -> Change | None:
    """How the judgements of one instruction differ, None where they do not."""
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
    mine = [change for change in changes if change.reason == reason]
    gained = math.fsum(c.now - c.before for c in mine if c.now is not None and c.before is not None)
    return Contribution(len(mine), sum(c.flip for c in mine), 100 * gained / shared if shared else 0.0)


def _stages(one: Mapping[str, Any], two: Mapping[str, Any]) -> Iterator[str]:
    """Stages made from something else, as their keys tell: what does not stand here is one and the same artifact."""
    keys = [{s["stage"]: s.get("key") for s in r.get("stages") or () if isinstance(s, dict)} for r in (one, two)]
    for stage in dict.fromkeys([*keys[0], *keys[1]]):
        was, is_now = (given.get(stage) for given in keys)
        if was is None or is_now is None:
            yield f"{stage}: only in the {'second' if was is None else 'first'}"
        elif was != is_now:
            yield f"{stage}: {was[:8]} → {is_now[:8]}"


def _metrics(one: Mapping[str, Any], two: Mapping[str, Any]) -> Iterator[tuple[str, float | None, float | None]]:
    """The figures of each evaluator against the first reference of each run."""
    found = []
    for record in (one, two):
        results = [r for r in record["results"] if r.get("reference") == record["results"][0].get("reference")]
        found.append({f"{r['evaluator']}.{k}": v for r in results for k, v in _mapping(r, "metrics").items()})
    for name in dict.fromkeys([*found[0], *found[1]]):
        was, is_now = (number(figures.get(name)) for figures in found)
        if was != is_now:
            yield name, was, is_now
