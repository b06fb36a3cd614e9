"""Boards: the mean win of each system on each instruction, [systems, instructions], NaN without one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from afarm import Bounded, correlate_boards

Board = Sequence[Sequence[float]]

FEWEST_SYSTEMS = 3
"""Systems that a correlation needs."""


def correlate_shared(first: Board, second: Board) -> Mapping[str, Bounded | None]:
    """Correlate two boards over the systems that both have wins of; empty for fewer than three."""
    both = [
        rows for rows in zip(first, second, strict=True) if not any(all(map(math.isnan, values)) for values in rows)
    ]
    if len(both) < FEWEST_SYSTEMS:
        return {}
    return correlate_boards(*zip(*both, strict=True))
