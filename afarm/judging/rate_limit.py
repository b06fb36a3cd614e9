"""How many requests one judge is sent at once: fewer when it asks to slow down, slowly more again.

Additive increase, multiplicative decrease: an answer that says "too many requests" halves the limit, once for each wave
of such answers, and holds further sending until the wait it asked for is over; each full round of successes raises the
limit by one, up to the maximum. The very first request goes alone for a moment, since a refused key or a wrong name is
best found out about once.
"""

from __future__ import annotations

import time
from collections.abc import Callable

PAUSE = 1.0
"""Seconds without sending where a judge says that it is asked too much but not how long to wait."""
LONGEST_PAUSE = 300.0
"""A wait is never longer, whatever an answer asks for."""

ALONE = 5.0
"""Seconds that the first request has for itself, unless its answer comes sooner."""


class Limiter:
    """Counts the requests in flight to one judge. Not thread-safe: it lives on the engine's loop."""

    def __init__(self, maximum: int, clock: Callable[[], float] = time.monotonic):
        self.maximum = maximum
        self.limit = maximum
        self.flying = 0
        self._clock = clock
        self._held_until = 0.0
        self._wave_until = 0.0
        self._successes = 0
        self._alone_until: float | None = None  # None until a first request, 0 once one was answered

    def room(self) -> int:
        """How many more requests may be sent now."""
        if self.opens_in() > 0:
            return 0
        return 1 if self._alone_until is None else max(0, self.limit - self.flying)

    def opens_in(self) -> float:
        """Seconds until requests may be sent again; 0 where nothing holds them."""
        return max(0.0, max(self._held_until, self._alone_until or 0.0) - self._clock())

    def sent(self) -> None:
        self.flying += 1
        if self._alone_until is None:
            self._alone_until = self._clock() + ALONE

    def landed(self, success: bool) -> None:
        """A request has ended. Every `limit` successes in a row make room for one more."""
        self.flying -= 1
        if not success:
            if self._alone_until and not self.flying:
                self._alone_until = None
            return
        self._alone_until = 0.0
        self._successes += 1
        if self._successes >= self.limit:
            self._successes = 0
            self.limit = min(self.limit + 1, self.maximum)

    def throttled(self, retry_after: float | None = None) -> None:
        """The judge has said that it is asked too much; `retry_after` seconds, where it says how long to wait.

        What was in flight then says so as well: until the wait is over, more of that is the same wave.
        """
        now = self._clock()
        wait = PAUSE if retry_after is None else min(max(retry_after, 0.0), LONGEST_PAUSE)
        if now >= self._wave_until:
            self.limit = max(1, self.limit // 2)
        self._held_until = max(self._held_until, now + wait)
        self._wave_until = max(self._held_until, now + PAUSE, self._wave_until)
        self._successes = 0
