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
"""Headings and formats of a row's figures."""

ERRORS = {"win_rate": "standard_error", "gold": "gold_se"}
"""Figures and their standard errors."""

NOTES = (
    "Each n takes the first n of the same samples, so that neighbours are alike by more than their intervals say.",
    "Intervals are 1.96 standard errors over instructions.",
    "The KL is a bound: ln n − (n − 1) / n.",
)


def curve_findings(rows: Sequence[Mapping[str, Any]]) -> Findings:
    """Tabulate the curve, and plot it over n. `curve.json` has all measurements."""
    known = [name for name in COLUMNS if any(row.get(name) is not None for row in rows)]
    cells = [[measured(row, name) if name in ERRORS else row.get(name) for name in known] for row in rows]
    table = StudyTable("curve", "Best of n", dict(COLUMNS[name] for name in known), cells)
    rates = _series(rows, "win_rate", "win rate, %")
    plots = [StudyPlot("win-rate", "Win rate by n", "n", "win rate, %", [rates], log_x=True, level=50)]
    if "gold" in known:  # the reward that chose the samples, beside the gold reward of the chosen
        both = [_series(rows, "gold", "gold reward"), _series(rows, "reward", "reward model’s score")]
        title = "What it was chosen by, and the gold reward"
        plots.append(StudyPlot("proxy-and-gold", title, "n", "reward", both, log_x=True))
    answer = _say_best({row["n"]: rate for row in rows if (rate := measured(row, "win_rate"))})
    return Findings([table], plots, NOTES, {"curve.json": json.dumps(rows, indent=1) + "\n"}, answer)


def _say_best(rates: Mapping[int, Bounded]) -> str:
    """Say which n has the highest win rate, beside that of the smallest; empty without win rates."""
    if not rates:
        return ""
    n, least = max(rates, key=lambda n: rates[n].value), min(rates)
    rate, low, high = rates[n]
    text = f"Best of {n}: win rate {rate:.1f} % against the starting policy"
    text += "" if low is None or high is None else f" (95 % {low:.1f} to {high:.1f})"
    if n == least:
        return f"{text}, the highest of n = {', '.join(map(str, rates))}." if len(rates) > 1 else f"{text}."
    return f"{text}, the highest; best of {least} has {rates[least].value:.1f} %."


def measured(row: Mapping[str, Any], name: str) -> Bounded | None:
    """Return a figure of a row, with its 95% interval if its error is known, a percentage within 0 to 100."""
    if row.get(name) is None:
        return None
    value, error = float(row[name]), row.get(ERRORS.get(name, ""))
    if error is None:
        return Bounded(value)
    low, high = value - NORMAL_95 * error, value + NORMAL_95 * error
    return Bounded(value, max(low, 0.0), min(high, 100.0)) if name == "win_rate" else Bounded(value, low, high)


def _series(rows: Sequence[Mapping[str, Any]], name: str, title: str) -> Series:
    known = {row["n"]: figure for row in rows if (figure := measured(row, name))}
    return Series(title, [*known], [*known.values()])
