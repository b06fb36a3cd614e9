"""The card of a fitted judge, and the files that it lies beside."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path

from afarm_plugins.fitted_judges.candidates import REWARD_MODEL
from afarm_plugins.fitted_judges.features import FEATURES
from afarm_plugins.fitted_judges.fit import FitReport
from afarm_plugins.fitted_judges.measures import Measured
from afarm_plugins.fitted_judges.utility import FILE

CARD = "README.md"
FIGURES = "figures.json"
HEADINGS = ("", "pairs", "agrees, %", "the longer wins, %", "gain, points", "log loss", "Brier", "ECE")
LENGTH_WORD = "no better than length"
"""The word on the card of a judge that does not beat the rule of length by its interval."""


def write_judge(directory: Path, report: FitReport, data: Sequence[str], licence: str, command: str) -> None:
    """Write `judge.json`, which decides, `figures.json` and the card, which tell.

    The card names the files of the `data`, the `licence` of their labels and the `command` that made the judge.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for name, contents in ((FILE, report.weights.to_json()), (FIGURES, report.to_json())):
        (directory / name).write_text(json.dumps(contents, indent=1) + "\n", encoding="utf-8")
    card = "\n\n".join(_sections(report, _origin(report, data, licence, command))) + "\n"
    (directory / CARD).write_text(card, encoding="utf-8")


def _sections(report: FitReport, origin: str) -> Iterator[str]:
    word = "" if report.beats_length else f" ({LENGTH_WORD})"
    yield f"# A fitted judge: {report.kept}{word}"
    yield (
        f"{report.verdict} It knows the surface of texts that its labels happened to like, not quality. A label is "
        "drawn with the fitted probability, so that it errs as often as it is unsure."
    )
    yield origin
    yield f"## On instructions it never saw ({report.folds} folds; 95% intervals over instructions)"
    yield _figures({"**this judge**": report.chosen, **report.candidates})
    yield (
        f"Kept: {report.kept}, by log loss. *This judge* is the choice made anew in each fold from the others."
        + ("" if report.people is None else f" One label against the others of its pair: {report.people.text()}.")
    )
    yield "## Calibration"
    yield table(
        ("probability of its choice", "pairs", "mean", "labels for it"),
        [
            (f"{b.low:.1f} to {b.high:.1f}", str(b.pairs), f"{b.predicted:.3f}", f"{b.observed:.3f}")
            for b in report.chosen.reliability
        ],
    )
    for heading, systems in (("By system", report.systems), ("Systems it never saw", report.unseen)):
        if systems:
            yield f"## {heading}"
            yield _figures(systems)
    if report.systems and report.kept == REWARD_MODEL:
        yield "## Systems it never saw"
        yield "Not measured: a reward model would have to be fitted anew in every fold for each system."
    if report.weights.features:
        yield "## Weights, in log-odds"
        rows = [(name, f"{weight:+.3f}", FEATURES[name].formula) for name, weight in report.weights.features.items()]
        yield table(("feature", "weight", "formula"), rows)


def _origin(report: FitReport, data: Sequence[str], licence: str, command: str) -> str:
    counts = report.counts
    left_out = counts.describe_left_out
    lines = {
        "data": ", ".join(data),
        "licence of the labels": licence or "not stated (--licence)",
        "labels": f"{counts.labels}, of which {counts.draws} draws{f'; left out: {left_out}' if left_out else ''}",
        "annotators": ", ".join(f"{name} ({count})" for name, count in sorted(counts.annotators.items())),
        "pairs with a better output": f"{report.chosen.pairs}, of {report.chosen.instructions} instructions",
        "date": date.today().isoformat(),
        "made by": f"`{command}`",
    }
    if encoder := report.weights.embeddings:
        lines["sentence encoder"] = f"{encoder.model} ({encoder.identity})"
    return "\n".join(f"- {name}: {text}" for name, text in lines.items() if text)


def _figures(judges: Mapping[str, Measured]) -> str:
    """Write the figures of judges, by name, as a table."""
    rows = [
        (
            name,
            str(figures.pairs),
            figures.agreement.text(),
            figures.longer.text(),
            figures.gain.signed(),
            f"{figures.log_loss:.3f}",
            f"{figures.brier:.3f}",
            f"{figures.ece:.3f}",
        )
        for name, figures in judges.items()
    ]
    return table(HEADINGS, rows)


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a Markdown table."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
