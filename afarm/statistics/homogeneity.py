"""A test that several estimates have one truth.

Source: Cochran 1954, "The combination of estimates from different experiments".
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import chdtrc

from afarm.core.errors import DataError


def homogeneity(values: ArrayLike, errors: ArrayLike) -> float:
    """Return how probable it is that estimates of one truth lie as far apart as these, or further.

    `values` [estimates] have standard `errors` [estimates] above 0, which count as independent: shared instructions
    make estimates more alike, and the probability too high. Raises `DataError` for fewer than two estimates, or an
    error that is not above 0.
    """
    values, errors = np.asarray(values, float), np.asarray(errors, float)
    if len(values) < 2 or not (errors > 0).all():
        raise DataError("homogeneity needs two estimates or more, each with an error above 0")
    weights = errors**-2
    gaps = values - np.average(values, weights=weights)
    return float(chdtrc(len(values) - 1, weights @ gaps**2))
