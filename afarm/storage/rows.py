"""Rows of JSON, JSON lines, CSV and Parquet, plain or gzipped, and of the Hub: reading and writing.

Rows are read lazily, so that a file of any length needs the memory of a few. Errors name the file, the row and the
field.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import re
import sys
from array import array
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import IO, Any, TypeVar, overload

from afarm.core.errors import ConfigError, DataError
from afarm.core.records import Instruction, JudgedPair, Output, Row
from afarm.storage.contents import file_digest
from afarm.storage.conversations import with_turns
from afarm.storage.csv_files import FORMAT as CSV
from afarm.storage.csv_files import csv_rows
from afarm.storage.disk import json_text, open_text, writing
from afarm.storage.hub import hub_rows, is_on_hub
from afarm.storage.row_shapes import no_output
from afarm.storage.user_files import why_unopened

T = TypeVar("T")

FORMATS = (".json", ".jsonl", ".csv", ".parquet")

_PAGE = "a web page, perhaps one to sign in on, and not the data: download the file again"
IMPOSTORS = {
    b"version https://git-lfs": "a pointer of Git LFS and not the data: fetch the file with git lfs pull",
    b"<!doctype": _PAGE,
    b"<html": _PAGE,
    b"<?xml": _PAGE,
    b"pk\x03\x04": "an Excel workbook or another archive: save the rows as CSV",
}
"""What lies in place of data, by how it begins."""

BLOCK = 1 << 20
"""Characters of a JSON list that are parsed together; more if a row is longer."""

SHOWN_DUPLICATES = 3
"""Repeated instructions that an error names, and rows of each."""

IN_MEMORY = 20_000
"""Judgements of one system that memory may hold."""


def read_rows(path: Path | str) -> Iterator[Row]:
    """Yield the rows of a file, or of a data set of the Hub.

    A file is `.json` (a list), `.jsonl`, `.csv` or `.parquet`, all but the last also as `.gz`; a data set of the Hub,
    `hf:owner/name[/configuration][:split]`. Raises `DataError` if the file is missing, is not what its name says, or a
    row is not an object.
    """
    return (row for _, row in read_placed_rows(path))


def read_placed_rows(path: Path | str) -> Iterator[tuple[str, Row]]:
    """Yield each row with its place: rows count from 0, lines of text from 1. See `read_rows`."""
    if is_on_hub(path):
        yield from ((f"{path}: row {number}", row) for number, row in enumerate(hub_rows(str(path))))
        return
    path = Path(path).expanduser()
    if problem := why_no_file(path):
        raise DataError(f"{path}: {problem}")
    name = path.name.lower().removesuffix(".gz")
    if not name.endswith(FORMATS):
        raise DataError(
            f"{path}: unknown format: afarm reads {', '.join(FORMATS[:-1])} (also as .gz) and {FORMATS[-1]}"
        )
    if name.endswith(CSV):
        yield from ((f"{path}: line {line}", row) for line, row in csv_rows(path))
        return
    if name.endswith(".parquet"):
        yield from ((f"{path}: row {number}", row) for number, row in enumerate(_read_parquet(path)))
    else:
        yield from _read_json(path)


def why_no_file(path: Path | str, wanted: str = "") -> str:
    """Say why there is no file at `path` to be read; empty if there is one.

    A directory is named for what it holds, such as a file with `wanted` in its name.
    """
    place = Path(path).expanduser()
    if problem := why_unopened(place):
        return problem
    if not place.exists() and re.match("https?:/", str(path)):
        return "URLs are not taken: download the file first"
    if not place.is_dir():
        if not place.is_file():
            return f"no such file (from {Path.cwd()}): name one that is there"
        with suppress(OSError), place.open("rb") as handle:
            head = handle.read(64).removeprefix(codecs.BOM_UTF8).lstrip().lower()
            return next((what for beginning, what in IMPOSTORS.items() if head.startswith(beginning)), "")
        return ""
    if (place / "configs.yaml").is_file() or (place / "config.yaml").is_file():
        return f"an annotator's directory: afarm evaluate FILE --reference FILE --annotator alpaca_eval:{path}"
    if (place / "run.json").is_file() or (place / "runs").is_dir():
        return f"a directory of runs: afarm leaderboard {path}"
    files = [file for depth in ("*", "*/*") for file in place.glob(depth) if names_a_file_of_rows(file.name)]
    if not files:
        return "a directory with no run and no file of rows: name one that has either"
    likeliest = min(files, key=lambda file: (wanted not in file.name, len(file.parts), file))
    return f"a directory: name a file in it, such as {likeliest}"


def _read_json(path: Path) -> Iterator[tuple[str, Row]]:
    number = 0
    try:
        with open_text(path, lambda: f"row {number}") as handle:
            for line, row in _values(handle, path):
                where = f"{path}: row {number}" + (f" (line {line})" if line else "")
                if not isinstance(row, dict):
                    raise DataError(f"{where}: must be an object, not {type(row).__name__}")
                yield where, row
                number += 1
    except UnicodeDecodeError:  # a `ValueError` too
        raise
    except _RowError as error:
        raise DataError(f"{path}: row {number}{error.where}: {error}") from error
    except RecursionError as error:
        raise DataError(f"{path}: row {number}: not valid JSON: nested too deeply") from error
    except ValueError as error:
        # The place of a JSONDecodeError is one in the parsed text, not in the file
        said = str(error.msg if isinstance(error, json.JSONDecodeError) else error)
        said += "; write each object on a line of its own, or all in one list" if said == "Extra data" else ""
        raise DataError(f"{path}: row {number}: not valid JSON: {said}") from error


class _RowError(ValueError):
    """A fault of a row; `where` is the line that the row begins on."""

    def __init__(self, problem: str, where: str = ""):
        super().__init__(problem)
        self.where = where


def _object(fields: list[tuple[str, Any]]) -> Row:
    row = dict(fields)
    if len(row) < len(fields):  # JSON leaves open which one holds
        names = [name for name, _ in fields]
        twice = next(name for name in row if names.count(name) > 1)
        raise _RowError(f"field {twice!r} is there twice; take one of the two out")
    return row


_DECODER = json.JSONDecoder(object_pairs_hook=_object)


def _values(handle: IO[str], path: Path) -> Iterator[tuple[int, Any]]:
    """Yield a list's items (with 0) or each line's JSON with its number, whatever the file is called."""
    start = ""
    while not start and (block := handle.read(BLOCK)):
        start = block.lstrip()[:1]
    handle.seek(0)
    is_lines = path.name.lower().removesuffix(".gz").endswith(".jsonl")
    if not start and not is_lines:
        raise DataError(f"{path}: is empty")
    if start == "[":
        yield from ((0, item) for item in _list_items(handle))
        return
    lines: Iterator[tuple[int, str]] = ((number, line) for number, line in enumerate(handle, start=1) if line.strip())
    if not is_lines:
        first, second = next(lines, (0, "")), next(lines, (0, ""))
        is_object = first[1].lstrip().startswith("{") and first[1].rstrip().endswith("}")
        if not (second[1] and is_object):
            value = json.loads(first[1] + second[1] + "".join(line for _, line in lines))
            raise DataError(
                f"{path}: must hold a list of objects, not {type(value).__name__}; or JSON lines, an object in each"
                + _layout(value)
            )
        lines = chain((first, second), lines)
    for number, line in lines:
        try:
            yield number, _DECODER.decode(line)
        except _RowError as error:
            raise _RowError(str(error), f" (line {number})") from error
        except json.JSONDecodeError as error:
            advice = "" if line.rstrip().endswith("}") else "; each row is one line"
            what = f"not valid JSON lines: {error.msg} at column {error.colno}{advice}"
            raise _RowError(what, f" (line {number})") from error


def _layout(value: Any) -> str:
    """Say how to write the rows that a JSON value holds in another layout; empty if it is none of them."""
    fields = value if isinstance(value, dict) else {}
    lists = [name for name, rows in fields.items() if isinstance(rows, list) and isinstance((*rows, 0)[0], dict)]
    if lists:
        return f". Write the list of {' or '.join(map(repr, lists[:SHOWN_DUPLICATES]))} alone"
    if fields and all(isinstance(column, list | dict) for column in fields.values()):
        return ". It holds columns: write rows, with pandas by to_json(FILE, orient='records')"
    return ""


def _list_items(handle: IO[str]) -> Iterator[Any]:
    decode, space = _DECODER.raw_decode, re.compile(r"[ \t\n\r]*")
    text = ""
    while not text.strip():
        text += handle.read(BLOCK)
    at, delimiter, lines_before = text.index("[") + 1, "[", 0
    while delimiter != "]":
        try:
            at = end = space.match(text, at).end()  # type: ignore[union-attr]  # it matches the empty text too
            if delimiter == "," or text[at : at + 1] != "]":
                if text[at : at + 1] == "]":
                    raise ValueError("a comma stands before the closing bracket; take it out")
                item, end = decode(text, at)
                end = space.match(text, end).end()  # type: ignore[union-attr]
                if text[end : end + 1] not in (",", "]"):  # or nothing yet
                    raise json.JSONDecodeError("Expecting ',' delimiter", text, end)
                yield item
            at, delimiter = end + 1, text[end]
        except _RowError as error:
            raise _RowError(str(error), f" (line {1 + lines_before + text.count(chr(10), 0, at)})") from error
        except json.JSONDecodeError:
            more = handle.read(max(BLOCK, len(text) - at))
            if not more:
                raise
            lines_before += text.count("\n", 0, at)
            text, at = text[at:] + more, 0
    if (text[at:] + handle.read()).strip():
        raise json.JSONDecodeError("Extra data", text, at)


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


def names_a_file(source: str) -> bool:
    """Tell the name of a file, or of a data set of the Hub, from the name of a component."""
    return is_on_hub(source) or names_a_file_of_rows(source) or Path(source).exists()


def names_a_file_of_rows(name: str) -> bool:
    return name.lower().removesuffix(".gz").endswith(FORMATS)


def stem(source: str) -> str:
    """Return a file's name without its directory and format."""
    name = Path(source).name.removesuffix(".gz")
    return next((name.removesuffix(ending) for ending in FORMATS if name.endswith(ending)), name)


