"""Win rate, reward and gold over n: the findings of `afarm best-of-n`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from afarm import NORMAL_95, Bounded, Findings, Series, StudyPlot, StudyTable

COLUMNS = {
    "n": ("n", "d"),
    "kl_bound": ("KL at most, nats", ".2f"),
    "reward": ("reward", ".2f"),
    "gold": ("gold", ".2f"),
    "avg_length": ("characters", ",.0f"),
    "win_rate": ("win rate, %", ".1f"),
}
"""Figures of a row with their headings and formats."""

ERRORS = {"win_rate": "standard_error", "gold": "gold_se"}
"""The names of standard errors by their figures."""

NOTES = (
    "Each n takes the first n of the same samples, so that neighbours are alike by more than their intervals say.",
    "Intervals are 1.96 standard errors over instructions.",
    "The KL is a bound: ln n − (n − 1) / n.",
)


def curve_findings(rows: Sequence[Mapping[str, Any]]) -> Findings:
    """Table the curve, and plot it over n. `curve.json` has all that was measured."""
    known = [name for name in COLUMNS if any(row.get(name) is not None for row in rows)]
    table = StudyTable(
        "curve", "Best of n", dict(COLUMNS[name] for name in known), [_cells(row, known) for row in rows]
    )
    plots = [_over_n(rows, "win_rate", "Win rate by n", "win rate, %")]
    if "gold" in known:
        plots.append(_proxy_and_gold(rows))
    return Findings([table], plots, NOTES, {"curve.json": json.dumps(rows, indent=1) + "\n"})


def measured(row: Mapping[str, Any], name: str) -> Bounded:
    """Return a figure of a row, with its 95% interval if its error is known, a percentage within 0 to 100."""
    value, error = float(row[name]), row.get(ERRORS.get(name, ""))
    if error is None:
        return Bounded(value)
    low, high = value - NORMAL_95 * error, value + NORMAL_95 * error
    return Bounded(value, max(low, 0.0), min(high, 100.0)) if name == "win_rate" else Bounded(value, low, high)


def _cells(row: Mapping[str, Any], names: Sequence[str]) -> list[Any]:
    return [None if row.get(name) is None else measured(row, name) if name in ERRORS else row[name] for name in names]


def _over_n(rows: Sequence[Mapping[str, Any]], name: str, title: str, unit: str) -> StudyPlot:
    return StudyPlot(name.replace("_", "-"), title, "n", unit, [_series(rows, name, unit)], log_x=True)


def _series(rows: Sequence[Mapping[str, Any]], name: str, title: str) -> Series:
    known = [row for row in rows if row.get(name) is not None]
    return Series(title, [row["n"] for row in known], [measured(row, name) for row in known])


def _proxy_and_gold(rows: Sequence[Mapping[str, Any]]) -> StudyPlot:
    """Plot the reward that chose the samples beside the gold reward of the chosen."""
    both = [_series(rows, "gold", "gold reward"), _series(rows, "reward", "reward model’s score")]
    return StudyPlot("proxy-and-gold", "What it was chosen by, and the gold reward", "n", "reward", both, log_x=True)
