"""Data files of evaluators: coefficients, difficulties, regularising rows."""

from __future__ import annotations

import csv
import gzip
import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from afarm import DataError, read_rows


def read_table(path: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Read the rows of a `.csv` file, or of one that `afarm.read_rows` reads, each with its place.

    Raises `DataError` if the file is missing or is not what its name says.
    """
    name = Path(path).expanduser()
    if not name.name.removesuffix(".gz").endswith(".csv"):
        yield from ((row, f"{path}: row {number}") for number, row in enumerate(read_rows(name)))
        return
    open_text: Any = gzip.open if name.name.endswith(".gz") else open
    try:
        with open_text(name, "rt", encoding="utf-8-sig", newline="") as handle:
            yield from ((row, f"{path}: row {number}") for number, row in enumerate(csv.DictReader(handle)))
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: not valid CSV: {error}") from error


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


def digest_of(path: str) -> str:
    """Digest the file's bytes; empty if no file is named, or if there is none by that name."""
    name = Path(path).expanduser()
    if not path or not name.is_file():
        return ""
    with name.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()[:24]
