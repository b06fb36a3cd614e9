"""How far a loop is, for all that show progress."""

from __future__ import annotations

from collections.abc import Iterable, Sized
from typing import Any


def extent(items: Iterable[Any], total: int | None) -> tuple[int, int | None]:
    """Return how many items of a loop are done before it begins, and its total if that is known.

    A resumed loop goes over a range that ends at the total: what lies before the range is done.
    """
    if total is None and isinstance(items, Sized):
        total = len(items)
    return (items.start if isinstance(items, range) and items.stop == total else 0), total


def seconds_left(done: float, seconds: float, left: float) -> float | None:
    """Estimate how long the items `left` take after `done` in `seconds`; None without any done."""
    return left * seconds / done if done > 0 and left > 0 else None
