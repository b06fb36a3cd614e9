"""Paired differences of two systems on the same instructions, and tests of their significance.

The test is Student's, of the paired differences: it goes by the interval that is shown, so that one excludes 0 exactly
if the other is below 5%, and in simulations with draws, weights, and differences that are mostly 0 it keeps its level
from 10 instructions on. docs/notes/statistics.md compares it with others.

Sources: Student 1908, Holm 1979; Dror et al. 2018 on which test suits which metric.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtr

from afarm.core.errors import DataError
from afarm.evaluation.statistics.intervals import ROUNDING, IntervalEstimate, mean, minimum_detectable_difference


@dataclass(frozen=True, slots=True)
class Difference:
    """The first system less the second, over `n` common instructions, in the unit of the values.

    `low` and `high` are the t interval of the paired differences, None if these do not vary; `p_value` is
    Student's, None with a single instruction; `adjusted` is the p-value corrected for all comparisons that were
    made together. `detectable` is what n instructions would show with a probability of 80%.
    """

    value: float
    error: float | None
    low: float | None
    high: float | None
    p_value: float | None
    adjusted: float | None
    n: int
    detectable: float | None


def paired_difference(first: ArrayLike, second: ArrayLike) -> Difference:
    """Compare two systems by their values [instructions], in one order; NaN is absent.

    Raises `DataError` if they are of different lengths or have no instruction in common.
    """
    one, two = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if one.shape != two.shape:
        raise DataError(f"values of {one.size} instructions cannot be paired with those of {two.size}")
    gaps = one - two
    has_one, has_two = ~np.isnan(one), ~np.isnan(two)
    both = has_one & has_two
    if not both.any():
        raise DataError(
            f"the two systems share no instruction (one has {has_one.sum()}, the other {has_two.sum()}): "
            "evaluate both on the same instructions"
        )
    found = mean(gaps[both])
    p = _p_value(found) if found.n > 1 else None
    spread = float(gaps[both].std(ddof=1)) if found.n > 1 else None
    varies = bool(found.error)
    return Difference(
        found.value,
        found.error,
        found.low if varies else None,
        found.high if varies else None,
        p,
        p,
        found.n,
        None if spread is None else minimum_detectable_difference(found.n, spread),
    )


def paired_differences(table: ArrayLike, baseline: int, *, best: bool = False) -> list[Difference | None]:
    """Compare each system of a table with a baseline, corrected for all comparisons (Holm).

    Returns None for the baseline itself and for systems that share no instruction with it.

    Args:
        table: values [systems, instructions]; NaN is absent.
        baseline: its row.
        best: the baseline is the best of the table. The values themselves chose it, and a lucky one among equals looks
            better than the others by more than chance; so the correction is over every pair that might have been
            compared.
    """
    values = np.asarray(table, dtype=np.float64)
    found: list[Difference | None] = [
        None
        if row == baseline or not (~np.isnan(values[row]) & ~np.isnan(values[baseline])).any()
        else paired_difference(values[row], values[baseline])
        for row in range(len(values))
    ]
    known = [d for d in found if d is not None and d.p_value is not None]
    pairs = len(values) * (len(values) - 1) // 2
    adjusted = iter(holm([d.p_value for d in known if d.p_value is not None], tests=pairs if best else None))
    return [replace(d, adjusted=next(adjusted)) if d is not None and d.p_value is not None else d for d in found]


def _p_value(found: IntervalEstimate) -> float:
    """The two-sided p-value of a mean of gaps over at least 2 instructions, if it is 0."""
    if not found.error:  # no spread to go by: as likely as that many equal signs
        return 1.0 if abs(found.value) < ROUNDING else 2.0 ** (1 - found.n)
    return 2 * float(stdtr(found.n - 1, -abs(found.value) / found.error))


def holm(p_values: Sequence[float], tests: int | None = None) -> list[float]:
    """Correct the p-values of several tests, to be read as if each were the only one (Holm 1979).

    The chance that any true null is then rejected at α is at most α, whatever the tests have in common. `tests` is
    their number, if these were picked out of more.
    """
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(p[order] * ((tests or len(p)) - np.arange(len(p)))))
    return [float(value) for value in adjusted]
