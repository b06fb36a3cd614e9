"""A study as one self-contained HTML page: interactive plots, tables that sort, runs with links."""

from __future__ import annotations

import importlib.metadata
import math
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from afarm.experiment.studies.progress import GridProgress
from afarm.experiment.studies.study import Bounded, Cell, Findings, StudyPlot, StudyTable
from afarm.report.charts import Chart, plotly_script
from afarm.report.page_shell import render_page
from afarm.report.study_files import BY_FORMULAS, REMEDY, ShownStudy, runs_table, stopped_sentence, write_files
from afarm.report.study_plots import can_draw, name_sides
from afarm.report.study_tables import UNKNOWN, cell_text, end_texts
from afarm.storage.disk import write_whole

PAGE = "report.html"

MOST_RUNS = 500
"""Runs that the page lists: all are in `runs.csv`."""


def write_study(directory: Path, study: ShownStudy) -> Path:
    """Write a study's directory, files and pages in HTML and Markdown. Returns the latter's path.

    Raises `PluginError` for a file that would lie elsewhere or over another, and `StoreError`.
    """
    page = write_files(directory, study)
    write_whole(directory / PAGE, render_study(study, plotly_script()), REMEDY)
    return page


def write_findings(output_dir: Path, name: str, command: str, findings: Findings, simulated: Collection[str]) -> Path:
    """Write the directory of findings without a grid of runs, and return the path of their HTML page.

    Raises `StoreError`.
    """
    progress, formats = GridProgress((), simulated=set(simulated)), ("svg",) if can_draw() else ()
    study = ShownStudy(name, command, progress, findings, formats)
    return write_study(output_dir / "studies" / name, study).with_name(PAGE)


def write_comparison(path: Path, study: ShownStudy) -> Path:
    """Write the page of a comparison of methods. Returns its path. Raises `StoreError`."""
    write_whole(path, render_study(study, plotly_script(), kind="comparison"), REMEDY)
    return path


def render_study(study: ShownStudy, plotly: str | None, kind: str = "study") -> str:
    """Render the page as text; `plotly` is the source of plotly.js, None to leave the plots' pictures out.

    A "comparison" lies among boards: of its tables and plots there are no files.
    """
    findings, runs = study.findings, runs_table(study.progress)
    listed, root = describe_table(runs, MOST_RUNS), "../../runs" if kind == "study" else "../runs"
    for cells in listed["rows"]:
        cells[0]["link"] = f"{root}/{quote(cells[0]['text'], safe='')}/report.html"
    own = {
        "study": study,
        "kind": kind,
        "version": importlib.metadata.version("afarm"),
        "stopped": stopped_sentence(study.progress),
        "by_formulas": BY_FORMULAS,
        "plots": [describe_plot(plot, study.formats) for plot in findings.plots],
        "tables": [describe_table(table) for table in findings.tables if table.rows],
        "runs": listed,
        "more_runs": max(0, len(runs.rows) - MOST_RUNS),
        "charts": [build_chart(plot) for plot in findings.plots],
    }
    drawn = plotly if findings.plots else None
    return render_page("study_page", ["charts", "tables", "study_page"], drawn, can_draw=bool(plotly), **own)


def describe_table(table: StudyTable, most: int | None = None) -> dict[str, Any]:
    """Describe a table as the template needs it: its columns, and the cells of its first `most` rows."""
    rows = table.rows[:most]
    columns = [[row[place] for row in rows] for place in range(len(table.columns))]
    known = [[finite_part(cell) for cell in column if cell is not None] for column in columns]
    numbers = [  # texts too, if all of a column are numbers, as the values of a setting are
        bool(form) or (bool(values) and None not in values)
        for form, values in zip(table.columns.values(), known, strict=True)
    ]
    return {
        "name": table.name,
        "title": table.title,
        "columns": [{"heading": name, "number": number} for name, number in zip(table.columns, numbers, strict=True)],
        "rows": [
            [
                describe_cell(cell, form, number)
                for cell, form, number in zip(row, table.columns.values(), numbers, strict=True)
            ]
            for row in rows
        ],
    }


def finite_part(cell: Cell) -> float | None:
    """Return the number in a cell, or an interval's middle; None for text and non-finite values."""
    try:
        number = float(cell.value if isinstance(cell, Bounded) else cell)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def describe_cell(cell: Cell, form: str, is_number: bool) -> dict[str, Any]:
    """Describe a cell: its text, its interval apart, and the number it sorts by ("" if unknown)."""
    ends = end_texts(cell, form) if isinstance(cell, Bounded) else None
    middle = Bounded(cell.value) if isinstance(cell, Bounded) else cell
    value = finite_part(cell)
    return {
        "text": cell_text(middle, form) or UNKNOWN,
        "interval": f"{ends[0]} to {ends[1]}" if ends else "",
        "number": is_number,
        "value": "" if value is None else repr(value),
        "link": "",
    }


def describe_plot(plot: StudyPlot, formats: Sequence[str]) -> dict[str, Any]:
    """Describe a plot: its series, its points as a table, and its files."""
    is_named = any(series.labels for series in plot.series)
    rows: list[list[Cell]] = []
    for series in plot.series:
        labels = series.labels or [""] * len(series.x)
        for name, x, y in zip(labels, series.x, series.y, strict=True):
            rows.append([series.name, *([name] if is_named else []), x, y])
    names = [series.name for series in plot.series]
    columns = {"series": "", **({"name": ""} if is_named else {})}
    columns[unlike(plot.x_title or "x", columns)] = "" if any(isinstance(row[-2], str) for row in rows) else ".4g"
    columns[unlike(plot.y_title or "y", columns)] = ".4g"
    return {
        "title": plot.title,
        "series": names,
        "alone": names[0] if len(names) == 1 and names[0] != plot.y_title else "",
        "points": describe_table(StudyTable(plot.name, plot.title, columns, rows)),
        "files": [f"{plot.name}.{ending}" for ending in formats],
    }


def unlike(heading: str, others: Collection[str]) -> str:
    """Return a heading that no other column has."""
    return heading if heading not in others else unlike(f"{heading} ′", others)


def build_chart(plot: StudyPlot) -> Chart:
    """Return the data of a plot, without numbers that JSON cannot represent."""
    sides = name_sides(plot)
    return {
        "x_title": plot.x_title,
        "y_title": plot.y_title,
        "log_x": plot.log_x,
        "diagonal": plot.diagonal,
        "series": [
            {
                "name": series.name,
                "joined": series.joined and not series.fit,
                "labels": list(series.labels),
                "sides": [sides.get((number, point), "") for point in range(len(series.labels))],
                "fit": {"x": [finite_part(x) for x, _ in series.fit], "y": [finite_part(y) for _, y in series.fit]},
                "x": _ends([x if isinstance(x, Bounded) else Bounded(x) for x in series.x]),  # type: ignore[arg-type]
                "y": _ends(series.y),
            }
            for number, series in enumerate(plot.series)
        ],
    }


def _ends(values: Sequence[Bounded]) -> dict[str, list[str | float | None]]:
    """Return middles, low and high ends, each as JSON takes them."""
    return {
        "at": [value.value if isinstance(value.value, str) else finite_part(value) for value in values],
        "low": [finite_part(value.low) for value in values],
        "high": [finite_part(value.high) for value in values],
    }
