"""Rate limit of one judge, learned from its refusals and its headers.

A refusal (429 and the like) holds every request to the judge, for as long as it asks. One of two limits explains it:

- *at once*: at most as many in flight as were taken, if a judge refuses one beyond those and waits cost little;
- *pace*: at most as many per second, if the number at once does not explain it, or finding out would cost a long wait.

The pace lies between one that was taken and one that was refused. If k attempts were taken in s seconds before a wait
of w, then k / (s + w) per second is taken, for this could go on for ever, and k / s is refused. It begins at their
geometric mean. It grows by steps, each twice the one before, up to the middle of what is left between the two, until
they are close. Either limit is tried again after a quiet time that is long beside the wait that a refusal costs.

Headers that say how much remains are spread over the time to their reset. The very first request goes alone for a
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

PAUSE = 0.25
"""Seconds to wait if a judge refuses one request and does not say for how long."""
PAUSE_SHARE = 0.2
"""The same while it refuses all, as a share of the seconds since it took one; at most `LONGEST_PAUSE`."""
LONGEST_PAUSE = 10.0
PATIENCE = 900.0
"""Seconds of refusals without a single answer, or asked to wait at once, after which a run ends."""
SOON = 60.0
"""Seconds in which to spend what headers still allow if their reset is too far to wait for."""
ALONE = 5.0
"""Seconds that the first request has for itself, unless its answer comes sooner."""
CHEAP_WAIT = 2.0
"""Seconds of a wait up to which the number at once is tried before a pace."""
ENOUGH = 3
"""Attempts taken that show a pace."""
FIRST_STEP, LATER_STEP = 0.06, 0.03
"""Shares by which a pace grows first: after a refusal, after a quiet time."""
CLOSE = 1.06
"""The ratio of the pace refused to the pace taken from which it is not searched any more."""
CUT = 0.95
"""Share of a pace to go on with if it was taken before and is refused now."""
QUIET = 32.0
"""Costs of a refusal, in seconds, for which a limit stays as it is; twice as many after each that was tried in vain."""
LONGEST_QUIET = 64.0
SPREAD = 0.75
"""Seconds between requests under a limit at once, as a share of those that an even stream has."""


YEARS = 2 * 366 * 86400
"""Seconds of a wait that has no date worth naming."""


class SlowDown(JudgeError):
    """A judge refuses a request for now, uncharged. `seconds` is the wait it names, None for none."""

    def __init__(self, message: str, seconds: float | None = None):
        super().__init__(message, charged=False)
        self.seconds = seconds


ANSWER_LOST: ContextVar[Callable[[], Awaitable[None]]] = ContextVar("ANSWER_LOST")
"""Called by `answer_lost` for the current request; set by the engine."""


async def answer_lost() -> None:
    """Report that the current request may have been charged for, got no answer, and will be sent again.

    The engine goes on counting it and returns when the budget allows another attempt; if it never will, the request is
    cancelled. Does nothing outside of the engine.
    """
    if report := ANSWER_LOST.get(None):
        await report()


@dataclass(frozen=True, slots=True, eq=False)
class Attempt:
    """A request that was sent: its time, and the number in flight with it."""

    at: float
    number: int


@dataclass(frozen=True, slots=True)
class LearnedLimit:
    """Believed limits: `at_once` or `pace` per second, which lies between those `taken` and `refused`."""

    at_once: float = math.inf
    pace: float = math.inf
    taken: float = 0.0
    refused: float = math.inf

    @property
    def closed(self) -> bool:
        """True if there is nothing left to search."""
        return self.refused < CLOSE * self.taken

    def faster(self, step: float) -> LearnedLimit:
        """The pace in force was taken: raise it by `step`, at most to the middle of what is left."""
        taken = max(self.taken, self.pace)
        return replace(self, taken=taken, pace=min(taken * (1 + step), math.sqrt(taken * self.refused)))

    def slower(self, shown: float) -> LearnedLimit:
        """The pace in force was refused, after a run that got `shown` per second, waits included."""
        refused = min(self.refused, self.pace)
        taken = max(shown, self.taken if self.pace > 1.01 * self.taken else CUT * self.pace)
        taken = min(taken, 0.99 * refused)
        return LearnedLimit(pace=taken, taken=taken, refused=refused)


class Limiter:
    """Rate limit of one judge, at most `maximum` in flight. Not thread-safe: lives on the engine's loop."""

    def __init__(self, maximum: int, clock: Callable[[], float] = time.monotonic):
        self.maximum = maximum
        self.limits = LearnedLimit()
        self.in_flight = 0
        self.refusals = 0
        self._clock = clock
        self._held_until = self._next_at = 0.0
        self._alone_until: float | None = None  # None until a first request, 0 once one was answered
        self._refused_since: float | None = None  # None if the last word was an answer
        self._latency = 0.0  # of an answer, on average
        self._most_taken = 0  # attempts in flight together
        self._taken = 0  # attempts in all, those in flight included
        self._began = self._resumed = _Mark(0.0, 0)  # the run of attempts that is judged by; the last wait's end
        self._second_at = math.inf  # the time of the second attempt, the first that is not alone
        self._wave: _Wave | None = None
        self._at_once_disproved = False
        self._in_vain = 0  # waits in a row after which next to nothing was taken
        self._successes = 0
        self._changed = 0.0
        self._step = 0.0  # by which a pace is raised next
        self._more = 1  # by which the number at once is raised next
        self._quiet, self._quiet_until = QUIET, 0.0
        self._allowed_at = self._allowed_spacing = 0.0  # by the headers: the next attempt, seconds to the one after
        self._allowed_until, self._allowed_words, self._none_allowed = 0.0, "", False

    # -------------------------------------------------------------------------------------------- may one be sent?

    @property
    def limit(self) -> int:
        """The number of attempts that may be in flight at once."""
        return int(min(self.limits.at_once, self.maximum))

    def free_slots(self) -> int:
        """The number of further requests that may be sent now."""
        if self.seconds_until_open() > 0:
            return 0
        free = max(0, self.limit - self.in_flight)
        alone = self._alone_until is None or self._spacing > 0 or self._allowed_spacing > 0
        return min(free, 1) if alone else free

    def seconds_until_open(self) -> float:
        """Seconds until a request may be sent; 0 if nothing holds it."""
        return max(self.seconds_held(), max(self._alone_until or 0.0, self._next_at) - self._clock())

    def seconds_held(self) -> float:
        """Seconds that the judge, or its headers, asked to wait for; 0 if they are over."""
        return max(0.0, max(self._held_until, self._allowed_at) - self._clock())

    @property
    def _spacing(self) -> float:
        """Seconds between attempts: a judge that takes eight at once may not take eight in one moment."""
        return 1 / self.limits.pace + SPREAD * self._latency / self.limits.at_once

    # -------------------------------------------------------------------------------------------- what became of it

    def sent(self) -> Attempt:
        """Count a request that is being sent."""
        now, spacing = self._clock(), self._spacing
        if self._alone_until is None:
            self._alone_until = now + ALONE
        if self._taken == 0:
            self._began = self._resumed = _Mark(now, 0)
        elif self._taken == 1:
            self._second_at = min(self._second_at, now)
        if self._resumed.at < self._held_until:
            self._resumed = _Mark(now, self._taken)
        self.in_flight += 1
        self._taken += 1
        self._next_at = max(self._next_at, now - spacing / 2) + spacing  # makes up for half of what it is late
        self._allowed_at = max(self._allowed_at, now - self._allowed_spacing) + self._allowed_spacing
        return Attempt(now, self.in_flight)

    def answered(self, attempt: Attempt, seconds: float | None = None) -> None:
        """Count an attempt that the judge took, and answered in `seconds`, if those are known."""
        now, full = self._clock(), self.in_flight >= self.limit
        seconds = seconds or now - attempt.at
        if self._taken == 1:  # loading the vendor's SDK is no time of the judge's
            self._began = self._resumed = _Mark(now - seconds, 0)
        self._latency += (seconds - self._latency) * (0.1 if self._latency else 1.0)
        self.ended()
        self._alone_until, self._refused_since, self._in_vain = 0.0, None, 0
        if self._wave is not None and attempt.at <= self._wave.began:
            return
        self._most_taken = max(self._most_taken, attempt.number)
        if attempt.at < self._changed or self._wave is None:
            return  # sent before the limits in force
        self._successes += 1
        quiet = now < self._quiet_until
        if self.limits.at_once < math.inf:
            if full and not quiet and self._successes >= self.limit:
                self._change(replace(self.limits, at_once=self.limits.at_once + self._more), now)
                self._more *= 2
        elif self._successes >= ENOUGH and now - self._changed >= 0.5 * max(1.0, self._wave.wait):
            self._raise_pace(now, quiet)

    def refused(self, attempt: Attempt, seconds: float | None = None) -> None:
        """Slow down and hold for `seconds`, if named; refusals of what was in flight together are one wave."""
        now = self._clock()
        self.ended()
        self.refusals += 1
        self._taken -= 1
        if self._refused_since is None:
            self._refused_since = now
        wave = self._wave
        if wave is None or attempt.at > wave.began:
            wave = self._wave = self._new_wave(attempt, now)
        else:
            wave.in_flight -= 1
        some_taken = self._taken - wave.resumed.taken >= ENOUGH
        self._began, self._in_vain = (wave.resumed, 0) if some_taken else (wave.run, wave.in_vain + 1)
        spent = max(wave.began - self._began.at, 1e-3)
        wave.wait = max(wave.wait, self._wait(wave, spent, seconds))
        self._change(self._learned(wave, max(1, self._taken - self._began.taken), spent), now)
        self._step, self._more = FIRST_STEP, 1
        self._hold(wave, now)

    def _new_wave(self, attempt: Attempt, now: float) -> _Wave:
        last = self._wave
        if last is not None:
            self._most_taken = max(self._most_taken, last.in_flight)
            if now >= self._quiet_until:
                self._quiet = min(LONGEST_QUIET, 2 * self._quiet)
        again = last is not None and last.most_taken == self._most_taken and not self._at_once_disproved
        beyond = attempt.number > self._most_taken
        return _Wave(
            now, self.limits, self.in_flight, beyond, beyond and again, self._resumed, self._began, self._in_vain
        )

    def _wait(self, wave: _Wave, spent: float, seconds: float | None) -> float:
        """Seconds to hold requests: those that the judge says, none while its answers make room."""
        if self._in_vain > 1:
            pause = max(PAUSE, PAUSE_SHARE * spent)
        elif wave.beyond and self.in_flight:
            pause = 0.0
        else:
            pause = PAUSE if self._in_vain or wave.before.pace == math.inf else 2 / wave.before.pace
        pause = min(pause, LONGEST_PAUSE)
        if seconds is None:
            return pause
        return max(0.0, seconds, pause if self._in_vain > 2 else 0.0)  # one that says 0 is not asked without end

    def _learned(self, wave: _Wave, count: int, spent: float) -> LearnedLimit:
        """The limits after `wave`, before which `count` attempts were taken in `spent` seconds."""
        before = wave.before
        taken = max(self._most_taken, wave.in_flight)
        low, high = count / (spent + wave.wait), count / spent
        if self._began.taken == 0 and count > 1:  # the very first was alone
            high = max(high, (count - 1) / max(wave.began - self._second_at, self._latency, 1e-3))
        between = LearnedLimit(pace=math.sqrt(low * high), taken=low)
        if before.at_once < math.inf and wave.beyond:
            return replace(before, at_once=max(1, min(before.at_once, taken)))
        if before.at_once < math.inf:
            self._at_once_disproved = True
            return replace(before, at_once=math.inf, pace=before.taken) if before.taken else between
        if before.pace == math.inf:
            explains = wave.beyond and 1 < taken < self.maximum and wave.wait <= CHEAP_WAIT
            return LearnedLimit(at_once=taken) if explains else between
        if wave.beyond_again:  # the pace was another, the number is the same
            return replace(before.slower(low), at_once=max(1, taken), pace=math.inf)
        return between if self._in_vain else before.slower(low)

    def _raise_pace(self, now: float, quiet: bool) -> None:
        limits, step = replace(self.limits, taken=max(self.limits.taken, self.limits.pace)), self._step
        if limits.closed:
            if quiet:
                return
            limits, step = replace(limits, refused=math.inf), LATER_STEP
        self._change(limits.faster(step), now)
        self._step = min(1.0, 2 * step)

    def _change(self, limits: LearnedLimit, now: float) -> None:
        slowest = 1 / (6 * LONGEST_PAUSE)
        self.limits = replace(limits, pace=max(limits.pace, slowest))
        self._changed, self._successes = now, 0

    def _hold(self, wave: _Wave, now: float) -> None:
        wave.most_taken = max(self._most_taken, wave.in_flight)
        cost = max(1.0, wave.wait)
        if self.limits.at_once < math.inf:  # what is in flight is answered meanwhile
            idle = wave.wait - self._latency / 2
            cost = max(PAUSE, idle if wave.wait > self._latency else wave.wait**2 / (2 * self._latency or 1.0))
        if wave.wait:
            self._held_until = max(self._held_until, now + min(wave.wait, PATIENCE))
        self._next_at = max(self._next_at, self._held_until, now + 1 / self.limits.pace)
        self._quiet_until = max(now, self._held_until) + self._quiet * cost

    def ended(self) -> None:
        """Count an attempt as over: by itself, for one that ended in an error other than a refusal."""
        self.in_flight -= 1
        if self._alone_until and not self.in_flight:
            self._alone_until = None

    # ------------------------------------------------------------------------------------------------------ headers

    def allowed(self, requests: float, seconds: float, words: str = "") -> None:
        """Spread the `requests` that the judge's headers still allow over the `seconds` until their reset.

        `words` are the headers' own. Newer headers replace older ones. Requests in flight are of those that are
        allowed. A reset beyond `PATIENCE` is not waited for, so what remains until then is spent soon.
        """
        now, left = self._clock(), requests - self.in_flight
        self._allowed_words, self._allowed_until = words, now + seconds
        self._allowed_spacing = (seconds if seconds <= PATIENCE else SOON) / max(1.0, left)
        self._none_allowed = left < 1
        self._allowed_at = now + seconds if left < 1 else min(self._allowed_at, now + self._allowed_spacing)

    @property
    def exhausted(self) -> str:
        """The wait that the headers ask for, in words, if it is too long for a run; else empty."""
        return self._describe_hold() if self._allowed_at - self._clock() > PATIENCE else ""

    def _describe_hold(self) -> str:
        seconds = self._allowed_at - self._clock()
        said = f" ({self._allowed_words})" if self._allowed_words else ""
        return f"allows no more requests {until(seconds)}{said}"

    # ---------------------------------------------------------------------------------------------------- for people

    @property
    def refused_seconds(self) -> float:
        """Seconds since the first refusal after the last answer; 0 if an answer came last."""
        return 0.0 if self._refused_since is None else self._clock() - self._refused_since

    @property
    def state(self) -> str:
        """The wait or the limit in words, for the screen; empty if nothing limits the judge."""
        now = self._clock()
        if self._none_allowed and self._allowed_at > max(now, self._held_until):
            return f"{self._describe_hold()}: waiting"
        if (waits := self._held_until - now) > 0:
            return f"asks to slow down: waiting {math.ceil(waits)} s" + (f", {until(waits)}" if waits > 60 else "")
        if self._allowed_spacing > 0 and self._allowed_until > now:
            return f"allows one request per {self._allowed_spacing:.2g} s {until(self._allowed_until - now)}"
        if self.limits.pace < math.inf:
            return f"asks to slow down: at most {self.limits.pace:.3g} per second"
        return f"asks to slow down: at most {self.limit} at once" if self.limit < self.maximum else ""


def until(seconds: float) -> str:
    """Name the time of day in `seconds` from now, with the date if it is not today's."""
    if seconds > YEARS:  # no date has so many
        return "for years"
    now = datetime.now()
    then = now + timedelta(seconds=seconds)
    return f"until {then:%H:%M:%S}" if then.date() == now.date() else f"until {then:%Y-%m-%d %H:%M}"


@dataclass(frozen=True, slots=True)
class _Mark:
    """A time, and the number of attempts taken until then."""

    at: float
    taken: int


@dataclass(slots=True)
class _Wave:
    """Refusals of attempts that were in flight together."""

    began: float  # the time of the first
    before: LearnedLimit  # the limits until then
    in_flight: int  # the attempts in flight that were not refused
    beyond: bool  # more were in flight than were ever taken
    beyond_again: bool  # and as many as at the wave before
    resumed: _Mark  # the end of the wait before
    run: _Mark  # the run of attempts until then
    in_vain: int  # waits in a row after which next to nothing was taken
    wait: float = 0.0  # seconds for which requests are held
    most_taken: int = 0  # the most attempts in flight that were taken together