def named_file(text: str) -> tuple[str, str]:
    """Split NAME=FILE; a file alone is called as it is, without its format."""
    name, equals, file = (part.strip() for part in text.partition("="))
    return (name, file) if equals and not Path(text).exists() else (stem(text), text)


def named_files(option: str, texts: Sequence[str], taken: Collection[str] = ()) -> dict[str, str]:
    """Split each FILE or NAME=FILE of an option, by name.

    Raises `ConfigError` for a name that is empty, is `taken`, or has a file already.
    """
    files: dict[str, str] = {}
    for text in dict.fromkeys(texts):
        name, file = named_file(text)
        if not name or name in files or name in taken:
            why = "has the name of another: each needs its own" if name else "has no name"
            raise ConfigError([f"--{option} {text}: {name!r} {why}, such as --{option} another={file}"])
        files[name] = file
    return files


def read_outputs(path: Path | str, instructions: Iterable[Instruction] = ()) -> list[Output]:
    """Read the outputs of one system (or demonstrations). Raises `DataError` naming file, row and field.

    Prompts that are chats or transcripts are split into turns.
    Rows share those `instructions` that they answer, and names, which are half of what many short rows take.
    """
    shared = {instruction: instruction for instruction in instructions}
    outputs = []
    for where, row in read_placed_rows(path):
        try:
            output = parse_output(row, where)
        except DataError as error:
            raise DataError(f"{error}{no_output(row, str(path))}") from error
        instruction = shared.get(output.instruction, output.instruction)
        outputs.append(replace(output, instruction=instruction, generator=sys.intern(output.generator)))
    return outputs


