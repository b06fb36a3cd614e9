"""Calibration of a reward model on held-out pairs, as its fit measured it: figures and two charts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from afarm.evaluation.metrics import finite_number
from afarm.report.charts import Chart
from afarm.storage.runs import RunRecord

FIGURES = {"pairs": "pairs", "loss": "cross-entropy", "brier": "Brier score", "ece": "expected calibration error"}


def describe_held_out(record: RunRecord) -> dict[str, Any] | None:
    """Collect `figures` as (name, value) and `reliability` bins as (confidence, observed share, pairs).

    None if the run has no such measurement.
    """
    measured = record.section("reward_model")
    if not finite_number(measured.get("pairs")):
        return None
    figures = [(title, finite_number(measured.get(name))) for name, title in FIGURES.items()]
    return {
        "figures": [(title, value) for title, value in figures if value is not None],
        "reliability": _bins(measured, "reliability", "confidence", "observed", "pairs"),
    }


def chart_held_out(record: RunRecord) -> list[Chart]:
    """Chart the reliability diagram and the histogram of margins, if the run has them."""
    measured = record.section("reward_model")
    reliability = _bins(measured, "reliability", "confidence", "observed", "pairs")
    margins = _bins(measured, "margins", "from", "to", "pairs")
    charts: list[Chart] = []
    if reliability:
        charts.append(
            {
                "kind": "reliability",
                "stage": "",
                "title": "How often it is right when it is so sure",
                "x_title": "its probability for the output it prefers",
                "y_title": "share of labels that agree",
                "x": [confidence for confidence, _, _ in reliability],
                "y": [observed for _, observed, _ in reliability],
                "pairs": [pairs for _, _, pairs in reliability],
            }
        )
    if any(pairs for _, _, pairs in margins):
        charts.append(
            {
                "kind": "bars",
                "stage": "",
                "title": "By how much the preferred output is ahead",
                "x_title": "reward ahead (below 0: the model disagrees)",
                "y_title": "pairs",
                "x": [(low + high) / 2 for low, high, _ in margins],
                "y": [pairs for _, _, pairs in margins],
                "width": margins[0][1] - margins[0][0],
            }
        )
    return charts


def _bins(measured: Mapping[str, Any], name: str, *fields: str) -> list[tuple[float, float, float]]:
    """Three numbers per bin, of the bins that have them."""
    bins = measured.get(name)
    rows = (
        [[finite_number(b.get(f)) for f in fields] for b in bins if isinstance(b, dict)]
        if isinstance(bins, list)
        else []
    )
    return [(a, b, c) for a, b, c in rows if a is not None and b is not None and c is not None]
