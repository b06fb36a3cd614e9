"""Tables for a notebook: records shown in a few lines, as HTML, as dictionaries and as a data frame."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from html import escape
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from afarm.core.errors import PluginError
from afarm.core.records import Row
from afarm.storage.text import one_line

if TYPE_CHECKING:
    import pandas

T = TypeVar("T")

SHOWN_ROWS, SHOWN_COLUMNS, CELL = 5, 6, 100
"""Rows, columns and characters per cell that a notebook shows of records."""


class Tabular:
    """Something with rows: what a notebook, a data frame and JSON make of it."""

    @abstractmethod
    def to_dict(self) -> list[Row] | dict[str, Any]:
        """Return its content as JSON values."""

    @abstractmethod
    def table_rows(self) -> Iterable[Mapping[str, Any]]:
        """Yield the rows of its data frame."""

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame` of its rows. Raises `PluginError` without pandas."""
        return to_frame(self.table_rows())


class Records(list[T], Tabular):
    """Records in a list, shown as their number and the first few."""

    def to_dict(self) -> list[Row]:
        """Return the rows of the records, as they are on disk."""
        return [_make_row(record) for record in self]

    def table_rows(self) -> Iterable[Row]:
        return map(_make_row, self)

    def __repr__(self) -> str:
        if len(self) <= 1:
            return f"{type(self).__name__}({list(self)!r})"
        return f"<{len(self):,} of {type(self[0]).__name__}: .to_pandas(), .to_dict(), or [0], the first>"

    def _repr_html_(self) -> str:
        rows = [_make_row(record) for record in islice(self, SHOWN_ROWS)]
        columns = [name for row in rows for name, value in row.items() if value not in (None, "", [], {})]
        shown = list(dict.fromkeys(columns))[:SHOWN_COLUMNS]
        kind = type(self[0]).__name__ if self else "records"
        caption = f"{len(self):,} of {kind}" + (f", the first {SHOWN_ROWS}" if len(self) > SHOWN_ROWS else "")
        return html_table(shown, [[row.get(name) for name in shown] for row in rows], caption)


def html_table(columns: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "") -> str:
    """Write a small HTML table; every cell is escaped and cut after `CELL` characters."""
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(f'<td>{_cell(value)}</td>' for value in row)}</tr>" for row in rows)
    title = f'<caption style="text-align:left">{escape(one_line(caption, 400))}</caption>' if caption else ""
    return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}"
    return "" if value is None else escape(one_line(str(value), CELL))


def to_frame(rows: Iterable[Any]) -> pandas.DataFrame:
    """Return rows, labels (`JudgedPair`) or answers as a pandas `DataFrame`.

    A label has the columns of its file. Raises `PluginError` without pandas.
    """
    try:
        import pandas
    except ModuleNotFoundError as error:
        raise PluginError("a DataFrame needs pandas: pip install pandas") from error
    return pandas.DataFrame([_make_row(row) for row in rows])


def _make_row(record: Any) -> Row:
    if isinstance(record, Mapping):
        return dict(record)
    return record.to_row() if hasattr(record, "to_row") else asdict(record)
