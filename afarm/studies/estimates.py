"""Estimates for the analysis of studies, which numpy is loaded for when they are called."""

from __future__ import annotations

from collections.abc import Sequence

from afarm.studies.study import Bounded


def mean_interval(values: Sequence[float]) -> Bounded:
    """Estimate a mean with Student's 95% interval, in the unit of its values; of one value without.

    Raises `DataError` if there is none, and `PluginError` without the extra `evaluation`.
    """
    from afarm.statistics import mean

    found = mean(values)
    return Bounded(found.value, found.low, found.high)
