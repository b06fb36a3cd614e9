"""Rate limit of one judge: a bound in flight, the waits it asks for, and a pace that is learned.

A refusal (429 and the like) holds every request to the judge, for as long as it asks, else for a moment that grows
while nothing is answered. Then one of two limits is learned from it:

- *at once*: at most as many in flight as were taken, if a judge refuses one beyond those and waits cost little;
- *pace*: at most as many per second, if it names a wait that the number at once does not explain, or a long one.

If k attempts were taken in s seconds before a wait of w, then k / (s + w) per second is taken, for this could go on for
ever, and k / s is refused. The pace begins at their geometric mean, grows by steps to the middle of what is left, is
cut by little when it is refused, and rests long once it is found. It is never slower than what was taken on average:
refusals at random do not add up.

No more is sent than what headers say is allowed until their reset. The very first request goes alone for a
moment, since a refused key or a wrong name is best found out once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from afarm.core.errors import JudgeError

PAUSE, PAUSE_SHARE, LONGEST_PAUSE = 0.05, 0.2, 60.0
"""Seconds to wait if a judge refuses and does not say for how long: a share of the seconds since its last answer."""
MOMENT = 0.01
"""Seconds in which refusals of what was sent together arrive."""
PATIENCE = 900.0
"""Seconds of refusals without a single answer, or asked to wait at once, after which a run ends."""
ALONE = 5.0
"""Seconds that the first request has for itself, unless its answer comes sooner."""
CHEAP_WAIT = 2.0
"""Seconds of a wait up to which the number at once is tried before a pace."""
ENOUGH = 3
"""Attempts taken that show a pace."""
STEP, CUT = 0.06, 0.95
"""Share by which a pace grows first, then twice as much each time; and what is left of one that worked before."""
CLOSE = 1.06
"""The ratio of the pace refused to the pace taken from which it is found."""
QUIET = 60.0
"""Costs of a refusal, in seconds, for which a limit that was found stays as it is."""
SPREAD = 0.75
"""Seconds between requests under a limit at once, as a share of those that an even stream has."""
YEARS = 2 * 366 * 86400
"""Seconds of a wait that has no date worth naming."""


class SlowDown(JudgeError):
    """A judge refuses a request for now, uncharged. `seconds` is the wait it names, None for none."""

    def __init__(self, message: str, seconds: float | None = None):
        super().__init__(message, charged=False)
        self.seconds = seconds


class RequestRefused(JudgeError):
    """A judge does not take one request (400, 413, 422 and the like), uncharged.

    The request is then left without an answer, or the run ends: see `afarm.judging.refusals`.
    """

    def __init__(self, message: str):
        super().__init__(message, charged=False)


ANSWER_LOST: ContextVar[Callable[[str], Awaitable[None]]] = ContextVar("ANSWER_LOST")
"""Called by `answer_lost` for the current request; set by the engine."""


async def answer_lost(why: str = "") -> None:
    """Report that the current request may have been charged for, got no answer, and will be sent again.

    The engine goes on counting it and returns when the budget allows another attempt; if it never will, or if ten
    answers were lost and none came, the request is cancelled and the run ends with `why`. Does nothing outside of the
    engine.
    """
    if report := ANSWER_LOST.get(None):
        await report(why)


@dataclass(frozen=True, slots=True, eq=False)
class Attempt:
    """A request that was sent: its time, and the number in flight with it."""

    at: float
    number: int


@dataclass(frozen=True, slots=True)
class Pace:
    """Requests per second: those in force, `now`, lie between what was taken and what was refused."""

    now: float = math.inf
    taken: float = 0.0
    refused: float = math.inf

    @property
    def is_found(self) -> bool:
        """True if there is nothing left to search."""
        return self.refused < CLOSE * max(self.taken, self.now)

    def faster(self, step: float) -> Pace:
        """The pace in force was taken: raise it by `step`, at most to the middle of what is left."""
        taken = max(self.taken, self.now)
        refused = math.inf if self.is_found else self.refused
        return Pace(min(taken * (1 + step), math.sqrt(taken * refused)), taken, refused)

    def slower(self, shown: float) -> Pace:
        """The pace in force was refused, after a run that got `shown` per second, waits included."""
        refused = min(self.refused, self.now)
        taken = max(shown, self.taken if self.now > 1.01 * self.taken else CUT * self.now)
        taken = min(taken, 0.99 * refused)
        return Pace(taken, taken, refused)


class Limiter:
    """Rate limit of one judge, at most `maximum` in flight. Not thread-safe: lives on the engine's loop."""

    def __init__(self, maximum: int, clock: Callable[[], float] = time.monotonic):
        self.maximum = self.limit = maximum
        """The number of attempts that may be in flight at once: the most, and at present."""
        self.pace = Pace()
        self.in_flight = 0
        self.refusals = 0
        self._clock = clock
        self._began = math.inf
        self._held_until = self._next_at = 0.0
        self._alone_until: float | None = None  # None until a first request, 0 once one was answered
        self._refused_since: float | None = None  # None if the last word was an answer
        self._last_taken = -math.inf  # the latest time at which a request was sent that was answered
        self._latency = 0.0  # of an answer, on average
        self._most_taken = 0  # attempts in flight together
        self._taken = 0  # attempts in all, those in flight included
        self._run = self._resumed = (0.0, 0)  # where a pace is learned from, the last wait's end: time, attempts taken
        self._wave: _Wave | None = None  # refusals that nothing was learned from yet
        self._wait = 0.0  # the last one
        self._changed, self._successes, self._quiet_until = 0.0, 0, 0.0
        self._step, self._more = STEP, 1  # by which the pace and the number at once are raised next
        self._allowed, self._allowed_until, self._allowed_words = 0.0, 0.0, ""  # by the headers

    # -------------------------------------------------------------------------------------------- may one be sent?

    def free_slots(self) -> int:
        """The number of further requests that may be sent now."""
        if self.seconds_until_open() > 0:
            return 0
        free = max(0, self.limit - self.in_flight)
        if self._clock() < self._allowed_until:
            free = min(free, int(self._allowed))
        return min(free, 1) if self._alone_until is None or self._spacing > 0 else free

    def seconds_until_open(self) -> float:
        """Seconds until a request may be sent; 0 if nothing holds it."""
        if self._wave and self._clock() >= self._held_until:
            self._learn(self._wave)
        return max(self.seconds_held(), max(self._alone_until or 0.0, self._next_at) - self._clock())

    def seconds_held(self) -> float:
        """Seconds that the judge, or its headers, asked to wait for; 0 if they are over."""
        return max(0.0, max(self._held_until, self._reset_at) - self._clock())

    @property
    def _spacing(self) -> float:
        """Seconds between attempts: a judge that takes eight at once may not take eight in one moment."""
        at_once = self.limit if self.limit < self.maximum else math.inf
        return max(1 / self.pace.now, SPREAD * self._latency / at_once)

    # -------------------------------------------------------------------------------------------- what became of it

    def sent(self) -> Attempt:
        """Count a request that is being sent."""
        now, spacing = self._clock(), self._spacing
        if self._alone_until is None:
            self._alone_until = now + ALONE
        if self._taken == 0:
            self._began, self._run, self._resumed = now, (now, 0), (now, 0)
        self.in_flight += 1
        self._taken += 1
        self._next_at = max(self._next_at, now - spacing / 2) + spacing  # makes up for half of what it is late
        self._allowed -= 1
        return Attempt(now, self.in_flight)

    def answered(self, attempt: Attempt, seconds: float | None = None) -> None:
        """Count an attempt that the judge took, and answered in `seconds`, if those are known."""
        now, full = self._clock(), self.in_flight >= self.limit
        seconds = seconds or now - attempt.at
        if not self._latency:  # loading the vendor's SDK is no time of the judge's
            self._began, self._run, self._resumed = now - seconds, (now - seconds, 0), (now - seconds, 0)
        self._latency += (seconds - self._latency) * (0.1 if self._latency else 1.0)
        self.ended()
        self._alone_until, self._refused_since = 0.0, None
        self._last_taken = max(self._last_taken, attempt.at)
        if attempt.at < self._changed or self._wave:
            return  # sent before the limits in force
        self._most_taken = max(self._most_taken, attempt.number)
        self._successes += 1
        quiet = now < self._quiet_until
        if full and self.limit < self.maximum:
            if not quiet and self._successes >= self.limit:
                self._change(min(self.maximum, self.limit + self._more), self.pace)
                self._more *= 2
        elif full or self.pace.now == math.inf or (quiet and self.pace.is_found):
            return
        elif self._successes >= ENOUGH and now - self._changed >= 0.5 * max(1.0, self._wait):
            self._change(self.limit, self.pace.faster(self._step))
            self._step = min(1.0, 2 * self._step)

    def refused(self, attempt: Attempt, seconds: float | None = None) -> None:
        """Hold for `seconds`, or for a moment if none are named. Refusals meanwhile count as the same one."""
        now = self._clock()
        self.ended()
        self.refusals += 1
        self._taken -= 1
        if self._refused_since is None:
            self._refused_since = now
        wave = self._wave = self._wave or _Wave(now, attempt.number > self._most_taken)
        wave.in_flight = self.in_flight
        share = min(PAUSE_SHARE * self.refused_seconds, LONGEST_PAUSE)  # also where one names waits that do not help
        if seconds is None:
            wave.is_wait_named = False
            seconds = max(PAUSE, share)
        seconds = max(seconds, share)
        self._held_until = max(self._held_until, now + min(max(seconds, MOMENT), PATIENCE))

    def _learn(self, wave: _Wave) -> None:
        """Change the limits by refusals whose wait is over."""
        now, self._wave = self._clock(), None
        self._wait = self._held_until - wave.began
        is_vain = self._taken - self._resumed[1] < ENOUGH
        self._run = self._run if is_vain else self._resumed
        together = max(self._most_taken, wave.in_flight)
        is_tried = self.limit < self.maximum or self._wait <= CHEAP_WAIT
        if wave.is_beyond and together > wave.is_wait_named and is_tried and self.pace.now == math.inf:
            self._change(min(self.limit, max(1, together)), self.pace)
        elif wave.is_wait_named:
            count, spent = max(1, self._taken - self._run[1]), max(wave.began - self._run[0], self._latency, 1e-3)
            low = count / (spent + self._wait)
            is_first = is_vain or self.pace.now == math.inf
            pace = Pace(math.sqrt(low * count / spent), low) if is_first else self.pace.slower(low)
            average = self._taken / max(1.0, now - self._began)
            self._change(self.maximum, replace(pace, now=max(pace.now, average, 1 / LONGEST_PAUSE)))
        self._step, self._more = STEP, 1
        self._most_taken, self._resumed = together, (now, self._taken)
        self._next_at = max(self._next_at, now)
        self._quiet_until = now + QUIET * max(PAUSE if self.limit < self.maximum else 1.0, self._wait)

    def _change(self, limit: int, pace: Pace) -> None:
        if (limit, pace) != (self.limit, self.pace):
            self.limit, self.pace = limit, pace
            self._changed, self._successes = self._clock(), 0

    def ended(self) -> None:
        """Count an attempt as over: by itself, for one that ended in an error other than a refusal."""
        self.in_flight -= 1
        if self._alone_until and not self.in_flight:
            self._alone_until = None

    # ------------------------------------------------------------------------------------------------------ headers

    def allowed(self, requests: float, seconds: float, words: str = "") -> None:
        """Send at most `requests`, which the judge's headers still allow, in the `seconds` until their reset.

        `words` are the headers' own. Newer headers replace older ones. Requests in flight are of those allowed.
        """
        self._allowed, self._allowed_until = requests - self.in_flight, self._clock() + seconds
        self._allowed_words = words

    @property
    def _reset_at(self) -> float:
        return self._allowed_until if self._allowed < 1 else 0.0

    @property
    def exhausted(self) -> str:
        """The wait that the headers ask for, in words, if it is too long for a run; else empty."""
        return self._describe_hold() if self._reset_at - self._clock() > PATIENCE else ""

    def _describe_hold(self) -> str:
        seconds = self._reset_at - self._clock()
        said = f" ({self._allowed_words})" if self._allowed_words else ""
        return f"allows no more requests {until(seconds)}{said}"

    # ---------------------------------------------------------------------------------------------------- for people

    def has_taken_since(self, moment: float) -> bool:
        """True if a request was answered that was sent after `moment`, on this limiter's clock."""
        return self._last_taken > moment

    @property
    def refused_seconds(self) -> float:
        """Seconds since the first refusal after the last answer; 0 if an answer came last."""
        return 0.0 if self._refused_since is None else self._clock() - self._refused_since

    @property
    def state(self) -> str:
        """The wait or the limit in words, for the screen; empty if nothing limits the judge."""
        now = self._clock()
        if self._reset_at > max(now, self._held_until):
            return f"{self._describe_hold()}: waiting"
        if (waits := self._held_until - now) > 0:
            return f"asks to slow down: waiting {math.ceil(waits)} s" + (f", {until(waits)}" if waits > 60 else "")
        if self.pace.now < math.inf:
            return f"asks to slow down: at most {self.pace.now:.3g} per second"
        return f"asks to slow down: at most {self.limit} at once" if self.limit < self.maximum else ""


def until(seconds: float) -> str:
    """Name the time of day in `seconds` from now, with the date if it is not today's."""
    if seconds > YEARS:  # no date has so many
        return "for years"
    now = datetime.now()
    then = now + timedelta(seconds=seconds)
    return f"until {then:%H:%M:%S}" if then.date() == now.date() else f"until {then:%Y-%m-%d %H:%M}"


@dataclass(slots=True)
class _Wave:
    """Refusals that came during one wait."""

    began: float
    is_beyond: bool  # more were in flight than were ever taken
    in_flight: int = 0  # the attempts in flight that were not refused
    is_wait_named: bool = True
