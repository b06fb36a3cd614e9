"""Data files of evaluators: coefficients, difficulties, regularising rows."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from afarm import DataError


def cell(row: Mapping[str, Any], names: Sequence[str], where: str) -> Any:
    """Read the first of the columns `names` that `row` has. Raises `DataError` if it has none."""
    for name in names:
        if row.get(name) is not None:
            return row[name]
    raise DataError(f"{where}: field {names[0]!r} is missing; its fields are {', '.join(map(repr, row))}")


def number(row: Mapping[str, Any], names: Sequence[str], where: str) -> float:
    """Read a `cell` as a finite number. Raises `DataError` naming row and field if it is none."""
    value = cell(row, names, where)
    try:
        found = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        found = math.nan
    if not math.isfinite(found):
        raise DataError(f"{where}: field {names[0]!r} must be a number, not {value!r}")
    return found


def digest_file(path: str) -> str:
    """Digest the file's bytes; empty if `path` is empty or no such file exists."""
    name = Path(path).expanduser()
    if not path or not name.is_file():
        return ""
    with name.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()[:24]
