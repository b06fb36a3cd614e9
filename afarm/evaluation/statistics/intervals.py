"""Means with standard errors and intervals, and the sample sizes that differences need.

Sources: Liang and Zeger 1986 (clusters), Agresti and Coull 1998 (two wins and two losses added), Miller 2024, "Adding
error bars to evals" (clusters and sample sizes for evaluations of language models).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri, stdtrit

from afarm.core.errors import DataError

Floats = NDArray[np.float64]
Clusters = Sequence[Hashable] | NDArray[np.int64]
"""The name or index of each value's instruction."""

LEVEL = 0.95
POWER = 0.8
ROUNDING = 1e-12
"""The share of a value below which a spread is floating-point rounding."""


@dataclass(frozen=True, slots=True)
class IntervalEstimate:
    """A mean in the unit of its values, with its standard `error` and its 95% interval.

    `n` counts the instructions, `labels` the values behind them.
    """

    value: float
    error: float | None
    low: float | None
    high: float | None
    n: int
    labels: int


def mean(values: ArrayLike, clusters: Clusters | None = None) -> IntervalEstimate:
    """Estimate the mean of `values`, with the t interval over instructions; NaN is absent.

    `clusters` names the instruction of each value: values of one instruction are not independent, and the error is that
    of the instructions (cluster-robust, with G / (G − 1) for G of them). Without clusters, or with one value each, it
    is the usual s / √n with n − 1 in s. Raises `DataError` if there is no value.
    """
    sums, sizes = cluster_sums(values, clusters)
    n, labels = len(sums), round(float(sizes.sum()))
    value = float(sums.sum()) / labels
    if n < 2:
        return IntervalEstimate(value, None, None, None, n, labels)
    residuals = sums - value * sizes
    error = math.sqrt(float(residuals @ residuals) * n / (n - 1)) / labels
    error = error if error > ROUNDING * float(np.abs(sums).max()) else 0.0  # values that are equal have none
    half = t_quantile(n - 1) * error
    return IntervalEstimate(value, error, value - half, value + half, n, labels)


def minimum_detectable_difference(n: int, deviation: float) -> float:
    """The minimum difference that a test at 5% finds with a probability of 80%, from `n` instructions.

    `deviation` is the standard deviation, over instructions, of what is averaged: of a system's wins, or of the paired
    differences of two systems. The result is in its unit. Raises `DataError` for fewer than two instructions.
    """
    if n < 2:
        raise DataError(f"{n} instructions cannot tell two systems apart: at least 2 are needed")
    return (t_quantile(n - 1) + float(stdtrit(n - 1, POWER))) * deviation / math.sqrt(n)


def instructions_needed(difference: float, deviation: float) -> int:
    """The fewest instructions with which `difference` is detectable; see `minimum_detectable_difference`.

    Raises `DataError` if the difference is 0, which no number of instructions finds.
    """
    if difference == 0:
        raise DataError("no number of instructions finds a difference of 0")
    size = abs(difference)
    # The normal quantiles are below t's, so the search begins below the answer.
    n = max(2, math.floor(((float(ndtri((1 + LEVEL) / 2)) + float(ndtri(POWER))) * deviation / size) ** 2))
    while minimum_detectable_difference(n, deviation) > size:
        n += 1
    return n


def t_quantile(freedom: float) -> float:
    """Student's quantile: the standard errors that a 95% interval reaches to either side."""
    return float(stdtrit(freedom, (1 + LEVEL) / 2))


def cluster_sums(values: ArrayLike, clusters: Clusters | None) -> tuple[Floats, Floats]:
    """Sum and count the values of each instruction, [instructions] each. Raises `DataError` without any."""
    found = np.asarray(values, dtype=np.float64).ravel()
    there = ~np.isnan(found)
    if not there.any():
        raise DataError("there is nothing to take the mean of")
    if clusters is None:
        return found[there], np.ones(int(there.sum()))
    if len(clusters) != len(found):
        raise DataError(f"{len(found)} values, but {len(clusters)} names of their instructions")
    numbers: dict[Hashable, int] = {}
    which = np.array([numbers.setdefault(name, len(numbers)) for name in clusters])[there]
    sizes = np.bincount(which, minlength=len(numbers)).astype(np.float64)
    sums = np.bincount(which, weights=found[there], minlength=len(numbers)).astype(np.float64)
    return sums[sizes > 0], sizes[sizes > 0]
