"""Reading and writing rows: JSON, JSON lines, Parquet, plain or gzipped, with errors that name file, row and field."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from afarm.errors import DataError
from afarm.records import JudgedPair, Output, Row
from afarm.store import storage_errors

T = TypeVar("T")


def read_rows(path: Path | str) -> Iterator[Row]:
    """The rows of a `.json` (a list), `.jsonl` or `.parquet` file, the first two also as `.gz`.

    Raises `DataError` where the file is missing, is not what its name says, or a row is not an object.
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    name = path.name.removesuffix(".gz")
    if not name.endswith((".json", ".jsonl", ".parquet")):
        raise DataError(f"{path}: unknown format: afarm reads .json, .jsonl and .parquet, the first two also as .gz")
    if name.endswith(".parquet"):
        yield from _read_parquet(path)
        return
    open_text: Any = gzip.open if path.name.endswith(".gz") else open
    kind = "JSON lines" if name.endswith(".jsonl") else "JSON"
    number = 0
    try:
        with open_text(path, "rt", encoding="utf-8-sig") as handle:
            if kind == "JSON":
                rows = json.load(handle)
                if not isinstance(rows, list):
                    raise DataError(f"{path}: must hold a list of objects, not {type(rows).__name__}")
            else:
                rows = (json.loads(line) for line in handle if line.strip())
            for row in rows:
                if not isinstance(row, dict):
                    raise DataError(f"{path}: row {number}: must be an object, not {type(row).__name__}")
                yield row
                number += 1
    except (ValueError, RecursionError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        where = f"{path}: row {number}" if kind == "JSON lines" else str(path)
        raise DataError(f"{where}: not valid {kind}: {_cause(error, kind)}") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error


def _cause(error: Exception, kind: str) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "no UTF-8 text: save it as UTF-8"
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, json.JSONDecodeError) and kind == "JSON lines":  # its line number would always be 1
        return f"{error.msg} at column {error.colno}"
    return str(error)


def _read_parquet(path: Path) -> Iterator[Row]:
    try:
        import pyarrow.parquet as parquet
    except ModuleNotFoundError as error:
        raise DataError(f"{path}: reading Parquet needs pyarrow: pip install 'afarm[train]'") from error
    try:
        for batch in parquet.ParquetFile(path).iter_batches():
            yield from batch.to_pylist()
    except Exception as error:  # pyarrow's exceptions share no documented base beyond its own module
        raise DataError(f"{path}: not valid Parquet: {error}") from error


def read_outputs(path: Path | str) -> list[Output]:
    """Outputs of one system (or demonstrations). Raises `DataError` naming file, row and field."""
    return _read(path, Output.from_row)


def read_preferences(path: Path | str) -> list[JudgedPair]:
    """Judged pairs, also as TRL's `prompt, chosen, rejected`. Raises `DataError` naming file, row and field."""
    return _read(path, lambda row, where: JudgedPair.from_row(_from_trl(row, where), where))


def _read(path: Path | str, parse: Callable[[Row, str], T]) -> list[T]:
    return [parse(row, f"{path}: row {number}") for number, row in enumerate(read_rows(path))]


def _from_trl(row: Row, where: str) -> Row:
    names = ("prompt", "chosen", "rejected")
    if not row.keys() >= {*names}:
        return row
    for name in names:
        if not isinstance(row[name], str):
            raise DataError(f"{where}: field {name!r} must be text, not {type(row[name]).__name__}")
    return {"instruction": row["prompt"], "output_1": row["chosen"], "output_2": row["rejected"], "preference": 1}


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> int:
    """Write JSON lines as they come, and return their number. Raises `StoreError` where the disk is full."""
    count = 0
    # Half a surrogate pair has no UTF-8, but written as a backslash escape it is the JSON it was read from.
    with storage_errors(path), path.open("w", encoding="utf-8", errors="backslashreplace") as handle:
        for row in rows:
            handle.write(json.dumps(row, ensure_ascii=False) + "\n")
            count += 1
    return count


def require_distinct(outputs: Iterable[Output], where: str) -> list[Output]:
    """The rows, checked: at least one, and no instruction twice. Raises `DataError` naming both rows."""
    seen: dict[str, int] = {}
    rows = list(outputs)
    if not rows:
        raise DataError(f"{where}: no instructions")
    for number, row in enumerate(rows):
        first = seen.setdefault(row.instruction.id, number)
        if first != number:
            text = row.instruction.instruction[:60]
            raise DataError(f"{where}: rows {first} and {number} hold the same instruction ({text!r}); remove one")
    return rows
