"""The engine's side on the event loop: what is waiting is sent as judges, the ledger and the budget allow, and every
answer is stored before anything else sees it.

One `Dispatcher` serves one stream of requests. A `JudgeQueue` is one judge with its limiter, which all streams share.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from queue import SimpleQueue

from afarm.core.errors import AfarmError, BudgetError, JudgeError
from afarm.core.judge import ANSWER_LOST, ChatRequest, Completion, Judge, unsupported
from afarm.judging.ledger import Ledger
from afarm.judging.ledger_rows import encodable
from afarm.judging.rate_limit import Limiter
from afarm.storage.text import dollars

BEAT_SECONDS = 2.0
"""How often a process says in the ledger that it is alive."""
PARKED_SECONDS = 0.5
"""How often to look whether another process has the answer that both want."""
LARGEST_BATCH = 20_000
"""Requests handed to a batch endpoint at once."""
PATIENCE_SECONDS = 10.0
"""How long, after an interrupt, to wait for what is already sent, since it is paid for."""


@dataclass(frozen=True, slots=True)
class Question:
    """A request under its key in the ledger. `sent` is what its judge can take of it: all but `degraded`."""

    key: str
    sent: ChatRequest
    degraded: tuple[str, ...]
    lane: JudgeQueue


@dataclass(slots=True, eq=False)
class JudgeQueue:
    """One judge and how much it is asked at once. `direct`, where it is not None, is the same judge asked one by one:
    this lane then leads to its batch endpoint."""

    judge: Judge
    limiter: Limiter
    identity: str
    direct: JudgeQueue | None = None


Landed = tuple[Question, Completion]
Bought = Callable[[Question, Completion], None]


@dataclass(slots=True)
class SharedState:
    """What all streams share: the ledger, the run and its budget, who counts the spend, and the streams at work."""

    ledger: Ledger
    run: str
    budget: float | None
    bought: Bought
    batch_poll_seconds: float = 60.0
    stage: Callable[[], str] = lambda: ""
    """Names the artifact that is being made, to whose account answers go."""
    sendings: list[Dispatcher] = field(default_factory=list)

    @property
    def flying(self) -> int:
        """Requests whose landing may release money."""
        return sum(len(sending.flying) - len(sending.again) for sending in self.sendings)

    def wake(self) -> None:
        for sending in self.sendings:
            sending.wake.set()


class Dispatcher:
    """One stream of questions. `results` receives lists of (question, completion) as they land, and at the end None or
    the failure. Everything but `results` is touched on the loop only."""

    def __init__(self, desk: SharedState):
        self.desk = desk
        self.results: SimpleQueue[list[Landed] | BaseException | None] = SimpleQueue()
        self.waiting: dict[JudgeQueue, deque[Question]] = {}
        self.parked: list[Question] = []
        self.flying: dict[asyncio.Task[Completion], Question] = {}
        self.again: dict[asyncio.Future[None], Question] = {}
        """Of what is flying: who waits until another attempt may be made."""
        self.batches: set[asyncio.Task[None]] = set()
        self.tickets: set[str] = set()
        self.wake = asyncio.Event()
        self.complete = False
        self.task: asyncio.Task[None] | None = None
        self._done: list[asyncio.Task[Completion]] = []
        self._failure: BaseException | None = None
        self._deadline = math.inf
        self._look_at_parked = self._next_beat = 0.0

    # ------------------------------------------------------------------------------------ called by the stream's side

    def add(self, questions: Iterable[Question], complete: bool) -> None:
        """More to ask; `complete` says that nothing comes after it."""
        for question in questions:
            self.waiting.setdefault(question.lane, deque()).append(question)
        self.complete = complete
        self.wake.set()

    def stop(self) -> None:
        """Send nothing more: what is in flight is still waited for, a while, and stored."""
        self._failure = self._failure or asyncio.CancelledError()
        self._deadline = time.monotonic() + PATIENCE_SECONDS
        self._wake_in(PATIENCE_SECONDS)
        self.wake.set()

    # ------------------------------------------------------------------------------------------------------ the loop

    async def run(self) -> None:
        """Until all is answered, or the first failure: nothing is sent after it, and what is in flight is stored."""
        self.desk.sendings.append(self)
        try:
            while not await self._step():
                pass
        except Exception as error:  # of a judge's estimate, say: whoever waits for results is told
            self._failure = error
        finally:
            for task in [*self.batches, *self.flying]:
                task.cancel()
            self._lose_what_flies()
            self.desk.sendings.remove(self)
            self.results.put(self._failure)
            self.desk.wake()

    async def _step(self) -> bool:
        """Land what is in, send what may be sent, and wait for what comes next. True at the end."""
        try:
            self._land()
            if self._failure is None:
                self._send()
        except AfarmError as error:
            self._failure = self._failure or error
        if self._failure is not None:
            while self.again:
                self.again.popitem()[0].cancel()
            if not self.flying or time.monotonic() >= self._deadline:
                return True
        elif self.complete and not (self.flying or self.parked or self.batches or any(self.waiting.values())):
            return True
        await self._wait()
        return False

    async def _wait(self) -> None:
        """Until something lands, more is added, a judge may be asked again, or a look or a beat is due."""
        times = [lane.limiter.opens_in() for lane, queue in self.waiting.items() if queue]
        times = [seconds for seconds in times if seconds > 0]
        if self.parked:
            times.append(PARKED_SECONDS)
        if self.flying:
            times.append(BEAT_SECONDS)
        timer = self._wake_in(min(times)) if times else None
        await self.wake.wait()
        self.wake.clear()
        if timer is not None:
            timer.cancel()
        if self.flying and time.monotonic() >= self._next_beat:
            self._next_beat = time.monotonic() + BEAT_SECONDS
            self.desk.ledger.beat()

    def _wake_in(self, seconds: float) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(seconds, self.wake.set)

    # ------------------------------------------------------------------------------------------------------- landing

    def _land(self) -> None:
        """Store all answers that are in, in one transaction, and only then hand them on."""
        done, self._done = self._done, []
        if not done:
            return
        landed: list[Landed] = []
        abandoned: list[str] = []
        lost: list[str] = []
        for task in done:
            question = self.flying.pop(task, None)
            if question is None:
                continue
            error = task.exception() if not task.cancelled() else asyncio.CancelledError()
            question.lane.limiter.landed(error is None)
            if error is None:
                landed.append((question, finished(question, task.result())))
                if task.result().price is None and question.lane.judge.worst_case_price(question.sent):
                    lost.append(question.key)
            else:
                (lost if may_be_charged(error) else abandoned).append(question.key)
                self._failure = self._failure or explained(error, question)
        answers = [(question.sent, question.lane.identity, completion) for question, completion in landed]
        self.desk.ledger.resolve(answers, self.desk.run, abandoned, lost, self.desk.stage())
        self.deliver(landed)
        if len(self.desk.sendings) > 1:
            self.desk.wake()

    def _lose_what_flies(self) -> None:
        """Nobody waits for it any more, and it may be charged for."""
        for question in self.flying.values():
            question.lane.limiter.landed(False)
        try:
            self.desk.ledger.resolve([], self.desk.run, lost=[question.key for question in self.flying.values()])
        except AfarmError as error:
            self._failure = self._failure or error
        self.flying.clear()
        self.again.clear()

    def deliver(self, landed: list[Landed], bought: bool = True) -> None:
        """Hand on what the ledger holds; `bought` says that it was paid for just now."""
        if bought:
            for question, completion in landed:
                self.desk.bought(question, completion)
        if landed:
            self.results.put(landed)

    # ------------------------------------------------------------------------------------------------------- sending

    def _send(self) -> None:
        self._send_again()
        if self.parked and time.monotonic() >= self._look_at_parked:
            self._look_at_parked = time.monotonic() + PARKED_SECONDS
            parked, self.parked = self.parked, []
            for question in reversed(parked):
                self.waiting.setdefault(question.lane, deque()).appendleft(question)
        for lane, queue in self.waiting.items():
            if lane.direct and queue:
                self._send_batches(lane, queue)
                continue
            # Again while there is room: what was taken may have been answered or in flight elsewhere.
            while room := min(lane.limiter.room(), len(queue)):
                before = len(queue)
                self._send_some(lane, queue, [queue.popleft() for _ in range(room)])
                if len(queue) > before - room:  # the budget allows no more for now
                    break

    def _send_some(self, lane: JudgeQueue, queue: deque[Question], questions: Sequence[Question]) -> None:
        prices = [self.worst_price(question) for question in questions]
        # A formula's answer costs less than to claim it. A server of one's own may be free and is still work.
        granted = questions if lane.judge.simulated else self.claim(lane, questions, prices, queue)
        loop = asyncio.get_running_loop()
        for question in granted:
            lane.limiter.sent()
            task = loop.create_task(self._complete(question))
            self.flying[task] = question
            task.add_done_callback(self._arrived)

    async def _complete(self, question: Question) -> Completion:
        ANSWER_LOST.set(partial(self._lost, question))
        return await question.lane.judge.complete(question.sent)

    async def _lost(self, question: Question) -> None:
        """See `afarm.core.judge.answer_lost`."""
        self.desk.ledger.lost(question.key)
        allowed = asyncio.get_running_loop().create_future()
        self.again[allowed] = question
        self.wake.set()
        await allowed

    def _send_again(self) -> None:
        """Let those go on whose next attempt the budget allows.

        Raises `BudgetError` where nothing is in flight to release money.
        """
        for allowed, question in list(self.again.items()):
            price = self.worst_price(question)
            if not self.desk.ledger.reserve_again(question.key, price, self.desk.run, self.desk.budget):
                if not (self.desk.flying or self.tickets):
                    raise self._budget_reached(self.desk.ledger.committed(self.desk.run))
                return
            del self.again[allowed]
            allowed.set_result(None)

    def _budget_reached(self, committed: float) -> BudgetError:
        return BudgetError(
            f"the budget of {dollars(self.desk.budget or 0.0)} is reached ({dollars(committed)} is spent or may be); "
            "what is paid for is kept: run the same command with a larger --budget to go on"
        )

    def claim(
        self, lane: JudgeQueue, questions: Sequence[Question], prices: Sequence[float | None], queue: deque[Question]
    ) -> list[Question]:
        """Those of `questions` that may be sent now, their intents written; the others are put where they belong: what
        the budget does not allow yet back into `queue`.

        Raises `BudgetError` where not one more may be sent and none is in flight to release money.
        """
        ledger, budget = self.desk.ledger, self.desk.budget
        wanted = [(question.key, price) for question, price in zip(questions, prices, strict=True)]
        claim = ledger.claim(wanted, self.desk.run, budget)
        granted, pending, held = set(claim.granted), set(claim.pending), set(claim.held)
        self.parked += [question for question in questions if question.key in held]
        if pending:
            self.start_batch(lane, [question for question in questions if question.key in pending])
        if claim.answered:
            found = ledger.completions(claim.answered)
            self.deliver([(q, found[q.key]) for q in questions if q.key in found], bought=False)
        if claim.over_budget:
            elsewhere = granted | pending | held | set(claim.answered)
            queue.extendleft(q for q in reversed(questions) if q.key not in elsewhere)
            if not (granted or self.desk.flying or self.parked or self.tickets):
                raise self._budget_reached(claim.committed)
        return [question for question in questions if question.key in granted]

    def worst_price(self, question: Question) -> float | None:
        """What to reserve. Raises `BudgetError` where that is unknown and there is a budget to keep."""
        price = question.lane.judge.worst_case_price(question.sent)
        if price is None and self.desk.budget is not None:
            raise BudgetError(unpriced(question.lane.identity))
        return price

    def _arrived(self, task: asyncio.Task[Completion]) -> None:
        self._done.append(task)
        self.wake.set()

    # ------------------------------------------------------------------------------------------------------- batches

    def _send_batches(self, lane: JudgeQueue, queue: deque[Question]) -> None:
        """What comes through a batch endpoint waits until it is many, or all."""
        while queue and (self.complete or len(queue) >= LARGEST_BATCH):
            self.start_batch(lane, [queue.popleft() for _ in range(min(len(queue), LARGEST_BATCH))])

    def start_batch(self, lane: JudgeQueue, questions: Sequence[Question]) -> None:
        from afarm.judging.batch_api import answer_in_batches

        task = asyncio.get_running_loop().create_task(answer_in_batches(self, lane, questions))
        self.batches.add(task)
        task.add_done_callback(self._batch_done)

    def _batch_done(self, task: asyncio.Task[None]) -> None:
        self.batches.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self._failure = self._failure or error
        self.wake.set()


def finished(question: Question, completion: Completion) -> Completion:
    """A judge's answer as it is stored and handed on."""
    return replace(completion, key=question.key, text=encodable(completion.text), degraded=question.degraded)


def may_be_charged(error: BaseException) -> bool:
    """Whether a request that ended in `error` may have been charged for: it may, unless its judge knows better."""
    return bool(getattr(error, "charged", True))


def misfits(request: ChatRequest, judge: Judge) -> list[str]:
    """That `judge` cannot take all of `request`, as a sentence; empty where it can."""
    names = unsupported(request, judge.capabilities)
    if not names:
        return []
    return [
        f"{judge.identity} takes no {' or '.join(names)}, which {request.annotator or 'a request'} asks for: choose "
        "another judge, or leave it out with --allow-degraded (every label then says so)"
    ]


def unpriced(judge: str) -> str:
    return (
        f"the price of {judge} is unknown, so a budget cannot be kept: give it with "
        f"--price {judge}=INPUT/OUTPUT (dollars per million tokens), or leave --budget out"
    )


def explained(error: BaseException, question: Question) -> AfarmError:
    """The error itself where it already explains itself, otherwise one that names the judge."""
    if isinstance(error, AfarmError):
        return error
    wrapped = JudgeError(f"{question.lane.identity} failed: {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped
