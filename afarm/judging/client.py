"""The metered way to a judge: concurrent, cached in the ledger, within the budget.

Only this engine calls a `Judge`, so that no plugin can pay twice. It has one event loop on a thread of its own, and so
works in a script, in a notebook and inside a running loop alike.
"""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from itertools import islice
from typing import Any, TypeVar

from afarm.core.errors import AfarmError, JudgeError, attribute_failures, did_you_mean
from afarm.core.judge import Capabilities, ChatRequest, Completion, Judge, Judgement, JudgementKey
from afarm.judging.degraded import unsupported, without
from afarm.judging.dispatch import Dispatcher, JudgeQueue, PendingRequest, misfit
from afarm.judging.ledger import Ledger, request_key
from afarm.judging.rate_limit import Limiter
from afarm.judging.refusals import Refusals
from afarm.judging.return_checks import identify_judge

T = TypeVar("T")

BLOCK = 256
"""Requests looked up in the ledger at once."""
AHEAD = 4
"""Requests taken from a stream ahead of their answers, as a multiple of those in flight."""


@dataclass(slots=True)
class Spend:
    """Purchases and reuse of a run. The price of `unpriced_calls` is unknown, not zero."""

    calls: int = 0
    answers_reused: int = 0
    judgements_reused: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    dollars: float = 0.0
    unpriced_calls: int = 0
    calls_by_annotator: Counter[str] = field(default_factory=Counter)

    def add(self, request: ChatRequest, completion: Completion) -> None:
        self.calls += 1
        self.calls_by_annotator[request.annotator] += 1
        self.input_tokens += completion.input_tokens
        self.output_tokens += completion.output_tokens
        if completion.price is None:
            self.unpriced_calls += 1
        else:
            self.dollars += completion.price

    def totals(self) -> dict[str, float]:
        """Return all but the calls by annotator, by name: what another process can be told."""
        names = [field.name for field in fields(self) if field.name != "calls_by_annotator"]
        return {name: getattr(self, name) for name in names}

    def add_totals(self, totals: Mapping[str, float]) -> None:
        """Add what another process has bought and reused for this run."""
        for name, value in totals.items():
            setattr(self, name, getattr(self, name) + value)


