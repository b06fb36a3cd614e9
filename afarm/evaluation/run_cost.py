"""Cost of a run that shares nothing: reused stages count as when they were made."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from afarm.evaluation.metrics import finite_number


def sum_costs(stages: Iterable[Mapping[str, Any]]) -> tuple[float, float]:
    """Sum the seconds and the judges' dollars of a record's stages; unknown values count as 0."""
    seconds, dollars = [0.0], [0.0]
    for stage in stages:
        spend = stage.get("spend")
        seconds.append(finite_number(stage.get("seconds")) or 0.0)
        dollars.append(finite_number(spend.get("dollars")) or 0.0 if isinstance(spend, Mapping) else 0.0)
    return math.fsum(seconds), math.fsum(dollars)
