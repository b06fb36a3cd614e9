"""The directory of a study: its Markdown page, the files of its tables and plots, and its figures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from afarm.core.errors import PluginError
from afarm.experiment.studies.progress import GridProgress
from afarm.experiment.studies.study import Cell, Findings, StudyTable
from afarm.report.study_plots import can_draw, draw_plot
from afarm.report.study_tables import FORMATS, markdown_table
from afarm.storage.disk import write_whole
from afarm.storage.text import code, markdown

PAGE = "report.md"
FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
FURTHER = re.compile(rf"{FILE_NAME.pattern}\.(yaml|json|jsonl|txt)")
"""The names of further files: none of a table, a plot or the page."""
TAKEN = {"runs", "report"}
REMEDY = "make room or choose another --output-dir"


@dataclass(frozen=True, slots=True)
class ShownStudy:
    """A study as its pages show it.

    Args:
        name: The study's.
        command: The command that it was asked for with.
        progress: Its runs.
        findings: What is read off them.
        formats: Of the files of its plots: "svg", "png" and "pdf"; none if they were not drawn.
    """

    name: str
    command: str
    progress: GridProgress
    findings: Findings
    formats: Sequence[str] = ()


def write_files(directory: Path, study: ShownStudy) -> Path:
    """Write what is there of a study, marked if runs are missing. Returns the page's path.

    Raises `PluginError` for a file that would lie elsewhere or over another, and `StoreError`.
    """
    findings = study.findings
    for name in [*(table.name for table in findings.tables), *(plot.name for plot in findings.plots)]:
        if not FILE_NAME.fullmatch(name) or name in TAKEN:  # it would lie elsewhere, or over the page's own files
            raise PluginError(f"the name of a table or plot names its files: letters, digits, - and _, not {name!r}")
    for further in findings.files:
        if not FURTHER.fullmatch(further):
            raise PluginError(
                f"a further file of a study is a yaml, json, jsonl or txt beside its page, not {further!r}"
            )
    directory.mkdir(parents=True, exist_ok=True)
    for table in (*findings.tables, runs_table(study.progress)):
        for ending, write in FORMATS.items():
            write_whole(directory / f"{table.name}.{ending}", write(table), REMEDY)
    for plot in findings.plots:
        for ending in study.formats if can_draw() else ():  # who replays a bundle may have no Matplotlib
            draw_plot(plot, directory / f"{plot.name}.{ending}")
    for further, text in findings.files.items():
        write_whole(directory / further, text, REMEDY)
    page = directory / PAGE
    write_whole(page, "\n".join(_lines(study)).rstrip() + "\n", REMEDY)
    return page


BY_FORMULAS = (
    "These preferences are simulated.",
    "The answers come from a formula with noise: no language model and no person. Gains on this page are gains in that "
    "formula, not in quality.",
)
"""The warning on a study's pages if judges are formulas: its first sentence, in bold there, and the rest."""


def _lines(study: ShownStudy) -> list[str]:
    progress, findings = study.progress, study.findings
    lines = [f"# Study {markdown(study.name)}", "", code(study.command), ""]
    if stopped := stopped_sentence(progress):
        lines += [f"**{stopped}**", ""]
    if progress.simulated:
        lines += ["**{}** {}".format(*BY_FORMULAS), ""]
    for table in filter(lambda table: table.rows, findings.tables):
        lines += [f"## {markdown(table.title)}", "", markdown_table(table), ""]
    for plot in findings.plots if study.formats else ():
        lines += [f"![{markdown(plot.title)}]({plot.name}.{study.formats[0]})", ""]
    for note in findings.notes:
        lines += [f"- {markdown(note)}"]
    if progress.failed:
        lines += ["", "## Failed", ""]
        lines += [f"- {markdown(label)}: {markdown(why)}" for label, why in progress.failed.items()]
    if progress.finished:
        names = [[done.run.label, done.name] for done in progress.finished]
        listed = markdown_table(StudyTable("names", "Runs", {"run": "", "record": ""}, names))
        lines += ["", "## Runs", "", listed, "", "All their figures: `runs.csv`."]
    return lines


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
