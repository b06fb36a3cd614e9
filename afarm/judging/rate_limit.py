"""Rate limit of one judge: a bound in flight, the waits it asks for, and a pace that is learned.

A refusal (429 and the like) holds every request to the judge, for as long as it asks, else for a moment that grows
while nothing is taken. Two limits are learned from refusals:

- *at once*: at most as many in flight as were taken, if the judge refuses one beyond those and waits cost little;
- *pace*: at most as many per second. Between two refusals a judge takes what its rate allows, whatever it was asked, so
  a pace that is refused falls towards what was taken meanwhile: the more was taken, the surer, the closer.

Both grow again: the number by one for each answer, the pace by steps that double, up to the middle between it and what
was refused. What was refused in vain rests for a time that is long beside the cost of a refusal. Refusals at random get
no rarer by a slower pace: once a pace has halved and is still refused, one that is much faster is tried. If that brings
more, there is no rate to learn, and nothing is limited for a while.

No more is sent than what headers say is allowed until their reset. The very first request goes alone for a
moment, since a refused key or a wrong name is best found out once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime, timedelta

from afarm.core.errors import JudgeError

PAUSE, BACK_OFF, LONGEST_PAUSE = 0.05, 1.2, 60.0
"""Seconds to wait if a judge refuses and does not say for how long: at first, times as many if nothing was taken since
the last refusal, and at most."""
MOMENT = 0.01
"""Seconds in which refusals of what was sent together arrive."""
PATIENCE = 900.0
"""Seconds of refusals without a single answer, or asked to wait at once, after which a run ends."""
ALONE = 5.0
"""Seconds that the first request has for itself, unless its answer comes sooner."""
CHEAP_WAIT = 2.0
"""Seconds of a wait up to which the number at once is limited by the first refusal, not the second."""
FEW, MANY = 4, 16
"""Requests that show something about a pace, and enough."""
STEP, BOLD, CUT = 0.06, 0.25, 0.95
"""Share by which a pace grows first, also under a limit at once, then twice as much each time; and what is left of one
at most if refused."""
CLOSE = 1.06
"""The ratio of the pace refused to the pace in force from which it is found."""
HEADROOM, SPARE, SPREAD = 2.0, 1.2, 0.75
"""Under a limit at once: the pace beside it, as a ratio to what was taken, at first and once one more was refused; and
seconds between requests, as a share of those that an even stream has."""
QUIET = 60.0
"""Costs of a refusal, in seconds, for which a limit that was found stays as it is; and seconds without any limit."""
WAVES, FASTER, GAIN = 8, 3.0, 1.4
"""Refusals in which a pace is halved before one that much faster is tried, and the gain that shows that it may go."""
YEARS = 2 * 366 * 86400
"""Seconds of a wait that has no date worth naming."""


class SlowDown(JudgeError):
    """A judge refuses a request for now, uncharged. `seconds` is the wait it names, None for none."""

    def __init__(self, message: str, seconds: float | None = None):
        super().__init__(message, charged=False)
        self.seconds = seconds


class RequestRefused(JudgeError):
    """A judge does not take one request (400, 413, 422, 451 and the like), uncharged.

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
    """Requests per second: those in force, those before they were raised, and those that were refused."""

    now: float = math.inf
    taken: float = 0.0
    refused: float = math.inf

    @property
    def is_found(self) -> bool:
        """True if there is nothing left to search."""
        return self.refused < CLOSE * self.now

    def faster(self, step: float) -> Pace:
        """The pace in force was taken: raise it by `step`, at most to the middle of what is left."""
        refused = math.inf if self.is_found else self.refused
        return Pace(min(self.now * (1 + step), math.sqrt(self.now * refused)), self.now, refused)

    def slower(self, count: int, rate: float) -> Pace:
        """The pace in force was refused, after `count` were taken at `rate` per second, waits included."""
        closer = (rate / self.now) ** (1 - (1 + count) ** -0.25)
        pace = max(1 / LONGEST_PAUSE, self.taken, self.now * min(CUT, closer))
        return Pace(pace, refused=min(self.refused, self.now))


