"""A comparison of annotators as one self-contained HTML page: tables, and plots with plotly."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from afarm.evaluation.agreement import AnnotatorReport, Profile
from afarm.evaluation.labels import HUMANS
from afarm.evaluation.metrics import NORMAL_95, Estimate
from afarm.report.charts import plotly_script
from afarm.report.page_shell import render_page
from afarm.storage.disk import write_whole

COLUMNS: tuple[tuple[str, str, int], ...] = (
    ("agreement", "agreement, %", 1),
    ("bias", "bias, %", 1),
    ("variance", "variance, %", 1),
    ("unparsed", "unparsed, %", 1),
    ("price", "$ per 1,000", 2),
    ("seconds", "s per 1,000", 0),
    ("spearman", "Spearman", 2),
    ("pearson", "Pearson", 2),
    ("prefers_longer", "prefers longer", 2),
    ("prefers_lists", "prefers lists", 2),
    ("prefers_first", "prefers output_1", 2),
    ("prefers_first_shown", "prefers first shown", 2),
    ("prefers_own_family", "prefers own family", 2),
)
"""The columns of the table of annotators: the field, its heading and its decimals."""
PREFERENCES = ("prefers_longer", "prefers_lists", "prefers_first", "prefers_first_shown", "prefers_own_family")
"""The columns that show what annotators prefer."""


def write(comparison: AnnotatorReport, files: Sequence[str], path: Path) -> None:
    """Write the page. Raises `StoreError` if it cannot be written."""
    write_whole(path, render_annotators(comparison, files, plotly_script()), "choose another --html")


def render_annotators(comparison: AnnotatorReport, files: Sequence[str], plotly: str | None) -> str:
    """Render the page as text; `plotly` is the source of plotly.js, None to leave the plots out."""
    columns = [c for c in COLUMNS if any(getattr(p, c[0]) is not None for p in comparison.profiles)]
    groups = [[c for c in columns if c[0] not in PREFERENCES], [c for c in columns if c[0] in PREFERENCES]]
    return render_page(
        "annotators_page",
        ["charts", "tables", "annotators_page"],
        plotly,
        files=files,
        notes=comparison.notes(),
        people=any(p.agreement is not None for p in comparison.profiles),
        tables=[
            {
                "headings": [title for _, title, _ in group],
                "rows": [describe_profile(p, group) for p in comparison.profiles],
            }
            for group in groups
        ],
        mutual=len(comparison.profiles) > 1 and bool(comparison.matrix),
        names=[p.annotator for p in comparison.profiles],
        matrix=[[estimate_cell(f, 1) for f in row] for row in _matrix(comparison)],
        charts=charts(comparison) if plotly else {},
    )


def describe_profile(profile: Profile, columns: Sequence[tuple[str, str, int]]) -> dict[str, Any]:
    """Describe one row of the table."""
    cells = [estimate_cell(getattr(profile, name), places) for name, _, places in columns]
    return {"annotator": profile.annotator, "pairs": profile.pairs, "labels": profile.labels, "estimates": cells}


def estimate_cell(estimate: Estimate | None, places: int) -> dict[str, str] | None:
    """Write an estimate: its value, its error and the number of labels behind it."""
    if estimate is None:
        return None
    error = "" if estimate.error is None else f"± {estimate.error:.{places}f}"
    return {"value": f"{estimate.value:.{places}f}", "error": error, "n": f"n = {estimate.n:,}"}


def charts(comparison: AnnotatorReport) -> dict[str, Any]:
    """Chart data: agreement, bias against variance, preferences, and the matrix of mutual agreement."""
    profiles = comparison.profiles
    data: dict[str, Any] = {}
    if agreeing := [p for p in profiles if p.agreement]:
        data["agreement"] = _dots(agreeing, ["agreement"], 100.0)
    both = [p for p in profiles if p.bias and p.variance]
    if any(p.annotator != HUMANS for p in both):
        data["bias"] = {
            "names": [p.annotator for p in both],
            "x": [p.variance.value for p in both if p.variance],
            "y": [p.bias.value for p in both if p.bias],
            "x_error": [NORMAL_95 * (p.variance.error or 0) for p in both if p.variance],
            "y_error": [NORMAL_95 * (p.bias.error or 0) for p in both if p.bias],
        }
    if kinds := [kind for kind in PREFERENCES if any(getattr(p, kind) for p in profiles)]:
        data["preferences"] = _dots(profiles, kinds, 1.0)
    if len(profiles) > 1 and comparison.matrix:
        names = [p.annotator for p in profiles]
        values = [[f.value if f else None for f in row] for row in _matrix(comparison)]
        data["matrix"] = {"names": names, "values": values}
    return data


def _dots(profiles: Sequence[Profile], kinds: Sequence[str], whole: float) -> dict[str, Any]:
    """Series of points with 95% intervals, one per kind, one line per annotator."""
    titles = {name: title.removeprefix("prefers ") for name, title, _ in COLUMNS}
    series = []
    for kind in kinds:
        estimates = [(p.annotator, e) for p in profiles if (e := getattr(p, kind)) is not None]
        series.append(
            {
                "name": titles[kind],
                "annotators": [name for name, _ in estimates],
                "x": [e.value for _, e in estimates],
                "error": [NORMAL_95 * (e.error or 0) for _, e in estimates],
            }
        )
    return {"names": [p.annotator for p in profiles], "series": series, "whole": whole}


def _matrix(comparison: AnnotatorReport) -> list[list[Estimate | None]]:
    names = [p.annotator for p in comparison.profiles]
    return [[comparison.agreement(one, other) for other in names] for one in names]
