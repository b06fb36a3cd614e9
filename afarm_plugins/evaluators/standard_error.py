"""How sure a mean over instructions is, without numpy."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Hashable, Sequence


def standard_error(values: Sequence[float], clusters: Sequence[Hashable] | None = None) -> float | None:
    """That of the mean of `values`, in their unit: s / √n with n − 1 in s.

    `clusters` names the instruction of each: several labels of one, by annotators or seeds, are not independent (Liang
    and Zeger 1986). None for a single instruction.
    """
    n = len(values)
    count = n if clusters is None else len(set(clusters))
    if count < 2:
        return None
    if clusters is None or count == n:
        return statistics.stdev(values) / math.sqrt(n)
    mean = statistics.fmean(values)
    residuals: dict[Hashable, float] = defaultdict(float)
    for value, cluster in zip(values, clusters, strict=True):
        residuals[cluster] += value - mean
    return math.sqrt(sum(r**2 for r in residuals.values()) * count / (count - 1)) / n