class Limiter:
    """Rate limit of one judge, at most `maximum` in flight. Not thread-safe: lives on the engine's loop."""

    def __init__(self, maximum: int, clock: Callable[[], float] = time.monotonic):
        self.maximum = self.limit = maximum
        """The number of attempts that may be in flight at once: the most, and at present."""
        self.pace = Pace()
        self.in_flight = 0
        self.refusals = 0
        self._clock = clock
        self._held_until = self._next_at = 0.0
        self._alone_until: float | None = None  # None until a first request, 0 once one was answered
        self._refused_since: float | None = None  # None if the last word was an answer
        self._last_taken = -math.inf  # the latest time at which a request was sent that was answered
        self._latency = 0.0  # of an answer, on average
        self._most_taken, self._together = 0, -1  # attempts in flight together, and as of the last refusal
        self._taken = 0  # attempts in all, those in flight included
        self._run = (0.0, 0)  # where a pace is learned from: time, attempts taken
        self._wave: _Wave | None = None  # refusals that nothing was learned from yet
        self._wait = 0.0  # the last one, if the judge named it
        self._vain, self._taken_before = 0, 0  # waits in a row in which nothing was taken, attempts before the last
        self._since = _Stretch(0.0, 0, 0)
        self._resumed = self._changed = 0.0  # the times of the last wait's end and of the pace's last change
        self._step, self._quiet_until = STEP, 0.0  # by which the pace is raised next, and the end of a limit's rest
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
            self._run = (now, 0)
        self.in_flight += 1
        self._taken += 1
        if spacing <= 1 / self.pace.now and now <= self._next_at + spacing / 2 and not self._wave:
            self._raise_pace(now)  # for nothing else held this request up
        self._next_at = max(self._next_at, now - spacing / 2) + spacing  # makes up for half of what it is late
        self._allowed -= 1
        return Attempt(now, self.in_flight)

    def answered(self, attempt: Attempt, seconds: float | None = None) -> None:
        """Count an attempt that the judge took, and answered in `seconds`, if those are known."""
        now, full = self._clock(), self.in_flight >= self.limit
        seconds = seconds or now - attempt.at
        if not self._latency:  # loading the vendor's SDK is no time of the judge's
            self._run = (now - seconds, 0)
        self._latency += (seconds - self._latency) * (0.1 if self._latency else 1.0)
        self.ended()
        self._alone_until, self._refused_since = 0.0, None
        self._last_taken = max(self._last_taken, attempt.at)
        if attempt.at >= self._resumed and not self._wave:  # others' numbers include what was refused
            self._most_taken = max(self._most_taken, attempt.number)
            if full and now >= self._quiet_until:
                self.limit = min(self.maximum, self.limit + 1)

    def refused(self, attempt: Attempt, seconds: float | None = None) -> None:
        """Hold for `seconds`, or for a moment if none are named. Refusals meanwhile count as the same one."""
        now = self._clock()
        self.ended()
        self.refusals += 1
        self._taken -= 1
        if self._refused_since is None:
            self._refused_since = now
        wave = self._wave = self._wave or _Wave(now)
        wave.is_beyond = wave.is_beyond or attempt.number > self._most_taken
        wave.in_flight = self.in_flight
        least = min(min(PAUSE, 1 / self.pace.now or PAUSE) * BACK_OFF**self._vain, LONGEST_PAUSE)
        if seconds is None:
            wave.is_wait_named = False
            seconds = least
        elif self._vain:  # a wait is named that does not help
            seconds = max(seconds, least)
        self._held_until = max(self._held_until, now + min(max(seconds, MOMENT), PATIENCE))

    def _raise_pace(self, now: float) -> None:
        if self.pace.is_found:
            self._step = STEP
            if now < self._quiet_until:
                return
        if now - self._changed >= max(0.5, FEW / self.pace.now, self._wait / 2):
            step = max(self._step, BOLD) if self.limit < self.maximum else self._step  # which holds it as well
            self.pace, self._changed = self.pace.faster(step), now
            self._step = min(1.0, 2 * self._step)

    def _learn(self, wave: _Wave) -> None:
        """Change the limits by refusals whose wait is over."""
        now, taken = self._clock(), self._taken - self._taken_before
        self._wave, self._resumed, self._changed, self._step = None, now, now, STEP
        self._next_at = max(self._next_at, now)
        if taken <= 0:
            self._vain = min(self._vain + 1, FEW * MANY)
            return
        self._taken_before, self._vain = self._taken, 0
        last, self._together = self._together, max(self._most_taken, wave.in_flight)
        self._most_taken = self._together
        self._wait = self._held_until - wave.began if wave.is_wait_named else 0.0
        count, seconds = max(1, self._taken - self._run[1]), max(wave.began - self._run[0], self._latency, 1e-3)
        rate = count / (seconds + self._held_until - wave.began)
        if count >= MANY:
            self._run = (now, self._taken)
        if self._is_at_random(is_rare=taken >= FEW * MANY):
            return
        is_cheap, is_raised = self._wait <= CHEAP_WAIT, wave.is_beyond and self.limit < self.maximum
        if not wave.is_beyond:
            self.limit = self.maximum
        elif self._together == last or (is_cheap and self._together > wave.is_wait_named):
            self.limit = min(self.limit, max(1, self._together))
        if self.pace.now == math.inf:
            first = count / seconds * (HEADROOM if self.limit < self.maximum else 1.0)
            self.pace = Pace(first if is_cheap else math.sqrt(rate * count / seconds))
        elif is_raised:  # which explains the refusal, unless the pace is too high as well
            least, self._next_at = min(SPARE * max(rate, self._together / self._latency), self.pace.now), now
            self.pace = Pace(max(least, Pace(self.pace.now).slower(count, rate).now))
        else:
            self.pace = self.pace.slower(count, rate)
        cost = max(self._wait, 1 / self.pace.now)
        if self.limit < self.maximum:  # what is in flight is answered meanwhile
            cost = max(self._wait - self._latency / 2, PAUSE if is_raised else 0.0)
        self._quiet_until = now + QUIET * cost

    def _is_at_random(self, is_rare: bool) -> bool:
        """Try a faster pace once one was halved in vain. True while refusals change no limit."""
        now, since = self._clock(), self._since
        taken, seconds, refusals = self._taken - since.taken, now - since.began, self.refusals - since.refusals
        self._since = _Stretch(now, self._taken, self.refusals)
        if since.former is None:
            if is_rare or self.pace.now == math.inf:
                return False
            since.waves, since.fastest = since.waves + 1, max(since.fastest, self.pace.now)
            if since.waves >= WAVES and self.pace.now <= since.fastest / 2:
                self._since.former, self._since.rate = self.pace, GAIN * taken / seconds
                self.pace = Pace(FASTER * self.pace.now)
                return True
            self._since = since
            return False
        if self.pace.now == math.inf:  # no limit, as long as not most are refused
            goes_on = seconds < QUIET and refusals < 3 * (MANY + taken)
        else:
            goes_on = max(taken, since.rate * seconds) < MANY
        if goes_on:
            self._since = since
        elif self.pace.now < math.inf and taken >= since.rate * seconds:
            self._since.former = self.pace = Pace()
            self.limit = self.maximum
        else:
            self.pace = since.former
        return self._since.former is not None

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
        if self._latency / self.limit < 1 / self.pace.now:
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
    is_beyond: bool = False  # more were in flight than were ever taken
    in_flight: int = 0  # the attempts in flight that were not refused
    is_wait_named: bool = True


@dataclass(slots=True)
class _Stretch:
    """Refusals from a time on: in which a pace falls, or in which a faster one is tried."""

    began: float
    taken: int  # attempts until then
    refusals: int
    waves: int = 0
    fastest: float = 0.0  # the pace that fell
    former: Pace | None = None  # to go back to after a trial
    rate: float = 0.0  # per second, to be reached in a trial
