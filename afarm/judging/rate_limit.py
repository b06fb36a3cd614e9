"""Rate limit of one judge: a bound in flight, the waits it asks for, and a pace that is learned.

A refusal (429 and the like) holds every request to the judge, for as long as it asks, else for a moment that grows
while nothing is taken. It teaches one of two limits:

- *at once*: as many were being answered as ever were together. No more than those are sent, and after a rest one more
  for each answer;
- *pace*: fewer were. A pace that is refused after n were taken is cut by a share of 1 / (n + 1), at least by 5 %. It
  rises again along a cubic, as the windows of TCP CUBIC do (Ha et al. 2008): back to what was refused, slowly around
  it, faster beyond it. Its way back takes so long that the requests it forgoes cost as much as one refusal.

Refusals at random get no rarer by a slower pace. If one fell far and is still refused, nothing is limited for a while,
unless most are refused then.

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

PAUSE, BACK_OFF, LONGEST_PAUSE = 0.05, 1.2, 60.0
"""Seconds to wait if a judge refuses and does not say for how long: at first, times as many if nothing was taken since
the last refusal, and at most."""
MOMENT = 0.01
"""Seconds in which refusals of what was sent together arrive."""
PATIENCE = 900.0
"""Seconds of refusals without a single answer, or asked to wait at once, after which a run ends."""
ALONE = 5.0
"""Seconds that the first request has for itself, unless its answer comes sooner."""
SHORT, ONE = 2.0, 3
"""Seconds of a wait after which one refusal teaches a number at once: after longer ones it takes two. And refusals that
teach that it is one, as the first at any pace look."""
REST = 60.0
"""Waits for which a number at once stays as it is: to try one more costs 2 % of the time then."""
SPREAD = 0.5
"""Time between requests under a number at once, as a share of that in an even stream."""
CUT, RISE, EVEN, AT_LEAST = 0.95, 5.0, 30, 0.5
"""What is left at most of a pace that is refused. The time of its way back: in waits, times the share that was cut; at
least that of so many requests, and in seconds."""
FALLS, FALLEN, RARE = 8, 0.7, 64
"""Times that a pace is cut in vain, and what is left of it then, before no limit is tried; and the requests taken
between two refusals that show that it was not in vain."""
MANY, QUIET = 16, 60.0
"""Requests by which a time without limits is judged, and its seconds."""
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
    """Requests per second, which rise from `low` to `top` in `seconds` from `began`, and beyond."""

    low: float = math.inf
    top: float = math.inf
    began: float = 0.0
    seconds: float = 1.0

    def at(self, now: float) -> float:
        if self.low == math.inf:
            return math.inf
        way = min((now - self.began) / self.seconds - 1, 3.0)
        return self.top + (self.top - self.low if way < 0 else self.top) * way**3


class Limiter:
    """Rate limit of one judge, at most `maximum` in flight. Not thread-safe: lives on the engine's loop."""

    def __init__(self, maximum: int, clock: Callable[[], float] = time.monotonic):
        self.maximum = self.limit = maximum
        """The number of attempts that may be in flight at once: the most, and at present."""
        self._pace = Pace()
        self.in_flight = self.refusals = 0
        self._clock = clock
        self._held_until = self._next_at = 0.0
        self._alone_until: float | None = None  # None until a first request, 0 once one was answered
        self._refused_since: float | None = None  # None if the last word was an answer
        self._last_taken = -math.inf  # the latest time at which a request was sent that was answered
        self._most_taken = 0  # attempts in flight together
        self._taken = self._taken_before = 0  # attempts in all, those in flight included, and as of the last refusal
        self._began = self._latency = 0.0  # the time of the first attempt, and seconds of an answer on average
        self._wave: _Wave | None = None  # refusals that nothing was learned from yet
        self._together = self._alike = 0  # the attempts in flight at the last refusals, and how many had so many
        self._vain = 0  # waits in a row in which nothing was taken
        self._resumed = self._rests_until = 0.0  # the times of the last wait's end, and of the end of a number's rest
        self._falls, self._fastest = 0, 0.0  # of a pace: how often, and from which
        self._patience = FALLS  # falls before a time without limits is tried
        self._trial: _Trial | None = None  # of no limits
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
    def pace(self) -> float:
        """Requests per second that may be sent at present."""
        return self._pace.at(self._clock())

    @property
    def _spacing(self) -> float:
        """Seconds between attempts: a judge that takes eight at once may not take eight in one moment."""
        at_once = self.limit if self.limit < self.maximum else math.inf
        return max(1 / self.pace, SPREAD * self._latency / at_once)

    # -------------------------------------------------------------------------------------------- what became of it

    def sent(self) -> Attempt:
        """Count a request that is being sent."""
        now, spacing = self._clock(), self._spacing
        if self._alone_until is None:
            self._alone_until = now + ALONE
        if self._taken == 0:
            self._began = now
        self.in_flight += 1
        self._taken += 1
        late = spacing / 2 if self.limit == self.maximum else 0.0  # that much is made up for
        self._next_at = max(self._next_at, now - late) + spacing
        self._allowed -= 1
        return Attempt(now, self.in_flight)

    def answered(self, attempt: Attempt, seconds: float | None = None) -> None:
        """Count an attempt that the judge took, and answered in `seconds`, if those are known."""
        now, full = self._clock(), self.in_flight >= self.limit
        seconds = seconds or now - attempt.at
        if not self._latency:  # loading the vendor's SDK is no time of the judge's
            self._began = now - seconds
        self._latency += (seconds - self._latency) * (0.1 if self._latency else 1.0)
        self.ended()
        self._alone_until, self._refused_since = 0.0, None
        self._last_taken = max(self._last_taken, attempt.at)
        if attempt.at >= self._resumed and not self._wave:  # others' numbers include what was refused
            self._most_taken = max(self._most_taken, attempt.number)
            self._vain = 0
            if full and now >= self._rests_until:
                self.limit = min(self.maximum, self.limit + 1)

    def refused(self, seconds: float | None = None) -> None:
        """Hold for `seconds`, or for a moment if none are named. Refusals meanwhile count as the same one."""
        now = self._clock()
        self.ended()
        self.refusals += 1
        self._taken -= 1
        if self._refused_since is None:
            self._refused_since = now
        wave = self._wave = self._wave or _Wave(now)
        wave.in_flight = self.in_flight
        least = min(min(PAUSE, self._spacing or PAUSE) * BACK_OFF**self._vain, LONGEST_PAUSE)
        if seconds is None:
            wave.is_wait_named = False
            seconds = least
        elif self._vain:  # a wait is named that does not help
            seconds = max(seconds, least)
        self._held_until = max(self._held_until, now + min(max(seconds, MOMENT), PATIENCE))

    def _learn(self, wave: _Wave) -> None:
        """Change the limits by refusals whose wait is over."""
        now, taken, pace = self._clock(), self._taken - self._taken_before, self._pace.at(wave.began)
        self._wave, self._resumed, self._next_at = None, now, max(self._next_at, now)
        if taken <= 0:
            self._vain = min(self._vain + 1, RARE)
            self._pace = replace(self._pace, began=self._pace.began + now - wave.began)  # the pace was not tried
            return
        self._taken_before, self._vain = self._taken, 0
        if self._is_at_random(taken):
            return
        wait, is_beyond = self._held_until - wave.began, wave.in_flight >= max(1, self._most_taken)
        self._alike = self._alike + 1 if wave.in_flight == self._together else 1
        self._together, self._most_taken = wave.in_flight, max(self._most_taken, wave.in_flight)
        enough = ONE if wave.in_flight == 1 else 2 if wave.is_wait_named and wait > SHORT else 1
        if is_beyond and self._alike >= enough:
            self.limit, self._rests_until = wave.in_flight, now + REST * wait
            return
        self.limit = self.maximum
        left, is_known = min(CUT, taken / (taken + 1)), pace < math.inf
        if not is_known:  # it lies between what was taken with the wait and without
            left, seconds = CUT, max(wave.began - self._began, self._latency, 1e-3)
            pace = self._taken / (math.sqrt(seconds * (seconds + wait)) if wave.is_wait_named else seconds)
        pace = max(pace, 1 / LONGEST_PAUSE)
        way = max(RISE * wait / (1 - left if is_known else 1.0), EVEN / pace, AT_LEAST)
        self._pace = Pace(left * pace, pace, now if is_known else now - way, way)

    def _is_at_random(self, taken: int) -> bool:
        """Try no limit once a pace fell in vain. True while refusals change nothing."""
        now, trial = self._clock(), self._trial
        if trial:
            is_good = self.refusals - trial.refusals < 2 * (MANY + self._taken - trial.taken)
            if is_good and now - trial.began < QUIET:
                return True
            self._trial, self._falls, self._fastest = None, 0, 0.0
            self._patience = FALLS if is_good else 2 * self._patience
            if not is_good:
                self._pace, self.limit = trial.pace, trial.limit
                return True
            return False
        if self._pace.low == math.inf or taken >= RARE:
            self._falls, self._fastest = 0, 0.0
            return False
        self._falls, self._fastest = self._falls + 1, max(self._fastest, self.pace)
        if self._falls < self._patience or self.pace > FALLEN * self._fastest:
            return False
        self._trial = _Trial(now, self._taken, self.refusals, self._pace, self.limit)
        self._pace, self.limit = Pace(), self.maximum
        return True

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
        if self._latency / self.limit < 1 / self.pace:
            return f"asks to slow down: at most {self.pace:.3g} per second"
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
    in_flight: int = 0  # the attempts in flight that were not refused
    is_wait_named: bool = True


@dataclass(frozen=True, slots=True)
class _Trial:
    """A time without limits: what was until then."""

    began: float
    taken: int
    refusals: int
    pace: Pace
    limit: int