def parse_output(row: Row, where: str, *, required: bool = True) -> Output:
    """Parse a row of outputs; its text may be missing unless `required`. Raises `DataError`."""
    read = with_turns(row, where)
    lacking = [name for name in ("instruction", "output") if name not in read and (required or name != "output")]
    if lacking:
        raise DataError(f"{where}: field {lacking[0]!r} is missing; its fields are {', '.join(map(repr, row))}")
    return Output.from_row({"output": "", **read}, where)


def read_preferences(path: Path | str) -> list[JudgedPair]:
    """Read judged pairs as afarm and AlpacaEval have them. Raises `DataError` naming file, row and field."""
    return [JudgedPair.from_row(row, where) for where, row in read_placed_rows(path)]


def preferences_on_disk(path: Path) -> Sequence[JudgedPair]:
    """Read the judged pairs of a JSON-lines file: into memory if they are few, else one by one on access."""
    rows = RowsOnDisk(path, JudgedPair.from_row)
    return rows if len(rows) > IN_MEMORY else list(rows)


class RowsOnDisk(Sequence[T]):
    """Rows of a JSON-lines file, which must stay as it is, each parsed on access by row and place."""

    def __init__(self, path: Path, parse: Callable[[Row, str], T]):
        self.path, self._parse = path, parse
        self._starts = array("Q")
        at = 0
        with path.open("rb") as handle:
            for line in handle:
                self._starts.append(at)
                at += len(line)

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[T]:
        return (self._parse(row, f"{self.path}: row {number}") for number, row in enumerate(read_rows(self.path)))

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> list[T]: ...

    def __getitem__(self, index: int | slice) -> T | list[T]:
        numbers = range(len(self))[index]
        rows = []
        with self.path.open("rb") as handle:
            for number in [numbers] if isinstance(numbers, int) else numbers:
                handle.seek(self._starts[number])
                rows.append(self._parse(json.loads(handle.readline()), f"{self.path}: row {number}"))
        return rows if isinstance(index, slice) else rows[0]


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> int:
    """Write JSON lines, whole or not at all; return their number. Raises `StoreError` if the disk is full."""
    count = 0
    with writing(path) as handle:
        for row in rows:
            handle.write(json_text(row) + "\n")
            count += 1
    return count


