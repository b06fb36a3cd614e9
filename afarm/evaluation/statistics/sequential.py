"""Sequential testing: stop asking the judge once the comparison is decided.

A 95% interval that is looked at after every answer excludes the truth at some time far more often than in 5% of cases.
A confidence sequence holds at all times together, so it may be watched, and asking may stop the moment it excludes an
even score. It comes from betting: start with one unit, and after each answer stake a part of the capital on the truth
being higher than m. If it is m, no strategy gains in expectation, and the capital ever reaches 1/α with probability α
at most (Ville 1939). Here the capital is spread over stakes of many sizes, which needs no guess of the variance.

The answers must come in random order. The decision is about the mean of the instructions that they are a sample of, as
all other intervals here are.

Source: Waudby-Smith and Ramdas 2024, "Estimating means of bounded random variables by betting" (sections 4 to 6).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from afarm.core.errors import DataError
from afarm.evaluation.statistics.intervals import LEVEL, Floats, IntervalEstimate

STAKES = np.geomspace(0.01, 0.95, 16)
"""Fractions of the largest stake that cannot lead to debt."""

Side = Literal["higher", "lower"]


@dataclass(frozen=True, slots=True)
class Decision:
    """The `side` of even that the mean is on, None while undecided, and the confidence sequence so far."""

    side: Side | None
    estimate: IntervalEstimate


def confidence_sequence(values: ArrayLike, *, level: float = LEVEL, steps: int = 30) -> IntervalEstimate:
    """The confidence sequence after these values in [0, 1], in the order they came.

    `error` is None: nothing here is normal. Raises `DataError` if a value is out of range.
    """
    checked = _checked(values)
    bounds = (_bound(checked, level, steps), 1 - _bound(1 - checked, level, steps))
    value = float(checked.mean()) if len(checked) else 0.5
    return IntervalEstimate(value, None, *bounds, len(checked), len(checked))


def decide(values: ArrayLike, *, level: float = LEVEL) -> Decision:
    """Decide on which side of 0.5 the mean is, from the values so far, each in [0, 1].

    For two systems, give (1 + first − second) / 2. However often one looks, the wrong side is named with probability
    1 − `level` at most.
    """
    higher, lower = decision_times(values, level=level)
    side: Side | None = None
    if higher is not None or lower is not None:
        side = "higher" if lower is None or (higher is not None and higher <= lower) else "lower"
    return Decision(side, confidence_sequence(values, level=level))


def decision_times(values: ArrayLike, *, level: float = LEVEL) -> tuple[int | None, int | None]:
    """The numbers of values after which the mean is surely higher than 0.5, and lower; else None."""
    found, threshold = _checked(values), np.log(2 / (1 - level))
    sides = (_log_capital(found, 0.5), _log_capital(1 - found, 0.5))
    higher, lower = (int(np.argmax(c >= threshold)) + 1 if (c >= threshold).any() else None for c in sides)
    return higher, lower


def _bound(values: Floats, level: float, steps: int) -> float:
    """The largest m that the mean is known to exceed. Capital falls as m rises, so bisection finds it."""
    low, high = 0.0, 1.0
    for _ in range(steps):
        middle = (low + high) / 2
        if (_log_capital(values, middle) >= np.log(2 / (1 - level))).any():
            low = middle
        else:
            high = middle
    return low


def _log_capital(values: Floats, m: float) -> Floats:
    """Log capital after each of `values` [t], of a bet that their mean is higher than `m` in (0, 1)."""
    logs = np.cumsum(np.log1p(STAKES[:, None] * (values / m - 1)), axis=1)
    top = logs.max(axis=0) if len(values) else np.zeros(0)
    return top + np.log(np.exp(logs - top).mean(axis=0))


def _checked(values: ArrayLike) -> Floats:
    found = np.asarray(values, dtype=np.float64)
    if wrong := found[~((found >= 0) & (found <= 1))].tolist():
        raise DataError(f"a value to bet on lies between 0 and 1, and is not {wrong[0]}")
    return found
