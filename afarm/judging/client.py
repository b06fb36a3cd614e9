"""The metered way to a judge: concurrent, cached in the ledger, within the budget.

Only this engine calls a `Judge`, so that no plugin can pay twice. It has one event loop on a thread of its own, and so
works in a script, in a notebook and inside a running loop alike.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, TypeVar

from afarm.core.errors import JudgeError, did_you_mean
from afarm.core.judge import Capabilities, ChatRequest, Completion, Judge, Judgement, JudgementKey, unsupported, without
from afarm.judging.dispatch import Dispatcher, JudgeQueue, Question, SharedState, misfits
from afarm.judging.ledger import Ledger, request_key
from afarm.judging.rate_limit import Limiter

T = TypeVar("T")

BLOCK = 256
"""Requests looked up in the ledger at once."""
AHEAD = 4
"""How many times the requests in flight are taken from a stream ahead of their answers, so that none waits for it."""


@dataclass(slots=True)
class Spend:
    """What a run bought and what it already had. `unpriced_calls`: calls whose price is unknown, not zero."""

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


class JudgeClient:
    """Implements `afarm.core.judge.Ask`. `judges` maps family roles to judges; "*" answers for every other role.

    Each judge is asked at most `max_concurrency` requests at once, fewer while it says that this is too much: through
    its limiter in `limiters`, where it has one that it tells so. With `batch_api`, judges that have a batch endpoint
    are asked through it, looking every `batch_poll_seconds`. `stage` names the artifact that is being made: the ledger
    counts what is bought to its account as well.
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
        self.spend = Spend()
        self._desk = SharedState(ledger, run, budget, lambda q, completion: self.spend.add(q.sent, completion))
        self._desk.batch_poll_seconds = batch_poll_seconds
        self._desk.stage = stage
        self._limiters = dict(limiters or {})
        self._lanes: dict[Judge, JudgeQueue] = {}
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    # ---------------------------------------------------------------------------------------- the `Ask` interface

    def __call__(self, requests: Sequence[ChatRequest]) -> list[Completion]:
        """See `afarm.core.judge.Ask.__call__`."""
        answers: dict[int, Completion] = dict(self.stream(requests))
        return [answers[index] for index in range(len(requests))]

    def stream(self, requests: Iterable[ChatRequest]) -> Iterator[tuple[int, Completion]]:
        """See `afarm.core.judge.Ask.stream`."""
        indices: dict[str, list[int]] = {}
        direct: set[str] = set()
        remaining = enumerate(requests)
        sending: Dispatcher | None = None
        exhausted = False
        try:
            while not exhausted or indices:
                if not exhausted and len(direct) < AHEAD * self.max_concurrency:
                    block = list(islice(remaining, BLOCK))
                    exhausted = len(block) < BLOCK
                    found, questions = self._look_up(block, indices)
                    if questions and sending is None:
                        sending = self._start()
                    if sending is not None:
                        self._running_loop().call_soon_threadsafe(sending.add, questions, exhausted)
                    direct.update(q.key for q in questions if q.lane.direct is None)
                    yield from found
                    continue
                landed = sending.results.get() if sending else None
                if not isinstance(landed, list):
                    sending = None
                    raise landed or JudgeError("the engine was stopped")
                for question, completion in landed:
                    direct.discard(question.key)
                    for index in indices.pop(question.key):
                        yield index, completion
        finally:
            if sending is not None:
                self._stop(sending, stop=bool(indices) or not exhausted)

    def _look_up(
        self, block: Sequence[tuple[int, ChatRequest]], indices: dict[str, list[int]]
    ) -> tuple[list[tuple[int, Completion]], list[Question]]:
        """The answers that are in the ledger, and the questions still to be asked; `indices` says who awaits them."""
        questions = [(index, self._question(request)) for index, request in block]
        new = list(dict.fromkeys(q.key for _, q in questions if q.key not in indices))
        known = self.ledger.completions(new)
        found: list[tuple[int, Completion]] = []
        unknown: list[Question] = []
        for index, question in questions:
            if question.key in known:
                found.append((index, known[question.key]))
            elif question.key in indices:
                indices[question.key].append(index)
            else:
                indices[question.key] = [index]
                unknown.append(question)
        if known:
            self.spend.answers_reused += len(known)
            self.ledger.reused(self.run, list(known))
        return found, unknown

    def _question(self, request: ChatRequest) -> Question:
        """The request as its judge can take it. Raises `JudgeError` where it cannot."""
        lane = self._lane(request.role)
        degraded = self.degraded(request)
        key = request_key(request, lane.identity, degraded)
        return Question(key, without(request, degraded) if degraded else request, degraded, lane)

    def key(self, request: ChatRequest) -> str:
        """What the ledger files the answer to `request` under."""
        return self._question(request).key

    def recall(self, keys: Sequence[JudgementKey]) -> dict[JudgementKey, Judgement]:
        """See `afarm.core.judge.Ask.recall`."""
        found = self.ledger.recall(keys)
        if found:
            self.spend.judgements_reused += len(found)
            self.ledger.reused(self.run, [judgement.completion for judgement in found.values()])
        return found

    def learn(self, judgements: Mapping[JudgementKey, Judgement]) -> None:
        """See `afarm.core.judge.Ask.learn`."""
        self.ledger.learn(judgements)

    def judge(self, role: str) -> str:
        """See `afarm.core.judge.Ask.judge`."""
        return self._lane(role).identity

    def capabilities(self, role: str) -> Capabilities:
        """See `afarm.core.judge.Ask.capabilities`."""
        return self.judge_of(role).capabilities

    def degraded(self, request: ChatRequest) -> tuple[str, ...]:
        """See `afarm.core.judge.Ask.degraded`."""
        judge = self.judge_of(request.role)
        if not self.allow_degraded and (problems := misfits(request, judge)):
            raise JudgeError(problems[0])
        return unsupported(request, judge.capabilities)

    @contextmanager
    def accounted_to(self, run: str) -> Iterator[None]:
        """What is asked inside it counts to the account of `run`, and against its budget."""
        before, self.run = self.run, run
        self._desk.run = run
        try:
            yield
        finally:
            self.run = self._desk.run = before

    def worst_case_price(self, request: ChatRequest) -> float | None:
        """The most that `request` can cost in dollars; None where its judge's prices are unknown."""
        lane = self._lane(request.role)
        price, charged = lane.judge.worst_case_price(request), lane.judge.price()
        if price is None or lane.direct is None:
            return price
        return price * (charged.batch if charged else 0.5)

    def add_judge(self, role: str, judge: Judge, limiter: Limiter | None = None) -> None:
        """Let `judge` answer for one more role."""
        self.judges[role] = judge
        if limiter is not None:
            self._limiters[judge] = limiter

    def judge_of(self, role: str) -> Judge:
        """The judge that answers for `role`. Raises `JudgeError` where there is none."""
        try:
            return self.judges.get(role) or self.judges["*"]
        except KeyError:
            raise JudgeError(
                f"no judge answers for the role {role!r}.{did_you_mean(role, self.judges)} "
                f"Name one with --judge {role}=…"
            ) from None

    def _lane(self, role: str) -> JudgeQueue:
        judge = self.judge_of(role)
        if judge not in self._lanes:
            limiter = self._limiters.get(judge) or Limiter(self.max_concurrency)
            direct = JudgeQueue(judge, limiter, judge.identity)
            batch = self.batch_api and judge.capabilities.batch
            self._lanes[judge] = replace(direct, direct=direct) if batch else direct
        return self._lanes[judge]

    # ------------------------------------------------------------------------------------------- the loop's thread

    def _start(self) -> Dispatcher:
        async def start() -> Dispatcher:
            sending = Dispatcher(self._desk)
            sending.task = asyncio.create_task(sending.run())  # a loop holds its tasks weakly
            return sending

        return self._wait(start())

    def _stop(self, sending: Dispatcher, stop: bool) -> None:
        """Wait until a stream has ended; with `stop`, until it has stored what was in flight when nobody listened any
        more (a second interrupt abandons that)."""
        if stop:
            self._running_loop().call_soon_threadsafe(sending.stop)
        while isinstance(sending.results.get(), list):
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
        self._wait(_others_done())
        for judge in dict.fromkeys(self.judges.values()):
            self._wait(judge.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._loop = self._thread = None


async def _others_done() -> None:
    """A batch that is being handed in is given the time to be written down."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=15)