def rows_digest(rows: Iterable[object]) -> str:
    """Digest rows (JSON values) to 24 hexadecimal digits, one held at a time."""
    total = hashlib.blake2b(digest_size=12)
    for row in rows:
        total.update(json.dumps(row, sort_keys=True).encode() + b"\n")
    return total.hexdigest()


def digest_source(source: str) -> str:
    """Digest a file's content, or the rows of a data set of the Hub. Raises `DataError` if there is none."""
    if is_on_hub(source):
        rows = hashlib.sha256()
        for row in read_rows(source):
            rows.update(json.dumps(row, sort_keys=True, default=str).encode("utf-8", "backslashreplace"))
        return rows.hexdigest()
    path = Path(source).expanduser()
    if problem := why_no_file(path):
        raise DataError(f"{source}: {problem}")
    try:
        return file_digest(path)
    except OSError as error:
        raise DataError(f"{source}: cannot be read: {error.strerror}") from error


def require_distinct(outputs: Iterable[Output], where: str) -> list[Output]:
    """Return the rows. Raises `DataError` if there is none, or naming instructions that several hold."""
    rows = list(outputs)
    if not rows:
        raise DataError(f"{where}: no instructions")
    groups: dict[Hashable, list[int]] = {}
    for number, asked in enumerate(row.instruction for row in rows):  # by what an id digests, which takes longer
        groups.setdefault((asked.instruction, asked.input, asked.messages), []).append(number)
    if repeated := [numbers for numbers in groups.values() if len(numbers) > 1]:
        raise DataError(f"{where}: {'; '.join(describe_repeats(rows, repeated))}")
    return rows


def describe_repeats(rows: Sequence[Output], repeated: Sequence[Sequence[int]]) -> list[str]:
    """Name the rows that hold the same instruction, the first few groups of them; say last what to remove."""
    some = []
    for numbers in repeated[:SHOWN_DUPLICATES]:
        more = len(numbers) - SHOWN_DUPLICATES
        *named, last = [*map(str, numbers[:SHOWN_DUPLICATES]), *([f"{more:,} more"] if more > 0 else [])]
        text = rows[numbers[0]].instruction.instruction
        some.append(f"rows {', '.join(named)} and {last} hold the same instruction ({text[:60]!r})")
    more = len(repeated) - len(some)
    some += [f"and {more:,} more instruction{'' if more == 1 else 's'}"] if more else []
    surplus = sum(len(numbers) - 1 for numbers in repeated)
    return [*some, f"remove {'one' if surplus == 1 else f'{surplus:,} rows'}"]
