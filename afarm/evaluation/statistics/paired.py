"""Paired differences of two systems on the same instructions, and tests of their significance.

The default test is Student's, of the paired differences: it goes by the interval that is shown, so that one excludes 0
exactly if the other is below 5%, and in simulations with draws, weights, and differences that are mostly 0 it keeps
its level from 10 instructions on (docs/notes/statistics.md). `sign_flip` needs no simulation: if it made no difference
which system answered, each instruction's difference could as well have had the other sign. It is exact for any n,
McNemar's exact test if every difference is −1, 0 or 1, and finds less with few instructions. Wilcoxon's test is not
offered: it asks about ranks of differences, not about the win rate shown.

Sources: Student 1908, Fisher 1935 (sign flips), McNemar 1947, Holm 1979; Dror et al. 2018 on which test suits which
metric.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtr

from afarm.core.errors import DataError
from afarm.core.seeding import integer
from afarm.evaluation.statistics.intervals import (
    BLOCK,
    LEVEL,
    RESAMPLES,
    ROUNDING,
    Floats,
    mean,
    minimum_detectable_difference,
    resampled,
)

Test = Literal["t", "sign_flip", "bootstrap"]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first system less the second, over `n` common instructions, in the unit of the values.

    `low` and `high` are the t interval of the paired differences, None if these do not vary; `p_value` is `test`'s,
    None with a single instruction; `adjusted` is the p-value corrected for all comparisons that were made together.
    `only_first` and `only_second` count the instructions that the other lacks, `detectable` is what n instructions
    would show with a probability of 80%.
    """

    value: float
    error: float | None
    low: float | None
    high: float | None
    p_value: float | None
    adjusted: float | None
    n: int
    only_first: int
    only_second: int
    detectable: float | None
    test: Test = "t"
    level: float = LEVEL

    @property
    def significant(self) -> bool:
        """True if the difference is significant at `level`, corrected for all comparisons."""
        return self.adjusted is not None and self.adjusted <= 1 - self.level


def paired_difference(
    first: ArrayLike,
    second: ArrayLike,
    *,
    test: Test = "t",
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Difference:
    """Compare two systems on the instructions of both.

    Args:
        first: one system's values [instructions]; NaN is absent.
        second: the other's, in the same order.
        test: of the null hypothesis that the mean difference is 0.
        level: of the interval.
        resamples: of the sign-flip and the bootstrap test.
        seed: of their draws.

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
    found = mean(gaps[both], level=level)
    p = p_value(gaps[both], test, resamples, seed) if found.n > 1 else None
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
        int((has_one & ~has_two).sum()),
        int((has_two & ~has_one).sum()),
        None if spread is None else minimum_detectable_difference(found.n, spread, level=level),
        test,
        level,
    )


def paired_differences(
    table: ArrayLike,
    baseline: int,
    *,
    best: bool = False,
    test: Test = "t",
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> list[Difference | None]:
    """Compare each system of a table with a baseline, corrected for all comparisons (Holm).

    Returns None for the baseline itself and for systems that share no instruction with it.

    Args:
        table: values [systems, instructions]; NaN is absent.
        baseline: its row.
        best: the baseline is the best of the table. The values themselves chose it, and a lucky one among equals looks
            better than the others by more than chance; so the correction is over every pair that might have been
            compared.
        test: of each comparison.
        level: of each interval.
        resamples: of the sign-flip and the bootstrap test.
        seed: of their draws.
    """
    values = np.asarray(table, dtype=np.float64)
    found: list[Difference | None] = [
        None
        if row == baseline or not (~np.isnan(values[row]) & ~np.isnan(values[baseline])).any()
        else paired_difference(values[row], values[baseline], test=test, level=level, resamples=resamples, seed=seed)
        for row in range(len(values))
    ]
    known = [d for d in found if d is not None and d.p_value is not None]
    pairs = len(values) * (len(values) - 1) // 2
    adjusted = iter(holm([d.p_value for d in known if d.p_value is not None], tests=pairs if best else None))
    return [replace(d, adjusted=next(adjusted)) if d is not None and d.p_value is not None else d for d in found]


def p_value(gaps: Floats, test: Test, resamples: int = RESAMPLES, seed: int = 0) -> float:
    """The two-sided p-value of the mean of `gaps` [instructions, at least 2] under a mean of 0."""
    if test == "t":
        return _t(gaps)
    if test == "bootstrap":
        return _bootstrap(gaps, resamples, seed)
    return _sign_flip(gaps, resamples, seed)


def _sign_flip(gaps: Floats, resamples: int, seed: int) -> float:
    """The sign-flip test. Zeros do not matter.

    Few differences are flipped in every way there is; otherwise the draws count the data as one of theirs, so that p is
    never 0 and errs high.
    """
    moved = gaps[gaps != 0]
    if not len(moved):
        return 1.0
    seen = abs(float(moved.sum())) - 1e-9  # sums that are equal but for rounding are equal
    if 2 ** len(moved) <= resamples:
        signs = 1 - 2 * ((np.arange(2 ** len(moved))[:, None] >> np.arange(len(moved))) & 1)
        return float((np.abs(signs @ moved) >= seen).mean())
    generator = np.random.default_rng(integer(seed, "sign flips"))
    block = max(1, BLOCK // len(moved))
    further = 0
    for begin in range(0, resamples, block):
        size = (min(block, resamples - begin), len(moved))
        signs = generator.integers(2, size=size, dtype=np.int8).astype(np.float32)
        further += int((np.abs(moved.sum() - 2 * (signs @ moved)) >= seen).sum())
    return (further + 1) / (resamples + 1)


def _bootstrap(gaps: Floats, resamples: int, seed: int) -> float:
    """The bootstrap test: twice the share of resampled means on the other side of 0."""
    drawn = resampled(len(gaps), resamples, integer(seed, "paired bootstrap"))
    means = np.concatenate([counts @ gaps for counts in drawn]) / len(gaps)
    smaller = min(int((means <= 0).sum()), int((means >= 0).sum()))
    return min(1.0, 2 * (smaller + 1) / (resamples + 1))


def _t(gaps: Floats) -> float:
    found = mean(gaps)
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
