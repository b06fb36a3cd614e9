"""Findings of a comparison of annotators, for the study and for `afarm annotators compare`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from afarm import HUMANS, AnnotatorReport, Bounded, Findings, Series, StudyPlot, StudyTable, as_bounded
from afarm.experiments import GridProgress
from afarm.report import COLUMNS, PREFERENCES, ShownStudy, write_comparison
from afarm_plugins.studies.over_seeds import say_highest

HEADINGS = {name: title.removeprefix("prefers ") for name, title, _ in COLUMNS}


def write(comparison: AnnotatorReport, command: str, path: Path) -> None:
    """Write the page. Raises `StoreError` if it cannot be written."""
    count = len(comparison.profiles)
    findings = annotator_findings(comparison)
    findings = replace(findings, notes=[*findings.notes, *list_caveats(comparison)])
    shown = ShownStudy(f"{count} annotator{'s' * (count != 1)} compared", command, GridProgress(()), findings)
    write_comparison(path, shown, "choose another --html")


def list_caveats(report: AnnotatorReport) -> list[str]:
    """List caveats: prices known for part of the labels only, and annotators read from several files."""
    notes = [
        f"{p.annotator}: a price is known for {p.price.n if p.price else 0} of {p.labels} labels"
        + ("; $ per 1,000 is theirs." if p.price else ".")
        for p in report.profiles
        if any(other.price for other in report.profiles) and (p.price.n if p.price else 0) < p.labels
    ]
    return notes + [
        f"{p.annotator}: one annotator, from {len(p.files)} files ({', '.join(p.files)}); --by-file parts them."
        for p in report.profiles
        if p.annotator != HUMANS and len(p.files) > 1
    ]


def annotator_findings(
    report: AnnotatorReport,
    called: Callable[[str], str] = str,
    family: Callable[[str], str] | None = None,
    figures: Collection[str] = tuple(HEADINGS),
) -> Findings:
    """Table and plot the annotators of a comparison.

    Args:
        report: The comparison.
        called: Returns what an annotator is called.
        family: Returns the family of an annotator: a column, and a colour in plots.
        figures: The fields of `COLUMNS` that are shown, as far as an annotator has them.
    """
    profiles = report.profiles
    known = [(n, places) for n, _, places in COLUMNS if n in figures and any(getattr(p, n) for p in profiles)]
    columns = {"annotator": "", **({"family": ""} if family else {}), "pairs": "d", "labels": "d"}
    rows: list[list[Any]] = [
        [
            called(profile.annotator),
            *([family(profile.annotator)] if family else []),
            profile.pairs,
            profile.parsed,
            *(as_bounded(getattr(profile, name)) for name, _ in known),
        ]
        for profile in profiles
    ]
    columns |= {HEADINGS[name]: f".{places}f" for name, places in known}
    tables = [StudyTable("annotators", "Annotators, with 95% intervals", columns, rows)]
    names = [profile.annotator for profile in profiles]
    if report.matrix:
        mutual = [[report.agreement(one, other) for other in names] for one in names]
        cells: list[list[Any]] = [
            [called(one), *(f.value if f else None for f in row)] for one, row in zip(names, mutual, strict=True)
        ]
        headings = {"annotator": "", **{called(name): ".0f" for name in names}}
        tables.append(
            StudyTable("agreement", "Agreement of one label with another on the same pair, %", headings, cells)
        )
    preferred = [name for name in PREFERENCES if name in figures]
    plots = [
        _each(report, called, "agreement", "Agreement with people", "percent", ["agreement"]),
        _scatter(report, called, family, "price", "agreement"),
        _scatter(report, called, family, "bias", "variance"),
        _each(report, called, "preferences", "What annotators prefer: shares of choices", "share", preferred),
    ]
    return Findings(tables, [plot for plot in plots if plot is not None], _notes(report), answer=say_highest(tables[0]))


def _each(
    report: AnnotatorReport, called: Callable[[str], str], name: str, title: str, y_title: str, figures: Sequence[str]
) -> StudyPlot | None:
    """Plot figures by annotator, a series for each; None if nobody has one."""
    series = []
    for figure in figures:
        points = [(called(p.annotator), known) for p in report.profiles if (known := as_bounded(getattr(p, figure)))]
        if points:
            series.append(Series(HEADINGS[figure], [x for x, _ in points], [y for _, y in points], joined=False))
    return StudyPlot(name, title, "annotator", y_title, series) if series else None


def _scatter(
    report: AnnotatorReport, called: Callable[[str], str], family: Callable[[str], str] | None, x: str, y: str
) -> StudyPlot | None:
    """Plot one figure of annotators over another, prices on a log axis; None if fewer than two have both."""
    by_family: dict[str, list[tuple[float, Bounded, str]]] = {}
    for profile in report.profiles:
        across, up = as_bounded(getattr(profile, x)), as_bounded(getattr(profile, y))
        if across is not None and up is not None and (across.value > 0 or x != "price"):
            group = family(profile.annotator) if family else "annotators"
            by_family.setdefault(group, []).append((across.value, up, called(profile.annotator)))
    if sum(map(len, by_family.values())) < 2:
        return None
    series = [Series.of_points(name, points) for name, points in by_family.items()]
    title = f"{HEADINGS[y]} over {HEADINGS[x]}"
    return StudyPlot(f"{y}-by-{x}", title, HEADINGS[x], HEADINGS[y], series, log_x=x == "price")


def _notes(report: AnnotatorReport) -> list[str]:
    notes = [
        "Agreement is that of one label with the mode of all labels of people on the pair; of people, with the mode of "
        "the others. Bias is the error of the mode of an annotator's labels, variance that of one label against the "
        "mode of the annotator's others: compare them at the same number of labels per pair only.",
        "Longer, lists and first shown are shares of choices: for the output that is longer by more than 30 characters,"
        " for the only one with a list, for the one shown first.",
    ]
    if all(profile.agreement is None for profile in report.profiles):
        notes.append("There are no labels of people, so agreement and bias cannot be known.")
    return notes
