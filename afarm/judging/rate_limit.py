"""Rate limit of one judge: fewer requests in flight when it asks to slow down, slowly more again.

Additive increase, multiplicative decrease: an answer that says "too many requests" halves the limit, once for each wave
of such answers, and holds further requests until the wait it asked for is over; each full round of successes raises the
limit by one, up to the maximum. The very first request goes alone for a moment, since a refused key or a wrong name is
best found out once.
"""

from __future__ import annotations

import time
from collections.abc import Callable

PAUSE = 1.0
"""Seconds to hold requests if a judge asks to slow down but does not say for how long."""
LONGEST_PAUSE = 300.0
"""Seconds. A wait is never longer, whatever an answer asks for."""

ALONE = 5.0
"""Seconds that the first request has for itself, unless its answer comes sooner."""


class Limiter:
    """Counts the requests in flight to one judge. Not thread-safe: it lives on the engine's loop."""

    def __init__(self, maximum: int, clock: Callable[[], float] = time.monotonic):
        self.maximum = maximum
        self.limit = maximum
        self.in_flight = 0
        self._clock = clock
        self._held_until = 0.0
        self._wave_until = 0.0
        self._successes = 0
        self._alone_until: float | None = None  # None until a first request, 0 once one was answered

    def free_slots(self) -> int:
        """The number of further requests that may be sent now."""
        if self.seconds_until_open() > 0:
            return 0
        return 1 if self._alone_until is None else max(0, self.limit - self.in_flight)

    def seconds_until_open(self) -> float:
        """Seconds until requests may be sent again; 0 if nothing holds them."""
        return max(0.0, max(self._held_until, self._alone_until or 0.0) - self._clock())

    def sent(self) -> None:
        """Count a request that is being sent."""
        self.in_flight += 1
        if self._alone_until is None:
            self._alone_until = self._clock() + ALONE

    def completed(self, success: bool) -> None:
        """Count a request that has ended. Every `limit` successes in a row raise the limit by one."""
        self.in_flight -= 1
        if not success:
            if self._alone_until and not self.in_flight:
                self._alone_until = None
            return
        self._alone_until = 0.0
        self._successes += 1
        if self._successes >= self.limit:
            self._successes = 0
            self.limit = min(self.limit + 1, self.maximum)

    def throttled(self, retry_after: float | None = None) -> None:
        """Slow down, since the judge says so; for `retry_after` seconds, if it says for how long.

        Requests in flight will be refused as well: until the wait is over, such answers are the same wave.
        """
        now = self._clock()
        wait = PAUSE if retry_after is None else min(max(retry_after, 0.0), LONGEST_PAUSE)
        if now >= self._wave_until:
            self.limit = max(1, self.limit // 2)
        self._held_until = max(self._held_until, now + wait)
        self._wave_until = max(self._held_until, now + PAUSE, self._wave_until)
        self._successes = 0
