"""Extent of a loop, its rate and the time left."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sized
from typing import Any


def extent(items: Iterable[Any], total: int | None) -> tuple[int, int | None]:
    """Return how many items of a loop are done before it begins, and its total if that is known.

    A resumed loop goes over a range that ends at the total: what lies before the range is done.
    """
    if total is None and isinstance(items, Sized):
        total = len(items)
    return (items.start if isinstance(items, range) and items.stop == total else 0), total


class LoopPace:
    """The rate of a loop with `done` items, from when the first was finished.

    The first may wait for a model to load, or for a whole batch of answers that end at once: the items that come within
    a tenth of that wait came with it.
    """

    def __init__(self, done: int, total: int | None):
        self.before, self.done, self.total = done, done, total
        self._began = self._counted_from = time.monotonic()
        self._waited = 0.0
        self._with_first = done

    def finish(self) -> None:
        """Count an item as done."""
        self.done += 1
        now = time.monotonic()
        self._waited = self._waited or now - self._began
        if now - self._began <= 1.1 * self._waited:
            self._counted_from, self._with_first = now, self.done

    @property
    def share(self) -> float:
        """The share done of what there was to do; 0 if that is unknown."""
        return (self.done - self.before) / max(1, self.total - self.before) if self.total else 0.0

    @property
    def rate(self) -> float:
        """Items a second, 0 before there is something to go by."""
        return (self.done - self._with_first) / max(time.monotonic() - self._counted_from, 1e-9)

    @property
    def seconds_left(self) -> float | None:
        """The time that the other items take at this rate; None if that is unknown, or none is left."""
        left = (self.total or 0) - self.done
        return left / self.rate if self.rate and left > 0 else None
