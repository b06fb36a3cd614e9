"""A study's findings, held to their interface before anything of them is written."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from afarm.core.errors import require_promise
from afarm.experiment.studies.study import Bounded, Findings, Series, StudyPlot, StudyTable
from afarm.storage.record_fields import require_record, short_repr

FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
FURTHER = re.compile(rf"{FILE_NAME.pattern}\.(yaml|json|jsonl|txt)")
"""The names of further files: none of a table, a plot or the page."""
TAKEN = {"runs", "report"}


def require_findings(findings: object, name: str, owner: object = None) -> None:
    """Check that a study's findings can be written: their types, names, rows, formats and points.

    Raises `PluginError` that names the study, its plugin and the promise.
    """
    require = partial(require_promise, kind="studies", name=name, owner=owner)
    require_record(findings, Findings, "studies", name, "analyse must return afarm.Findings", owner)
    assert isinstance(findings, Findings)
    parts: list[StudyTable | StudyPlot] = [*findings.tables, *findings.plots]
    for part in parts:
        sound = f"analyse must return sound tables and plots, not {part.name!r:.80}"
        require_record(part, type(part), "studies", name, sound, owner)
        fits = FILE_NAME.fullmatch(part.name) is not None and part.name not in TAKEN
        named = f"the name of a table or plot names its files: letters, digits, - and _, not {part.name!r}"
        require(fits, broken=named)
    for further in findings.files:
        named = f"a further file of a study is a yaml, json, jsonl or txt beside its page, not {further!r}"
        require(FURTHER.fullmatch(further) is not None, broken=named)
    tables = [table.name for table in findings.tables]
    require(len(set(tables)) == len(tables), broken=f"each table must have a name of its own: {', '.join(tables)}")
    for table in findings.tables:
        for row in table.rows:
            whole = f"table {table.name}: a row must have {len(table.columns)} cells: {short_repr(row)}"
            require(len(row) == len(table.columns), broken=whole)
            for cell, (column, form) in zip(row, table.columns.items(), strict=True):
                cannot = f"{short_repr(cell)} cannot be written as {form!r}, the format of {column!r}"
                require(_can_write(cell, form), broken=f"table {table.name}: {cannot}")
    for plot in findings.plots:
        for series in plot.series:
            is_typed = isinstance(series, Series) and all(isinstance(y, Bounded) for y in series.y)
            typed = f"plot {plot.name}: points must be afarm.Series of afarm.Bounded, not {short_repr(series)}"
            require(is_typed, broken=typed)
            paired = len(series.x) == len(series.y) and len(series.labels) in (0, len(series.x))
            each = f"plot {plot.name}: {series.name} must have an x for each y, and no label or one for each"
            require(paired, broken=each)


def _can_write(cell: Any, form: str) -> bool:
    """Tell if a cell can be written in its column's format; the half of an interval is no whole number."""
    numbers = [float(end) for end in cell if end is not None] if isinstance(cell, Bounded) else [cell]
    try:
        for number in numbers:
            if not isinstance(number, str | None):
                format(number, form)
                float(number)
    except (TypeError, ValueError, OverflowError):
        return False
    return True
