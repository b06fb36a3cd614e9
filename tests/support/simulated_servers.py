"""Servers that refuse what exceeds a fixed rate, and a run against one, in simulated time: seconds cost nothing.

assert share_of_rate(AtOnce(8, retry_after=1.0), answers=805) >= 0.9
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from afarm.judging.rate_limit import Attempt, Limiter

NETWORK = 0.002
"""Seconds to the server and back, each way."""


@dataclass
class AtOnce:
    """At most `count` requests at once."""

    count: int
    retry_after: float | None = None
    running: int = 0

    def takes(self, now: float) -> bool:
        taken = self.running < self.count
        self.running += taken
        return taken

    def done(self) -> None:
        self.running -= 1

    def seconds_for(self, answers: int, latency: float) -> float:
        """The least time that so many answers take."""
        return answers * latency / self.count


@dataclass
class PerWindow:
    """At most `count` requests in any `seconds`."""

    count: int
    seconds: float = 1.0
    retry_after: float | None = None
    times: deque[float] = field(default_factory=deque)

    def takes(self, now: float) -> bool:
        while self.times and self.times[0] <= now - self.seconds:
            self.times.popleft()
        taken = len(self.times) < self.count
        if taken:
            self.times.append(now)
        return taken

    def done(self) -> None:
        pass

    def seconds_for(self, answers: int, latency: float) -> float:
        return answers * self.seconds / self.count


@dataclass
class Bucket:
    """`rate` requests per second, and `burst` at once after a rest."""

    rate: float
    burst: float
    retry_after: float | None = None
    level: float = -1.0
    at: float = 0.0

    def takes(self, now: float) -> bool:
        level = self.burst if self.level < 0 else min(self.burst, self.level + (now - self.at) * self.rate)
        taken = level >= 1
        self.level, self.at = level - taken, now
        return taken

    def done(self) -> None:
        pass

    def seconds_for(self, answers: int, latency: float) -> float:
        return answers / self.rate


@dataclass
class AtRandom:
    """Refuses a share of the requests, whatever their rate."""

    share: float
    retry_after: float | None = None
    draw: random.Random = field(default_factory=lambda: random.Random(5))

    def takes(self, now: float) -> bool:
        return self.draw.random() >= self.share

    def done(self) -> None:
        pass

    def seconds_for(self, answers: int, latency: float) -> float:
        return answers * latency / 64


Server = AtOnce | AtRandom | PerWindow | Bucket


class Run:
    """`answers` requests through a `Limiter`, as the engine sends them: refused ones go back to the queue."""

    def __init__(
        self,
        server: Server,
        *,
        answers: int = 805,
        in_flight: int = 64,
        latency: tuple[float, float] = (0.3, 0.5),
        seed: int = 0,
        headers: Callable[[float], tuple[float, float]] | None = None,
    ):
        self.server, self.answers, self.latency, self.headers = server, answers, latency, headers
        self.began = self.now = 15_000.0  # as a machine's clock, which begins when it is started
        self.answered = self.refused = 0
        self.limiter = Limiter(in_flight, lambda: self.now)
        self._draw = random.Random(seed)
        self._waiting = answers
        self._wakes_at = math.inf
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def finish(self, within: float = 1e6) -> Run:
        self._send()
        while self._events and self.answered < self.answers:
            self.now, _, event = heapq.heappop(self._events)
            assert self.now - self.began < within, f"{self.answered} answers in {within} s"
            event()
        assert self.answered == self.answers, "nothing is waited for, and not all is answered"
        return self

    @property
    def share(self) -> float:
        """The share of the server's rate that the run got."""
        return self.server.seconds_for(self.answers, sum(self.latency) / 2) / (self.now - self.began)

    def _after(self, seconds: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._order), event))

    def _send(self) -> None:
        while self._waiting and (free := min(self.limiter.free_slots(), self._waiting)):
            for _ in range(free):
                self._waiting -= 1
                attempt = self.limiter.sent()
                self._after(NETWORK + self._draw.uniform(0, 0.003), lambda attempt=attempt: self._arrives(attempt))  # type: ignore[misc]
        if self._waiting and (seconds := self.limiter.seconds_until_open()) > 0:
            seconds += self._draw.uniform(0, 0.002)
            at = self.now + seconds
            if at < self._wakes_at:
                self._wakes_at = at
                self._after(seconds, lambda: self._wake(at))

    def _wake(self, at: float) -> None:
        if at == self._wakes_at:  # otherwise an earlier time was set since
            self._wakes_at = math.inf
            self._send()

    def _arrives(self, attempt: Attempt) -> None:
        if self.server.takes(self.now):
            self._after(self._draw.uniform(*self.latency), lambda: self._ends(attempt))
        else:
            self._after(NETWORK, lambda: self._is_refused(attempt))

    def _ends(self, attempt: Attempt) -> None:
        self.server.done()
        told = self.headers(self.now) if self.headers else None
        self._after(NETWORK, lambda: self._is_answered(attempt, told))

    def _is_answered(self, attempt: Attempt, told: tuple[float, float] | None) -> None:
        self.answered += 1
        self.limiter.answered(attempt)
        if told:
            self.limiter.allowed(*told)
        self._send()

    def _is_refused(self, attempt: Attempt) -> None:
        self.refused += 1
        self._waiting += 1
        self.limiter.refused(self.server.retry_after)
        self._send()
