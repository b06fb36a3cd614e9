"""Tables of studies as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from afarm.evaluation.boards.from_csv import neutral
from afarm.experiment.studies.study import Bounded, Cell, StudyTable
from afarm.report.format import UNKNOWN
from afarm.storage.text import markdown

LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "{": r"\{",
        "}": r"\}",
        "$": r"\$",
        "&": r"\&",
        "#": r"\#",
        "%": r"\%",
        "_": r"\_",
        "^": r"\^{}",
        "~": r"\~{}",
        "–": "--",
        "−": "$-$",
    }
)


def markdown_table(table: StudyTable) -> str:
    """Write a table of Markdown."""
    rule = ["---:" if form else "---" for form in table.columns.values()]
    lines = [_row(map(markdown, table.columns)), _row(rule)]
    return "\n".join([*lines, *(_row(map(markdown, _texts(table, row))) for row in table.rows)])


def csv_text(table: StudyTable) -> str:
    """Write CSV with full precision; a column of intervals has two more, `NAME_low` and `NAME_high`."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    wide = [any(isinstance(row[place], Bounded) for row in table.rows) for place in range(len(table.columns))]
    header: list[str] = []
    for name, is_wide in zip(table.columns, wide, strict=True):
        header += [name, f"{name}_low", f"{name}_high"] if is_wide else [name]
    writer.writerow(header)
    for row in table.rows:
        writer.writerow([value for cell, is_wide in zip(row, wide, strict=True) for value in _values(cell, is_wide)])
    return text.getvalue()


def latex_table(table: StudyTable) -> str:
    """Write a tabular with the rules of booktabs."""
    columns = "".join("r" if form else "l" for form in table.columns.values())
    lines = [rf"% {table.title}", rf"\begin{{tabular}}{{{columns}}}", r"\toprule"]
    lines += [" & ".join(map(_latex_text, table.columns)) + r" \\", r"\midrule"]
    lines += [" & ".join(map(_latex_text, _texts(table, row))) + r" \\" for row in table.rows]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


FORMATS: Mapping[str, Callable[[StudyTable], str]] = {"csv": csv_text, "tex": latex_table}
"""The files of each table beside the page, by their ending."""


def cell_text(cell: Cell, form: str) -> str:
    """Write a cell, an interval as "51.2 (48.0 to 54.4)"."""
    if cell is None:
        return UNKNOWN
    if isinstance(cell, Bounded):
        ends = end_texts(cell, form)
        return _minus(f"{cell.value:{form}}") + (f" ({ends[0]} to {ends[1]})" if ends else "")
    return cell if isinstance(cell, str) else _minus(f"{cell:{form}}")


def end_texts(cell: Bounded, form: str) -> tuple[str, str] | None:
    """Write the ends of an interval, with a sign only if one of them is negative; None without one."""
    if cell.low is None or cell.high is None:
        return None
    plain = form.lstrip("+") if cell.low >= 0 else form
    return _minus(f"{cell.low:{plain}}"), _minus(f"{cell.high:{plain}}")


def _minus(number: str) -> str:
    return number.replace("-", "−")


def _texts(table: StudyTable, row: Sequence[Cell]) -> list[str]:
    return [cell_text(cell, form) for cell, form in zip(row, table.columns.values(), strict=True)]


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _values(cell: Cell, wide: bool) -> list[object]:
    if isinstance(cell, Bounded):
        return list(cell)
    value = neutral(cell) if isinstance(cell, str) else cell
    return [value, None, None] if wide else [value]


def _latex_text(text: str) -> str:
    return re.sub(r"\s+", " ", text).translate(LATEX)
