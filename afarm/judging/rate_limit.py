"""Rate limit of one judge, learned from its refusals and its headers.

A refusal (429 and the like) holds every request to the judge, for as long as it asks. What to change after it follows
from what the judge took before:

- refused beyond the number at once that it took: at most that many at once;
- refused within it: at most as many per second as it took (`Pace`).

Either limit is raised again, in growing steps, after a quiet time that is long beside the wait that a refusal costs.
Headers that say how much remains are spread over the time to their reset. The very first request goes alone for a
moment, since a refused key or a wrong name is best found out once.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from afarm.core.errors import JudgeError

PAUSE = 1.0
"""Seconds to hold requests if a judge refuses one and does not say for how long; twice as long each time in a row."""
PACED_PAUSE = 0.25
"""The same for a judge whose pace is known, which a refusal then exceeds by little."""
LONGEST_PAUSE = 10.0
"""Seconds of the longest such pause."""
PATIENCE = 900.0
"""Seconds of refusals without a single answer, or asked to wait at once, after which a run ends."""
ALONE = 5.0
"""Seconds that the first request has for itself, unless its answer comes sooner."""
QUIET = 8.0
"""Waits for which a limit stays as it is after a refusal, four times as many after a step that was refused."""
LONGEST_QUIET = 64.0


STEP, SMALL_STEP = 0.07, 0.03
"""Shares by which a pace is raised first: while it is searched, and after a quiet time; then half as much more each."""
FIRST_CUT, CUT = 0.9, 0.96
"""Shares to go on with: of the pace that was taken before the first refusal, of a pace that was refused."""


class SlowDown(JudgeError):
    """A judge refuses a request for now, uncharged. `seconds` is the wait it names, None for none."""

    def __init__(self, message: str, seconds: float | None = None):
        super().__init__(message, charged=False)
        self.seconds = seconds


@dataclass(slots=True, eq=False)
class Attempt:
    """A request that was sent, with the time of it. `counted` for the pace, until it is refused."""

    at: float
    counted: bool = True


class Limiter:
    """Counts the attempts in flight to one judge. Not thread-safe: it lives on the engine's loop.

    `limit` attempts may be in flight at once, `maximum` at most.
    """

    def __init__(self, maximum: int, clock: Callable[[], float] = time.monotonic):
        self.maximum = maximum
        self.limit = maximum
        self.pace = Pace()
        self.in_flight = 0
        self.refusals = 0
        self._clock = clock
        self._held_until = 0.0
        self._alone_until: float | None = None  # None until a first request, 0 once one was answered
        self._refused_since: float | None = None  # None if the last word was an answer
        self._wave: _Wave | None = None
        self._failed_alone = 0  # refusals in a row with nothing else in flight
        self._step = 1
        self._successes = 0
        self._raised = True  # beyond what was refused last
        self._quiet = QUIET
        self._quiet_until = 0.0
        self._allowed_at = self._allowed_spacing = 0.0  # by the headers: the next attempt, seconds to the one after

    # -------------------------------------------------------------------------------------------- may one be sent?

    def free_slots(self) -> int:
        """The number of further requests that may be sent now."""
        if self.seconds_until_open() > 0:
            return 0
        if self._alone_until is None:
            return 1
        free = max(0, self.limit - self.in_flight)
        return min(free, 1) if self.pace.rate < math.inf or self._allowed_spacing else free

    def seconds_until_open(self) -> float:
        """Seconds until a request may be sent; 0 if nothing holds it."""
        return max(self.seconds_held(), max(self._alone_until or 0.0, self.pace.next_at) - self._clock())

    def seconds_held(self) -> float:
        """Seconds that the judge, or its headers, asked to wait for; 0 if they are over."""
        return max(0.0, max(self._held_until, self._allowed_at) - self._clock())

    # -------------------------------------------------------------------------------------------- what became of it

    def sent(self) -> Attempt:
        """Count a request that is being sent."""
        now = self._clock()
        self.in_flight += 1
        if self._alone_until is None:
            self._alone_until = now + ALONE
        self._allowed_at = max(self._allowed_at, now - self._allowed_spacing) + self._allowed_spacing
        attempt = Attempt(now)
        self.pace.sent(attempt)
        return attempt

    def answered(self, attempt: Attempt) -> None:
        """Count an attempt that the judge took."""
        now = self._clock()
        full = self.in_flight >= self.limit and now >= self.pace.next_at
        self._ended()
        self._alone_until, self._refused_since, self._failed_alone = 0.0, None, 0
        if self._wave is not None and attempt.at <= self._wave.began:
            return  # sent before the limit in force
        self._successes += 1
        quiet = now < self._quiet_until
        if not full:
            self.pace.answered(attempt, now, quiet)
        elif not quiet and self.limit < self.maximum and self._successes >= self.limit:
            self.limit = min(self.maximum, self.limit + self._step)
            self._step, self._successes, self._raised = self._step * 2, 0, True

    def failed(self) -> None:
        """Count an attempt that ended in an error other than a refusal."""
        self._ended()

    def refused(self, attempt: Attempt, seconds: float | None = None) -> None:
        """Slow down, since the judge says so; hold for `seconds`, if it says for how long.

        What was in flight at the time will be refused as well: those refusals are one wave.
        """
        now = self._clock()
        self._ended()
        self.refusals += 1
        attempt.counted = False
        if self._refused_since is None:
            self._refused_since = now
        if self._wave is None or attempt.at > self._wave.began:
            self._begin_wave(now)
        else:
            self._wave.taken -= 1
        assert self._wave is not None
        if self._wave.at_once:
            self.limit = max(1, min(self.limit, self._wave.taken))
            if self._wave.first:
                self.pace.burst = self.limit + 1
        pause = self._pause(self._wave)
        if seconds is not None:  # a judge that says 0 again and again is not asked without end
            pause = max(0.0, seconds, pause if self._failed_alone > 1 else 0.0)
        self._hold(now, pause)

    def _begin_wave(self, now: float) -> None:
        if self._wave is not None and now >= self._quiet_until:
            self._quiet = min(LONGEST_QUIET, self._quiet * 4)
        self._failed_alone = 0 if self.in_flight else self._failed_alone + 1
        pause = PACED_PAUSE if self.pace.rate < math.inf and self._failed_alone <= 1 else PAUSE
        pause = min(LONGEST_PAUSE, pause * 2 ** min(max(0, self._failed_alone - 1), 10))
        self._wave = _Wave(now, self.in_flight, first=self._wave is None, at_once=self._raised, pause=pause)
        if self._failed_alone > 1:
            self.pace.refused_again(now)
        elif not self._raised or self.pace.raised:
            self.pace.refused(now)
        self._raised, self._step, self._successes = False, 1, 0

    def _pause(self, wave: _Wave) -> float:
        """Seconds to hold requests if the judge does not say: none while answers will make room."""
        return 0.0 if wave.at_once and self.in_flight else wave.pause

    def _hold(self, now: float, seconds: float) -> None:
        self._held_until = max(self._held_until, now + min(seconds, PATIENCE))
        self._quiet_until = self._held_until + self._quiet * max(seconds, PAUSE)
        if seconds:
            self.pace.held(self._held_until, seconds)

    def _ended(self) -> None:
        self.in_flight -= 1
        if self._alone_until and not self.in_flight:
            self._alone_until = None

    # ------------------------------------------------------------------------------------------------------ headers

    def allowed(self, requests: float, seconds: float) -> None:
        """Spread the `requests` that the judge's headers still allow over the `seconds` until their reset.

        Newer headers replace older ones. Requests in flight are of those that are allowed.
        """
        now, left = self._clock(), requests - self.in_flight
        self._allowed_spacing = min(seconds, PATIENCE) / max(1.0, left)
        self._allowed_at = (
            now + self._allowed_spacing if left < 1 else min(self._allowed_at, now + self._allowed_spacing)
        )

    # ---------------------------------------------------------------------------------------------------- for people

    @property
    def refused_for(self) -> float:
        """Seconds since the first refusal after the last answer; 0 if the last word was an answer."""
        return 0.0 if self._refused_since is None else self._clock() - self._refused_since

    @property
    def state(self) -> str:
        """The wait or the limits in words, for the screen; empty if nothing limits the judge."""
        waits = self._held_until - self._clock()
        limits = [f"{self.limit} at once"] if self.limit < self.maximum else []
        limits += [f"{self.pace.rate:.3g} per second"] if self.pace.rate < math.inf else []
        if waits > 0:
            return f"asks to slow down: waiting {math.ceil(waits)} s"
        return f"asks to slow down: at most {' and '.join(limits)}" if limits and self.refusals else ""


@dataclass(slots=True)
class _Wave:
    """Refusals of attempts that were in flight together; `taken` counts those not refused."""

    began: float
    taken: int
    first: bool
    at_once: bool
    """True if more were in flight than were ever taken: the number at once is to blame, otherwise the pace."""
    pause: float


class Pace:
    """Attempts per second that a judge takes, searched between what it took and what it refused.

    `burst` is what a judge may take at once after a rest, whatever its pace. So n attempts taken in t seconds show a
    pace of at least (n - burst) / t.
    """

    def __init__(self) -> None:
        self.rate = math.inf
        self.next_at = 0.0
        self.burst = 1.0
        self._log: deque[Attempt] = deque(maxlen=1024)
        self._resumed = 0.0
        self._wait = PAUSE
        self._changed = 0.0
        self._successes = 0
        self._before = 0.0  # the pace before the last step up, none since the last refusal
        self._settled = False
        self._growth = 0.0
        self._again = False  # refused several times in a row
        self._cycle = 0.0  # the first attempt taken after such a time

    @property
    def raised(self) -> bool:
        """True if the pace was stepped up since the last refusal."""
        return self._before > 0

    def sent(self, attempt: Attempt) -> None:
        """Remember an attempt, and let the next one wait for its turn."""
        if len(self._log) < 2:  # the first request goes alone, the second begins the work
            self._resumed = attempt.at
        self._log.append(attempt)
        spacing = 1 / self.rate
        self.next_at = max(self.next_at, attempt.at - spacing) + spacing  # catches up by one at most

    def held(self, until: float, seconds: float) -> None:
        """Begin anew at `until`, after a wait of `seconds`."""
        self.next_at = max(self.next_at, until)
        self._resumed, self._wait = until, seconds

    def answered(self, attempt: Attempt, now: float, quiet: bool) -> None:
        """Step up after enough answers: at once while the pace is searched, then after a quiet time only."""
        self._successes += 1
        if self._again:  # the first answer after several refusals in a row
            self._again, self._cycle = False, attempt.at
        if self.rate == math.inf or (self._settled and quiet):
            return
        if self._successes >= max(3, self.burst) and now - self._changed >= max(1.0, self._wait):
            self._growth = min(1.0, 1.5 * self._growth) or (SMALL_STEP if self._settled else STEP)
            self._before, self.rate = self.rate, self.rate * (1 + self._growth)
            self._changed, self._successes = now, 0

    def refused(self, now: float) -> None:
        """Step down after a refusal that the number at once does not explain."""
        taken = [attempt.at for attempt in self._log if attempt.counted]
        shown = self._shown(taken, now)
        if self.rate == math.inf:
            if recent := sum(at >= self._resumed for at in taken):
                self.rate = FIRST_CUT * recent / max(now - self._resumed, 1.0)
        elif self._before:
            self.rate, self._settled = max(0.99 * self._before, min(shown, CUT * self.rate)), True
        else:
            if shown >= 0.98 * self.rate:  # which was refused: more is taken at once than was thought
                self.burst, shown = 1.5 * self.burst + 1, 0.0
            self._settled = self._settled or shown > 0.85 * self.rate
            self.rate = max(0.98 * shown, 0.8 * self.rate, 1 / LONGEST_PAUSE)
        self._before, self._growth = 0.0, 0.0
        self._changed, self._successes = now, 0

    def refused_again(self, now: float) -> None:
        """Take the average since the last such time: refusals in a row say that the wait is too short."""
        taken = [attempt.at for attempt in self._log if attempt.counted and attempt.at >= self._cycle]
        if taken:
            average = max(len(taken) / (now - taken[0]), 1 / LONGEST_PAUSE)
            self.rate, self._settled = min(self.rate, average), False
            self._before, self._growth, self._changed, self._successes, self._again = 0.0, 0.0, now, 0, True

    def _shown(self, taken: list[float], now: float) -> float:
        """The fastest pace that the judge has shown for a second or more."""
        count = len(taken)
        paces = ((count - i - self.burst) / (now - at) for i, at in enumerate(taken) if now - at >= 1)
        return max(paces, default=0.0)
