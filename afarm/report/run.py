"""Reads what a run left on disk: `run.json`, `metrics.jsonl` and `outputs.jsonl`.

Only `run.json` must be there. A resumed stage may have logged a step twice: the later of the two stands.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from afarm.core.errors import DataError
from afarm.core.records import Row
from afarm.evaluation.metrics import number
from afarm.storage.rows import RowsOnDisk, read_rows

Points = list[tuple[float, float | None]]


@dataclass(frozen=True, slots=True)
class Run:
    """What is known of a run. `metrics[stage][name]` are (step, value) in order of step; None where not finite."""

    directory: Path
    record: Mapping[str, Any]
    metrics: Mapping[str, Mapping[str, Points]]
    outputs: Iterable[Row]

    def get(self, name: str, default: Any) -> Any:
        """A value of `run.json`, or `default` where it is missing, null or of another type than `default`."""
        value = self.record.get(name)
        return value if isinstance(value, type(default)) else default


def read_run(directory: Path) -> Run:
    """Raises `DataError` naming the file that cannot be read."""
    path = directory / "run.json"
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(
            f"{path}: no run to report on ({error.strerror}); give the directory of a run, `afarm run` makes one"
        ) from error
    except ValueError as error:
        raise DataError(f"{path}: not valid JSON ({error}); the same `afarm run` command writes it afresh") from error
    if not isinstance(record, dict):
        raise DataError(f"{path}: must hold a JSON object, not {type(record).__name__}")
    outputs = directory / "outputs.jsonl"
    rows: Iterable[Row] = RowsOnDisk(outputs, lambda row, where: row) if outputs.is_file() else ()
    return Run(directory, record, _curves(_rows(directory / "metrics.jsonl")), rows)


def degraded(stages: Sequence[Any]) -> list[str]:
    """For each of a record's `stages` whose labels were made without a parameter, that and how many, as a sentence."""
    said = []
    for stage in stages:
        given = stage.get("summary") if isinstance(stage, Mapping) else None
        summary = given if isinstance(given, Mapping) else {}
        left_out = summary.get("degraded")
        if isinstance(left_out, Mapping) and left_out:
            counts = " and ".join(f"{count} without {name}" for name, count in left_out.items())
            said.append(
                f"{stage.get('stage')}: of {summary.get('rows')} labels, {counts}, which the judge does not take"
            )
    return said


STOPPED_AT = "stopped at step"
STOPPED = {"stopped/max_kl": "the KL exceeded its limit", "stopped/not_finite": "a figure was not finite"}


def training(found: Mapping[str, Any]) -> Iterator[str]:
    """How training ended, in sentences, from what it logged last: which checkpoint was kept where that was a choice,
    whether it stopped before its end, and how many prompts were too long for it."""
    if "best/step" in found:
        error = f" ± {found['best/standard_error']:.1f}" if "best/standard_error" in found else ""
        yield (
            f"the best on validation, of step {found['best/step']}: {found['best/win_rate']:.1f} %{error} "
            f"(the last, of step {found['last/step']}: {found['last/win_rate']:.1f} %)"
        )
    for name, why in STOPPED.items():
        if name in found:
            yield f"{STOPPED_AT} {found[name]:g}: {why}"
    if left_out := found.get("data/prompts_left_out"):
        yield f"{left_out:g} prompts were too long and left out"


def _rows(path: Path) -> list[Row]:
    return list(read_rows(path)) if path.is_file() else []


def _curves(rows: list[Row]) -> dict[str, dict[str, Points]]:
    curves: dict[str, dict[str, dict[float, float | None]]] = {}
    for row in rows:
        step = number(row.get("step"))
        if step is None:
            continue
        stage = curves.setdefault(str(row.get("stage", "")), {})
        for name, value in row.items():
            if name not in ("stage", "step") and isinstance(value, int | float) and not isinstance(value, bool):
                stage.setdefault(name, {})[step] = number(value)
    return {stage: {name: sorted(points.items()) for name, points in names.items()} for stage, names in curves.items()}
