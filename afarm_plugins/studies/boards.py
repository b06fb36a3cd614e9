"""Boards, and their files: mean win by [system, instruction], NaN where there is none."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from afarm import Bounded, DataError, JudgedPair, correlate_boards, read_annotations, stem

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


def say_agreement(rater: str, others: str, systems: int, rho: Bounded | None) -> str:
    """Say how far a rater ranks systems as others do; empty without a correlation."""
    if rho is None:
        return ""
    word = "nearly as" if rho.value >= 0.8 else "partly as" if rho.value >= 0.4 else "otherwise than"
    ends = "" if rho.low is None or rho.high is None else f", 95 % {rho.low:.2f} to {rho.high:.2f}"
    return f"{rater} ranks {systems} systems {word} {others} (rank correlation {rho.value:.2f}{ends})."


def read_systems(file: str) -> Iterator[tuple[str, JudgedPair]]:
    """Yield the comparisons of a file with the system whose output stands second.

    A system without a name has the file's. Raises `DataError` for a file without rows.
    """
    is_empty = True
    for _, _, judged in read_annotations(file):
        is_empty = False
        yield judged.pair.generator_2 or stem(file), judged
    if is_empty:
        raise DataError(f"{file}: has no rows")
