"""Rank correlation of two leaderboards: simulated against human, one judge against another.

Two questions, two intervals. Over *systems*: would other systems correlate as well? Over *instructions*: would other
instructions have given the same correlation for these systems? Quote the one that is asked; neither includes the other.

Source: Dubois et al. 2023 (AlpacaFarm), section 4.1, for the use; Efron 1979 for the bootstrap.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from afarm.core.errors import DataError
from afarm.core.seeding import integer
from afarm.evaluation.statistics.intervals import LEVEL, Floats

Kind = Literal["spearman", "kendall", "pearson"]
RESAMPLES = 2_000
BLOCK = 4_000_000
"""Numbers held at a time while resampling: 32 MB."""
FEWEST = 3
"""Two systems are always in perfect agreement or disagreement."""


@dataclass(frozen=True, slots=True)
class Correlation:
    """A correlation `value` over `n` systems, from −1 to 1, None if one board does not vary.

    `low` and `high` are its interval at `level` over resampled `over`, None if half of the resamples do not vary.
    """

    kind: Kind
    value: float | None
    low: float | None
    high: float | None
    n: int
    over: Literal["systems", "instructions"]
    level: float = LEVEL


def correlation(
    first: ArrayLike,
    second: ArrayLike,
    kind: Kind = "spearman",
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Correlation:
    """Correlate two leaderboards, with a bootstrap interval.

    Args:
        first: values [systems], or wins [systems, instructions], of one leaderboard; NaN is absent.
        second: the same of the other, in the same order of systems and instructions.
        kind: Spearman's, Kendall's (tau-b) or Pearson's.
        resamples: of the bootstrap.
        seed: of the draws.

    Given values, the interval is over systems: the percentile bootstrap's. Given tables of wins, it is over
    instructions: the boards share them, and one draw reweights both. A resample is noisier than the data, and noise
    lowers a correlation; so the interval also holds the resamples' mirror image about `value`, and errs wide. A system
    that either board lacks is left out. Raises `DataError` for fewer than 3 systems, or boards of different shapes.
    """
    one, two = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if one.shape != two.shape:
        raise DataError(f"boards of shapes {one.shape} and {two.shape} are not of the same systems")
    tables = one.ndim == 2
    absent = [np.isnan(board).all(axis=1) if tables else np.isnan(board) for board in (one, two)]
    one, two = one[~(absent[0] | absent[1])], two[~(absent[0] | absent[1])]
    if len(one) < FEWEST:
        raise DataError(f"{len(one)} systems are on both boards; a correlation needs at least {FEWEST}")
    over: Literal["systems", "instructions"] = "instructions" if tables else "systems"
    seed = integer(seed, "correlation", over)
    drawn = _instructions(one, two, resamples, seed) if tables else _systems(one, two, resamples, seed)
    found = np.concatenate([_KINDS[kind](a, b) for a, b in drawn])
    found = found[~np.isnan(found)]
    figures = (np.nanmean(one, axis=1), np.nanmean(two, axis=1)) if tables else (one, two)
    value = float(_KINDS[kind](figures[0][None], figures[1][None])[0])
    if np.isnan(value) or len(found) <= resamples / 2:
        return Correlation(kind, None if np.isnan(value) else value, None, None, len(one), over)
    low, high = np.quantile(found, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    if tables:
        low, high = max(-1.0, min(low, 2 * value - high)), min(1.0, max(high, 2 * value - low))
    return Correlation(kind, value, float(low), float(high), len(one), over)


def _systems(one: Floats, two: Floats, resamples: int, seed: int) -> Iterator[tuple[Floats, Floats]]:
    """Both boards' values for systems drawn with replacement, [some resamples, systems] each."""
    drawn = np.random.default_rng(seed).integers(len(one), size=(resamples, len(one)))
    yield one[drawn], two[drawn]


def _instructions(one: Floats, two: Floats, resamples: int, seed: int) -> Iterator[tuple[Floats, Floats]]:
    """Both boards' means over instructions drawn with replacement, [some resamples, systems] each."""
    generator, n = np.random.default_rng(seed), one.shape[1]
    block = max(1, BLOCK // n)
    for begin in range(0, resamples, block):
        size = min(block, resamples - begin)
        drawn = generator.integers(n, size=(size, n)) + n * np.arange(size)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=size * n).reshape(size, n).astype(np.float64)
        yield _means(one, counts), _means(two, counts)


def _means(table: Floats, counts: Floats) -> Floats:
    there = ~np.isnan(table)
    with np.errstate(invalid="ignore"):  # a system none of whose instructions was drawn has no mean
        return (counts @ np.where(there, table, 0).T) / (counts @ there.T.astype(np.float64))


def _pearson(a: Floats, b: Floats) -> Floats:
    """Pearson's r of each row of `a` with the same row of `b`; NaN if one does not vary."""
    a, b = a - a.mean(axis=1, keepdims=True), b - b.mean(axis=1, keepdims=True)
    size = np.sqrt((a * a).sum(axis=1) * (b * b).sum(axis=1))
    return np.divide((a * b).sum(axis=1), size, out=np.full(len(a), np.nan), where=size > 1e-12)


def _spearman(a: Floats, b: Floats) -> Floats:
    from scipy.stats import rankdata

    return _pearson(rankdata(a, axis=1), rankdata(b, axis=1))


def _kendall(a: Floats, b: Floats) -> Floats:
    """Kendall's tau-b: the correlation of the signs of all differences."""
    found = np.empty(len(a))
    above = np.triu_indices(a.shape[1], 1)
    for row, (x, y) in enumerate(zip(a, b, strict=True)):
        up, over = np.sign(np.subtract.outer(x, x)[above]), np.sign(np.subtract.outer(y, y)[above])
        size = np.sqrt((up @ up) * (over @ over))
        found[row] = (up @ over) / size if size else np.nan
    return found


_KINDS = {"pearson": _pearson, "spearman": _spearman, "kendall": _kendall}
