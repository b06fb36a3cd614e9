"""Rows of CSV files, plain or gzipped, through Python's `csv`: cells are text, but for a few columns.

Python's module and not the `datasets` library, which needs pyarrow, guesses types (an output `42` becomes a number)
and names no line in its errors.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from afarm.core.errors import DataError
from afarm.core.records import SCORES, Row
from afarm.storage.conversations import unpacked
from afarm.storage.disk import open_text

FORMAT = ".csv"

_TOLD_DELIMITER = re.compile(r"sep=(.)\r?\n")
"""A first line of Excel's, which says what parts the cells of the others."""
DELIMITERS = ",;\t|"
"""Those that spreadsheets and databases write; the one that the first line has most of is the file's."""

NUMBERS = frozenset({"preference", "strength", "draw", "occurrence", *SCORES})
"""Columns whose cells are numbers, or empty for null."""
CHAT = "messages"
"""The column of afarm's whose cells hold a chat; others are told by those who read them."""

LONGEST_CELL = 1 << 27
"""Characters that a cell may have: Python's limit of 131,072 is less than some conversations have."""


def csv_rows(path: Path) -> Iterator[tuple[int, Row]]:
    """Yield each row and its line, counted from 1. Raises `DataError` naming the line it cannot read."""
    csv.field_size_limit(LONGEST_CELL)
    line = 1
    try:
        with open_text(path, lambda: f"line {line}", newline="") as handle:
            first = handle.readline()
            if told := _TOLD_DELIMITER.fullmatch(first):
                line = 2
            else:
                handle.seek(0)
            delimiter = told[1] if told else max(DELIMITERS, key=first.count)
            reader = csv.reader(handle, delimiter=delimiter, strict=True)
            names, before = [cell.strip() for cell in next(reader, [])], line
            if not any(names):
                raise DataError(f"{path}: line 1: must name the columns, such as instruction,output")
            if delimiter == "|" and names[0] == names[-1] == "":
                raise DataError(f"{path}: line 1: begins like a table of Markdown: save it as CSV")
            if twice := next((name for name in names if names.count(name) > 1), None):
                raise DataError(f"{path}: line 1: column {twice!r} is there twice; rename one")
            line = reader.line_num + before
            for cells in reader:
                if any(map(str.strip, cells)):  # a spreadsheet's blank rows are lines of delimiters
                    yield line, _row(names, cells, f"{path}: line {line}")
                line = reader.line_num + before
    except csv.Error as error:
        raise DataError(f"{path}: line {line}: not valid CSV: {_cause(str(error))}") from error


def _row(names: Sequence[str], cells: Sequence[str], where: str) -> Row:
    if not any(map(str.strip, cells[len(names) :])):
        cells = cells[: len(names)]  # a spreadsheet fills rows up to the longest
    if len(cells) != len(names):
        raise DataError(
            f"{where}: has {len(cells)} cells, and line 1 names {len(names)} columns; put texts with commas or line "
            'breaks in double quotes, and write each quote within them twice ("")'
        )
    return {
        name: _number(cell.strip()) if name in NUMBERS else unpacked(cell) if name == CHAT else cell
        for name, cell in zip(names, cells, strict=True)
    }


def _number(text: str) -> Any:
    """Return the number in `text`, None if it is empty; another text is left for its reader to refuse."""
    if not text:
        return None
    try:
        number = float(text)
    except ValueError:
        return text
    return int(number) if number.is_integer() else number


def _cause(message: str) -> str:
    if "unexpected end of data" in message:
        return 'a double quote is opened and never closed; write each quote within quotes twice ("")'
    if "expected after" in message:
        return 'a quote stands within a quoted text; write it twice ("")'
    if "field larger" in message:
        return f"a cell has more than {LONGEST_CELL:,} characters: is a closing quote missing?"
    return message
