"""A study's directory: its page in HTML and Markdown, and the files of its tables and plots.

The HTML is one self-contained file: interactive plots, tables that sort, runs with links.
"""

from __future__ import annotations

import importlib.metadata
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from afarm.experiment.studies.findings import require_findings
from afarm.experiment.studies.progress import GridProgress
from afarm.experiment.studies.study import Bounded, Cell, Findings, StudyPlot, StudyTable
from afarm.report.charts import Chart
from afarm.report.page_shell import render_markdown, render_page
from afarm.report.study_plots import can_draw, draw_plot, name_sides
from afarm.report.study_tables import FORMATS, cell_text, end_texts, markdown_table
from afarm.storage.disk import write_whole

PAGE, MARKDOWN_PAGE = "report.html", "report.md"
REMEDY = "make room or choose another --output-dir"
MOST_RUNS = 500
"""Runs that the page lists: all are in `runs.csv`."""


@dataclass(frozen=True, slots=True)
class ShownStudy:
    """A study as its pages show it: its name, the `command` that asked for it, its runs and its findings.

    `formats` of the files of its plots are "svg", "png" and "pdf"; none if they were not drawn. Errors about the
    findings name `owner`, the study that returned them.
    """

    name: str
    command: str
    progress: GridProgress
    findings: Findings
    formats: Sequence[str] = ()
    owner: object = None

    @property
    def plots(self) -> list[StudyPlot]:
        """The plots that show anything: one point is a figure for a table."""
        return [plot for plot in self.findings.plots if sum(len(series.x) for series in plot.series) > 1]


BY_FORMULAS = (
    "These preferences are simulated.",
    "The answers come from a formula with noise: no language model and no person. Gains on this page are gains in that "
    "formula, not in quality.",
)
"""The warning on a study's pages if judges are formulas: its first sentence, in bold there, and the rest."""


def write_study(directory: Path, study: ShownStudy) -> Path:
    """Write what is there of a study, marked if runs are missing. Returns its page in Markdown.

    Raises `PluginError` for findings that cannot be written, such as a file that would lie elsewhere, and `StoreError`.
    """
    findings = study.findings
    require_findings(findings, study.name, study.owner)
    directory.mkdir(parents=True, exist_ok=True)
    for table in (*findings.tables, runs_table(study.progress)):
        for ending, write in FORMATS.items():
            write_whole(directory / f"{table.name}.{ending}", write(table), REMEDY)
    for plot in study.plots:
        for ending in study.formats if can_draw() else ():  # who replays a bundle may have no Matplotlib
            draw_plot(plot, directory / f"{plot.name}.{ending}")
    for further, text in findings.files.items():
        write_whole(directory / further, text, REMEDY)
    write_whole(directory / PAGE, render_study(study), REMEDY)
    shared = {"stopped": stopped_sentence(study.progress), "by_formulas": BY_FORMULAS}
    text = render_markdown("study_page", study=study, markdown_table=markdown_table, **shared)
    write_whole(directory / MARKDOWN_PAGE, text, REMEDY)
    return directory / MARKDOWN_PAGE


def write_comparison(path: Path, study: ShownStudy, remedy: str = REMEDY) -> Path:
    """Write the page of a comparison of methods or annotators. Returns its path. Raises `StoreError`."""
    write_whole(path, render_study(study, kind="comparison"), remedy)
    return path


def render_study(study: ShownStudy, kind: str = "study") -> str:
    """Render the page as text. A "comparison" lies among boards: its tables and plots have no files."""
    own = {
        "study": study,
        "kind": kind,
        "version": importlib.metadata.version("afarm"),
        "stopped": stopped_sentence(study.progress),
        "by_formulas": BY_FORMULAS,
        "most_runs": MOST_RUNS,
        "charts": [build_chart(plot) for plot in study.plots] or None,
        "number_columns": number_columns,
        "cell_parts": cell_parts,
    }
    return render_page("study_page", ["charts", "study_plots", "tables", "study_page"], **own)


def number_columns(table: StudyTable) -> list[bool]:
    """Tell which columns hold numbers, or texts that are all numbers, as the values of a setting are."""
    columns = [[row[place] for row in table.rows] for place in range(len(table.columns))]
    known = [[finite_part(cell) for cell in column if cell is not None] for column in columns]
    return [
        bool(form) or (bool(values) and None not in values)
        for form, values in zip(table.columns.values(), known, strict=True)
    ]


def finite_part(cell: Cell) -> float | None:
    """Return the number in a cell, or an interval's middle; None for text and non-finite values."""
    try:
        number = float(cell.value if isinstance(cell, Bounded) else cell)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def cell_parts(cell: Cell, form: str) -> tuple[str, str, str]:
    """Write a cell: its text, its interval apart, and the number it sorts by; each "" if there is none."""
    ends = end_texts(cell, form) if isinstance(cell, Bounded) else None
    middle = Bounded(cell.value) if isinstance(cell, Bounded) else cell
    value = finite_part(cell)
    return cell_text(middle, form), " to ".join(ends or ()), "" if value is None else repr(value)


def build_chart(plot: StudyPlot) -> Chart:
    """Return the data of a plot, without numbers that JSON cannot represent."""
    sides = name_sides(plot)
    return {
        "title": plot.title,
        "x_title": plot.x_title,
        "y_title": plot.y_title,
        "level": plot.level,
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


def stopped_sentence(progress: GridProgress) -> str:
    """Say that runs are missing, be they still made or not; empty if none is."""
    if not progress.missing:
        return ""
    total = len(progress.runs)
    there = f"{len(progress.finished)} of {total} runs are there, {progress.missing} missing"
    return f"Not all is here: {there}. Unless it is at work, the same command goes on."


def runs_table(progress: GridProgress) -> StudyTable:
    """Table every figure of every finished run."""
    rows: list[dict[str, Cell]] = [
        {
            "run": done.name,
            **{place: str(value) for place, value in done.run.place.items()},
            "method": done.run.method,
            "seed": done.run.seed,
            **done.figures,
        }
        for done in progress.finished
    ]
    columns = dict.fromkeys(name for row in rows for name in row)
    forms = {name: "" if any(isinstance(row.get(name), str) for row in rows) else ".6g" for name in columns}
    cells: list[list[Cell]] = [[row.get(name) for name in columns] for row in rows]
    return StudyTable("runs", "All runs", forms, cells)
