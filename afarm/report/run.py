"""Reads what a run left on disk: `run.json`, `metrics.jsonl` and `outputs.jsonl`.

Only `run.json` must be there. A run that was killed may have torn the last line of a `.jsonl` file, and one that was
resumed may have logged a step twice: the torn line is left out, and the later of two equal steps stands.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from afarm.errors import DataError
from afarm.records import Row

Points = list[tuple[float, float | None]]


@dataclass(frozen=True, slots=True)
class Run:
    """What is known of a run. `metrics[stage][name]` are (step, value) in order of step; None where not finite."""

    directory: Path
    record: Mapping[str, Any]
    metrics: Mapping[str, Mapping[str, Points]]
    outputs: list[Row]

    def get(self, name: str, default: Any) -> Any:
        """A value of `run.json`, or `default` where it is missing, null or of another type than `default`."""
        value = self.record.get(name)
        return value if isinstance(value, type(default)) else default


def read_run(directory: Path) -> Run:
    """Raises `DataError` naming the file, and the line where there is one, that cannot be read."""
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
    return Run(
        directory, record, _curves(read_rows(directory / "metrics.jsonl")), read_rows(directory / "outputs.jsonl")
    )


def read_rows(path: Path) -> list[Row]:
    """The objects of a `.jsonl` file; none where there is no such file. Raises `DataError` naming the line."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # not splitlines, which also splits at U+2028
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    rows = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            if number == len(lines):  # no newline after it: the run was killed while writing this line
                break
            raise DataError(f"{path}:{number}: not valid JSON ({error}); mend or delete the line") from error
        if not isinstance(row, dict):
            raise DataError(f"{path}:{number}: must be a JSON object, not {type(row).__name__}")
        rows.append(row)
    return rows


def number(value: object) -> float | None:
    """`value` if it is a finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


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
