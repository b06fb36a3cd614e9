"""A test that systems which met the same instructions are equal on average.

Source: Hotelling 1931, "The generalization of Student's ratio".
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import fdtrc

from afarm import DataError

ROUNDING = 1e-9
"""The share of the largest variance below which one counts as none."""


def equal_means(values: ArrayLike) -> float:
    """Return how probable it is that the means of equal systems lie as far apart as these, or further.

    `values` [systems, instructions] are paired by instruction and may be alike to any degree: the test is Hotelling's
    T² of the differences from one system, the same from whichever, and Student's paired one for two. 1 if no value
    differs. Raises `DataError` for fewer than two systems, no more instructions than systems, or a value that is not
    finite.
    """
    values = np.asarray(values, float)
    if values.ndim != 2 or not 2 <= len(values) < values.shape[1] or not np.isfinite(values).all():
        raise DataError("equal_means needs finite values of two systems or more on a larger number of instructions")
    gaps = values[1:] - values[0]
    n, mean = gaps.shape[1], gaps.mean(axis=1)
    variances, directions = np.linalg.eigh(np.atleast_2d(np.cov(gaps)))
    along = directions.T @ mean
    vary = variances > ROUNDING * max(variances[-1], np.square(along).max())
    if np.abs(along[~vary]).max(initial=0) > ROUNDING * np.abs(values).max():
        return 0.0  # a difference that is the same on every instruction
    rank = int(vary.sum())
    t_squared = n * float(np.sum(np.square(along[vary]) / variances[vary]))
    return float(fdtrc(rank, n - rank, t_squared * (n - rank) / (rank * (n - 1)))) if rank else 1.0