class JudgeClient:
    """The metered `ask` of every context: see `afarm.Ask`.

    `judges` answer by family role, "*" for every other one. Each has at most `max_concurrency` requests in flight,
    fewer while it asks to slow down (told to its limiter in `limiters`). Purchases go to the account and the `budget`,
    in dollars, of `run` in the `ledger`, which stays the caller's to close, and to the artifact that `stage` names.
    `allow_degraded` leaves out parameters that a judge does not accept. With `batch_api` batch endpoints are used, and
    looked at every `batch_poll_seconds`.
    """

    def __init__(
        self,
        judges: Mapping[str, Judge],
        ledger: Ledger,
        *,
        run: str = "",
        max_concurrency: int = 64,
        budget: float | None = None,
        allow_degraded: bool = False,
        batch_api: bool = False,
        batch_poll_seconds: float = 60.0,
        limiters: Mapping[Judge, Limiter] | None = None,
        stage: Callable[[], str] = lambda: "",
    ):
        self.judges = dict(judges)
        self.ledger = ledger
        self.run = run
        self.max_concurrency = max_concurrency
        self.budget = budget
        self.allow_degraded = allow_degraded
        self.batch_api = batch_api
        self.batch_poll_seconds = batch_poll_seconds
        self.stage = stage
        self.spend = Spend()
        self.dispatchers: list[Dispatcher] = []
        self.refusals = Refusals(ledger)
        self._limiters = {} if limiters is None else limiters  # of judges that are made later too
        self._queues: dict[Judge, JudgeQueue] = {}
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    # ---------------------------------------------------------------------------------------- the `Ask` interface

    def __call__(self, requests: Sequence[ChatRequest]) -> list[Completion]:
        """See `afarm.core.judge.Ask.__call__`."""
        answers: dict[int, Completion] = dict(self.stream(requests))
        return [answers[index] for index in range(len(requests))]

    def stream(self, requests: Iterable[ChatRequest]) -> Generator[tuple[int, Completion], None, None]:
        """See `afarm.core.judge.Ask.stream`."""
        indices: dict[str, list[int]] = {}
        direct: set[str] = set()
        remaining = enumerate(requests)
        dispatcher: Dispatcher | None = None
        exhausted = False
        try:
            while not exhausted or indices:
                if not exhausted and len(direct) < AHEAD * self.max_concurrency:
                    block = list(islice(remaining, BLOCK))
                    exhausted = len(block) < BLOCK
                    stored, pending = self._look_up(block, indices)
                    if pending and dispatcher is None:
                        dispatcher = self._start()
                    if dispatcher is not None:
                        self._running_loop().call_soon_threadsafe(dispatcher.add, pending, exhausted)
                    direct.update(p.key for p in pending if p.queue.direct is None)
                    yield from stored
                    continue
                answered = dispatcher.results.get() if dispatcher else None
                if not isinstance(answered, list):
                    dispatcher = None
                    raise answered or JudgeError("the engine was stopped")
                for request, completion in answered:
                    direct.discard(request.key)
                    for index in indices.pop(request.key):
                        yield index, completion
        finally:
            if dispatcher is not None:
                self._stop(dispatcher, stop=bool(indices) or not exhausted)

    def _look_up(
        self, block: Sequence[tuple[int, ChatRequest]], indices: dict[str, list[int]]
    ) -> tuple[list[tuple[int, Completion]], list[PendingRequest]]:
        """Split `block` into stored answers and pending requests; `indices` records who awaits those."""
        requests = [(index, self._pending(request)) for index, request in block]
        new = list(dict.fromkeys(request.key for _, request in requests if request.key not in indices))
        stored = self.ledger.completions(new)
        answers: list[tuple[int, Completion]] = []
        pending: list[PendingRequest] = []
        for index, request in requests:
            if request.key in stored:
                answers.append((index, stored[request.key]))
            elif request.key in indices:
                indices[request.key].append(index)
            else:
                indices[request.key] = [index]
                pending.append(request)
        if stored:
            self.spend.answers_reused += self.ledger.reused(self.run, list(stored))
        return answers, pending

    def _pending(self, request: ChatRequest) -> PendingRequest:
        """The request as its judge can take it. Raises `JudgeError` if it cannot."""
        queue = self._find_queue(request.role)
        degraded = self.degraded(request)
        key = request_key(request, queue.identity, degraded)
        return PendingRequest(key, without(request, degraded) if degraded else request, degraded, queue)

    def key(self, request: ChatRequest) -> str:
        return self._pending(request).key

    def recall(self, keys: Sequence[JudgementKey]) -> dict[JudgementKey, Judgement]:
        """See `afarm.core.judge.Ask.recall`."""
        judgements = self.ledger.recall(keys)
        if judgements:
            self.spend.judgements_reused += len(judgements)
            read = [judgement.completion for judgement in judgements.values()]  # several from one answer
            self.spend.answers_reused += self.ledger.reused(self.run, read)
        return judgements

    def learn(self, judgements: Mapping[JudgementKey, Judgement]) -> None:
        """See `afarm.core.judge.Ask.learn`."""
        self.ledger.learn(judgements)

    def judge(self, role: str) -> str:
        return self._find_queue(role).identity

    def capabilities(self, role: str) -> Capabilities:
        return self.find_judge(role).capabilities

    def degraded(self, request: ChatRequest) -> tuple[str, ...]:
        """See `afarm.core.judge.Ask.degraded`."""
        judge = self.find_judge(request.role)
        names = unsupported(request, judge.capabilities)
        if names and not self.allow_degraded:
            raise JudgeError(misfit(judge.identity, names, [request.annotator]))
        return names

    @contextmanager
    def charge_run(self, run: str) -> Iterator[None]:
        """Charge the requests inside to `run` and its budget."""
        before, self.run = self.run, run
        try:
            yield
        finally:
            self.run = before

    def worst_case_price(self, request: ChatRequest) -> float | None:
        """The most that `request` can cost in dollars; None if its judge's prices are unknown."""
        return self._find_queue(request.role).worst_case_price(request)

    def find_judge(self, role: str) -> Judge:
        """Return the judge that answers for `role`. Raises `JudgeError` if there is none."""
        try:
            return self.judges.get(role) or self.judges["*"]
        except KeyError:
            raise JudgeError(
                f"no judge answers for the role {role!r}.{did_you_mean(role, self.judges)} "
                f"Name one with --judge {role}=…"
            ) from None

    def _find_queue(self, role: str) -> JudgeQueue:
        judge = self.find_judge(role)
        if judge not in self._queues:
            limiter = self._limiters.get(judge) or Limiter(self.max_concurrency)
            direct = JudgeQueue(judge, limiter, identify_judge(judge))
            batch = self.batch_api and judge.capabilities.batch
            self._queues[judge] = replace(direct, direct=direct) if batch else direct
        return self._queues[judge]

    # ------------------------------------------------------------------------------------------- the loop's thread

    @property
    def in_flight(self) -> int:
        """The number of requests whose completion may release money."""
        return sum(len(dispatcher.in_flight) - len(dispatcher.retrying) for dispatcher in self.dispatchers)

    def wake(self) -> None:
        for dispatcher in self.dispatchers:
            dispatcher.wake.set()

    def _start(self) -> Dispatcher:
        async def start() -> Dispatcher:
            dispatcher = Dispatcher(self)
            dispatcher.task = asyncio.create_task(dispatcher.run())  # a loop holds its tasks weakly
            return dispatcher

        return self._wait(start())

    def _stop(self, dispatcher: Dispatcher, stop: bool) -> None:
        """Wait until a stream has ended; with `stop`, until its requests in flight are stored."""
        if stop:
            self._running_loop().call_soon_threadsafe(dispatcher.stop)
        while isinstance(dispatcher.results.get(), list):
            pass

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._running_loop()).result()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._starting:  # of two threads that ask at once, one starts the loop
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="afarm-ask", daemon=True)
                self._thread.start()
            return self._loop

    def close(self) -> None:
        """Close the judges and stop the loop's thread. The ledger stays open: it is the caller's."""
        if self._loop is None or self._thread is None:
            return
        for dispatcher in tuple(self.dispatchers):  # of a stream whose reader failed, which its traceback keeps
            self._loop.call_soon_threadsafe(dispatcher.stop)

        async def end() -> None:  # gives a batch that is being submitted the time to be recorded
            if others := asyncio.all_tasks() - {asyncio.current_task()}:
                await asyncio.wait(others, timeout=15)

        self._wait(end())
        for judge in dict.fromkeys(self.judges.values()):
            try:
                with attribute_failures("judges", judge.identity, judge):
                    self._wait(judge.close())
            except AfarmError as error:  # what it has answered is stored, and the others are to be closed
                warnings.warn(str(error), stacklevel=2)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._loop = self._thread = None
