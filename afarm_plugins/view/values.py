"""Values of records that an older version may have written or a hand changed: the wrong is empty."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def json_row(line: bytes) -> dict[str, Any] | None:
    """Read a line of JSON as a row; None for one that is none, or not whole yet."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def signature(path: Path) -> tuple[int, int, int] | None:
    """Return what changes when a file does; None if it is not there."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def mapping(value: object) -> Mapping[str, Any]:
    """Return a mapping, an empty one for anything else."""
    return value if isinstance(value, Mapping) else {}


def rows(value: object) -> list[Mapping[str, Any]]:
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []


def only_texts(value: object) -> list[str]:
    return [row for row in value if isinstance(row, str)] if isinstance(value, list) else []


def text(value: object) -> str:
    """Return `value` as text; None is empty."""
    return "" if value is None else str(value)


def as_shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
