"""What is shown first of an evaluation: its main figure with the error, and what warns of it.

An evaluator puts its main figure first, or calls it like itself. Names beside it say what belongs to it: `<figure>_se`,
or else what follows and ends in `_error` or `_se`; `<figure>_reference`; `<figure>_difference`, the paired one, with
`<figure>_difference_se`. Text under a name that ends in `_warning` is a flag.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from afarm.errors import PluginError

ERRORS = ("_se", "_error")
BY_PEOPLE = "prediction_powered"
"""What a win rate by people, from a few of their labels and many simulated ones, is called."""


@dataclass(frozen=True, slots=True)
class Figure:
    """`value` under `name`, its standard `error`, the `reference`'s, and the paired `difference` with its own error."""

    name: str
    value: float
    error: float | None
    reference: float | None
    difference: float | None
    difference_error: float | None


def main_figure(evaluator: str, metrics: Mapping[str, Any]) -> Figure | None:
    """The main figure of an evaluation; None where it has none."""
    name = evaluator if evaluator in metrics else next(iter(metrics), "")
    value = number(metrics.get(name))
    if value is None:
        return None
    after = list(metrics)[list(metrics).index(name) + 1 :]
    errors = [number(metrics[other]) for other in takewhile(lambda other: other.endswith(ERRORS), after)]
    error = next((found for found in errors if found is not None), None)
    beside = (number(metrics.get(f"{name}_{what}")) for what in ("reference", "difference", "difference_se"))
    return Figure(name, value, error, *beside)


def doubts(evaluator: str, metrics: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """What warns of an evaluation's figures, as stored flags (`afarm.guards`)."""
    for name, text in metrics.items():
        if name.endswith("_warning") and text:
            yield {"name": name, "count": 1, "of": 1, "example": "", "says": f"{evaluator}: {text}"}


def number(value: object) -> float | None:
    """`value` if it is a finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


def win_rate_interval(metrics: Mapping[str, Any]) -> tuple[float, float] | None:
    """The 95% interval of an evaluation's win rate, in percent; None for a single instruction."""
    from afarm.boards.board import interval

    rate = number(metrics.get("win_rate"))
    n = metrics.get("n_instructions", metrics.get("n_total"))
    return None if rate is None else interval(rate, number(metrics.get("standard_error")), n)


def unseen(metrics: Mapping[str, Any]) -> str:
    """Of a win rate that is not clear from 50%, what difference so many instructions would have shown; else empty."""
    between, error = win_rate_interval(metrics), number(metrics.get("standard_error"))
    n = metrics.get("n_instructions", metrics.get("n_total"))
    if between is None or not error or not n or not between[0] <= 50 <= between[1]:
        return ""
    try:
        from afarm.statistics import minimum_detectable_difference
    except PluginError:  # without numpy and scipy
        return ""
    points = minimum_detectable_difference(n, error * math.sqrt(n))
    return f"with {n:,} instructions a difference under {points:.1f} points would go unseen"
