"""What a reward model's preferences are worth on held-out pairs, as its fit measured them: figures and two charts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from afarm.evaluation.metrics import number
from afarm.report.charts import Chart
from afarm.report.run import Run

FIGURES = {"pairs": "pairs", "loss": "cross-entropy", "brier": "Brier score", "ece": "expected calibration error"}


def describe_held_out(run: Run) -> dict[str, Any] | None:
    """`figures` as (name, value), and the `reliability` bins as (confidence, observed share, pairs); None where the run
    has no such measurement."""
    measured = run.get("reward_model", {})
    if not number(measured.get("pairs")):
        return None
    figures = [(title, number(measured.get(name))) for name, title in FIGURES.items()]
    return {
        "figures": [(title, value) for title, value in figures if value is not None],
        "reliability": _bins(measured, "reliability", "confidence", "observed", "pairs"),
    }


def held_out_charts(run: Run) -> list[Chart]:
    """The reliability diagram and the histogram of margins, where the run has them."""
    measured = run.get("reward_model", {})
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
    """Three numbers of each bin, of those that have them."""
    bins = measured.get(name)
    found = [[number(b.get(f)) for f in fields] for b in bins if isinstance(b, dict)] if isinstance(bins, list) else []
    return [(a, b, c) for a, b, c in found if a is not None and b is not None and c is not None]
