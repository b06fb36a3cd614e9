"""Rank intervals, such as "3rd, 2–5".

A rank follows from who is better than whom, so its interval does: a system is surely below those whose mean is higher
by more than chance, and surely above those whose mean is lower by more. Differences of all pairs are bootstrapped
together (one draw reweights the instructions of all systems), and an interval holds when all of its comparisons do.
Resampling the ranks themselves is the usual way, and too narrow if systems are close: see docs/notes/statistics.md.
Of values that are missing nothing is assumed: a difference that they could turn is not sure.

Sources: Mogstad, Romano, Shaikh and Wilhelm 2024, "Inference for ranks"; Romano and Wolf 2005 (the stepdown).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, stdtrit

from afarm.core.errors import DataError
from afarm.core.seeding import integer
from afarm.evaluation.statistics.intervals import LEVEL

Bools = NDArray[np.bool_]

RESAMPLES = 1_000
TINY = 1e-12


@dataclass(frozen=True, slots=True)
class Rank:
    """A system's rank by its mean, 1 for the highest; equal means share the better rank.

    `low` to `high` holds its true rank with 95%, looked at by itself.
    """

    rank: int
    low: int
    high: int


def rank_intervals(table: ArrayLike, *, resamples: int = RESAMPLES) -> list[Rank]:
    """Rank the systems of `table` [systems, instructions] by their mean, with intervals; NaN is absent.

    A system is ranked by the mean over the instructions that it has; the means of systems that share instructions move
    together, which is what makes the comparison sharp. Raises `DataError` if a system has fewer than two.
    """
    values = np.asarray(table, dtype=np.float64)
    there = ~np.isnan(values)
    n = there.sum(axis=1)
    if (n < 2).any():
        raise DataError(f"row {int(np.argmin(n))} of the table has {n.min()} instructions; a rank needs at least 2")
    means = np.where(there, values, 0).sum(axis=1) / n
    # What each instruction adds to the error of each mean; their products over instructions are its covariance.
    parts = np.where(there, values - means[:, None], 0) / np.sqrt(n * (n - 1))[:, None]
    together = parts @ parts.T
    spread = np.sqrt(np.maximum(np.add.outer(together.diagonal(), together.diagonal()) - 2 * together, 0))
    scale = np.divide(1, spread, out=np.zeros_like(spread), where=spread > TINY)
    gaps = np.subtract.outer(means, means)
    lowest, highest = (np.where(there, values, end(values)).mean(axis=1) for end in (np.nanmin, np.nanmax))
    holds = np.where(gaps > 0, np.greater.outer(lowest, highest), np.less.outer(highest, lowest))
    drawn = np.random.default_rng(integer(0, "ranks")).standard_normal((resamples, values.shape[1])) @ parts.T

    def sure(row: int) -> Bools:
        """[systems]: the system's jointly significant differences, by Romano and Wolf's stepdown (2005)."""
        sizes = np.abs(gaps[row]) * scale[row]
        undecided = scale[row] > 0
        while undecided.any():
            furthest = (np.abs(drawn[:, [row]] - drawn[:, undecided]) * scale[row, undecided]).max(axis=1)
            # The resamples are normal, and errors are estimated: Student's t is that much wider.
            limit = -stdtrit(int(n.min()) - 1, ndtr(-np.quantile(furthest, LEVEL)))
            found = undecided & (sizes > limit)
            if not found.any():
                break
            undecided &= ~found
        return (scale[row] > 0) & ~undecided & holds[row]

    ranks = []
    for row, is_sure in enumerate(map(sure, range(len(values)))):
        above, below = gaps[row] < 0, gaps[row] > 0
        low, high = 1 + int((is_sure & above).sum()), len(values) - int((is_sure & below).sum())
        ranks.append(Rank(1 + int(above.sum()), low, high))
    return ranks
