"""Shifts of judges that are known in a directory of runs.

A plugin that finds that a judge has changed (`afarm drift`) appends a row to `drift.jsonl` beside the runs, with
`epoch`, the name of the shift, `judges`, the identities of judges by role, and `shifted`. What is evaluated afterwards
carries the shift in its protocol, so that leaderboards do not mix it with earlier results.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from afarm.core.errors import DataError
from afarm.core.records import Row
from afarm.storage.rows import read_rows

DRIFT_LOG = "drift.jsonl"
"""The name of the log, beside the runs."""


def read_drift_log(root: Path) -> list[Row]:
    """Return the rows of the log in `root`, oldest first. Raises `DataError` if the log is damaged."""
    path = root / DRIFT_LOG
    rows = list(read_rows(path)) if path.is_file() else []
    if wrong := [
        row for row in rows if not isinstance(row.get("epoch"), str) or not isinstance(row.get("judges"), dict)
    ]:
        raise DataError(f"{path}: {wrong[0]} is no shift of a judge; move the file away and run `afarm drift` again")
    return rows


def latest_shift(root: Path, judges: Mapping[str, str]) -> str:
    """Return the epoch of the latest shift of one of `judges`, identities by role; empty for none."""
    identities = set(judges.values())
    shifts = [row for row in read_drift_log(root) if row.get("shifted") and identities & set(row["judges"].values())]
    return str(shifts[-1]["epoch"]) if shifts else ""
