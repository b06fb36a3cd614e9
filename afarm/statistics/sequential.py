"""Looking at the answers as they come, and stopping when they are clear.

A 95% interval that is looked at after every answer excludes the truth at some time far more often than in 5% of cases.
A confidence sequence holds at all times together, so it may be watched, and asking may stop the moment it excludes an
even score. It is had by betting: start with one unit, and after each answer stake a part of the capital that the truth
is higher than m. If it is m, no strategy gains in expectation, and the capital ever reaches 1/α with probability α at
most (Ville 1939). Here the capital is spread over stakes of many sizes, which needs no guess of the variance.

The answers must come in random order. With `population`, they are drawn without replacement from that many
instructions, and what is decided is the mean of just these: what asking about all of them would have shown. Without,
it is the mean of the instructions that they are a sample of, which is what all other intervals here are about.

Source: Waudby-Smith and Ramdas 2024, "Estimating means of bounded random variables by betting" (sections 4 to 6).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from afarm.core.errors import DataError
from afarm.statistics.intervals import LEVEL, Floats, IntervalEstimate

STAKES = np.geomspace(0.01, 0.95, 16)
"""Parts of the most that can be staked without owing anything."""

TINY = 1e-9

Side = Literal["higher", "lower"]


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether the mean is `higher` or `lower` than even, None as long as it is not clear; and the sequence as it is."""

    side: Side | None
    estimate: IntervalEstimate


def confidence_sequence(
    values: ArrayLike, *, level: float = LEVEL, population: int | None = None, steps: int = 30
) -> IntervalEstimate:
    """The interval, after these values in [0, 1] in the order they came, that holds at all times together.

    `error` is None: nothing here is normal. Raises `DataError` where a value is out of range, or there are more than
    `population`.
    """
    found = _checked(values, population)
    bounds = (_bound(found, level, population, steps), 1 - _bound(1 - found, level, population, steps))
    value = float(found.mean()) if len(found) else 0.5
    return IntervalEstimate(value, None, *bounds, len(found), len(found), level)


def decide(values: ArrayLike, *, even: float = 0.5, level: float = LEVEL, population: int | None = None) -> Decision:
    """Whether the values seen so far, each in [0, 1], settle on which side of `even` their mean is.

    For a system's wins even is 0.5; for two systems, give (1 + first − second) / 2. However often one looks, the wrong
    side is named with probability 1 − `level` at most.
    """
    found = _checked(values, population)
    higher, lower = decision_times(found, even=even, level=level, population=population)
    side: Side | None = None
    if higher is not None or lower is not None:
        side = "higher" if lower is None or (higher is not None and higher <= lower) else "lower"
    return Decision(side, confidence_sequence(found, level=level, population=population))


def decision_times(
    values: ArrayLike, *, even: float = 0.5, level: float = LEVEL, population: int | None = None
) -> tuple[int | None, int | None]:
    """After how many values their mean is known to be higher than `even`, and lower; None where it is not."""
    found, threshold = _checked(values, population), np.log(2 / (1 - level))
    sides = (_log_capital(found, even, population), _log_capital(1 - found, 1 - even, population))
    higher, lower = (int(np.argmax(c >= threshold)) + 1 if (c >= threshold).any() else None for c in sides)
    return higher, lower


def _bound(values: Floats, level: float, population: int | None, steps: int) -> float:
    """The largest m of which it is known that the mean is higher. Capital falls as m rises, so halving finds it."""
    low, high = 0.0, 1.0
    for _ in range(steps):
        middle = (low + high) / 2
        if (_log_capital(values, middle, population) >= np.log(2 / (1 - level))).any():
            low = middle
        else:
            high = middle
    return low


def _log_capital(values: Floats, m: float, population: int | None) -> Floats:
    """The log of the capital after each of `values` [t], of betting that their mean is higher than `m`, in (0, 1)."""
    expected: float | Floats = m
    if population is not None:
        # The mean of those that are left, if m is that of all.
        before = np.concatenate([[0.0], np.cumsum(values)[:-1]])
        expected = (population * m - before) / np.arange(population, population - len(values), -1)
    gain = np.divide(values, expected, out=np.zeros_like(values), where=np.asarray(expected) > TINY) - 1
    logs = np.cumsum(np.log1p(STAKES[:, None] * gain), axis=1)
    top = logs.max(axis=0) if len(values) else np.zeros(0)
    capital = top + np.log(np.exp(logs - top).mean(axis=0))
    if population is not None:
        # Where more has come already than all can hold if m is their mean, it is not.
        capital[np.cumsum(values) > population * m + TINY] = np.inf
    return capital


def _checked(values: ArrayLike, population: int | None) -> Floats:
    found = np.asarray(values, dtype=np.float64)
    if wrong := found[~((found >= 0) & (found <= 1))].tolist():
        raise DataError(f"a value to bet on lies between 0 and 1, and is not {wrong[0]}")
    if population is not None and len(found) > population:
        raise DataError(f"{len(found)} values cannot be drawn from {population} instructions")
    return found
