"""Dispatch of judge requests within rate limits, ledger claims and the budget.

Every answer is written to the ledger before it is returned. One `Dispatcher` serves one stream of requests on the event
loop. A `JudgeQueue` is one judge with its rate limit, which all streams share.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING

from afarm.core.errors import AfarmError, BudgetError, JudgeError, PluginError, attribute_failures
from afarm.core.judge import ChatRequest, Completion, Judge
from afarm.judging.ledger_schema import encodable
from afarm.judging.rate_limit import ANSWER_LOST, PATIENCE, Attempt, Limiter, RequestRefused, SlowDown
from afarm.judging.refusals import ALIKE, GO_ON, REQUEST_REFUSED, FirstAnswers, find_fault, subject
from afarm.judging.return_checks import require_completion, require_price
from afarm.storage.text import dollars

if TYPE_CHECKING:
    from afarm.judging.client import JudgeClient

HEARTBEAT_SECONDS = 2.0
"""Seconds between the signs of life of a process in the ledger."""
HELD_SECONDS = 0.5
"""Seconds between looks for an answer that another process is waiting for."""
EMPTY = {
    "": "",
    "stop": ", although it ended by itself",
    "length": ", for it ended at `max_tokens` before it began: give the annotator more",
}
"""Finish reasons of answers that should have a text, and what they say of one that has none."""
GIVE_UP_SECONDS = 65.0
"""Seconds in which a judge refuses all that is left, after which it is their fault: longer than limits per minute."""
LARGEST_BATCH = 20_000
"""Requests submitted to a batch endpoint at once."""
PATIENCE_SECONDS = 10.0
"""Seconds to wait, after an interrupt, for requests that are sent, since they are paid for."""


@dataclass(slots=True, eq=False)
class PendingRequest:
    """A request under its key in the ledger, as its judge can take it: without `degraded` parameters."""

    key: str
    request: ChatRequest
    degraded: tuple[str, ...]
    queue: JudgeQueue
    slowed: int = 0
    """How often the judge refused it for now, since `slowed_at`; first sent at `sent_at`."""
    slowed_at: float = 0.0
    sent_at: float = 0.0

    @property
    def asker(self) -> tuple[str, str]:
        """The judge and the annotator."""
        return self.queue.identity, self.request.annotator


@dataclass(slots=True, eq=False)
class JudgeQueue:
    """One judge, its rate limit and, if this queue leads to its batch endpoint, the `direct` queue."""

    judge: Judge
    limiter: Limiter
    identity: str
    direct: JudgeQueue | None = None
    first_answers: FirstAnswers = field(default_factory=FirstAnswers)
    answered_at: float = -math.inf

    def worst_case_price(self, request: ChatRequest) -> float | None:
        """The most that `request` can cost in dollars through this queue; None if prices are unknown."""
        with attribute_failures("judges", self.identity, self.judge):
            price, charged = self.judge.worst_case_price(request), self.judge.price()
        require_price(price, self.identity, "worst_case_price", self.judge)
        if price is None or self.direct is None:
            return price
        return price * (charged.batch if charged else 0.5)


Answered = tuple[PendingRequest, Completion]


class Dispatcher:
    """One stream of requests.

    `results` receives lists of (request, completion) as they arrive, and at the end None or the failure. Everything but
    `results` is touched on the event loop only.
    """

    def __init__(self, client: JudgeClient):
        self.client = client
        self.results: SimpleQueue[list[Answered] | BaseException | None] = SimpleQueue()
        self.waiting: dict[JudgeQueue, deque[PendingRequest]] = {}
        self.held_elsewhere: list[PendingRequest] = []
        self.in_flight: dict[asyncio.Task[Completion], tuple[PendingRequest, Attempt]] = {}
        self.retrying: dict[asyncio.Future[None], PendingRequest] = {}
        """Requests in flight that wait until the budget allows another attempt."""
        self.refused: list[tuple[PendingRequest, RequestRefused]] = []
        """Requests that a judge did not take, until it is known whose fault that is."""
        self.batches: set[asyncio.Task[None]] = set()
        self.batch_ids: set[str] = set()
        self.wake = asyncio.Event()
        self.complete = False
        self.task: asyncio.Task[None] | None = None
        self._completed: list[asyncio.Task[Completion]] = []
        self._failure: BaseException | None = None
        self._deadline = math.inf
        self._next_look = self._next_heartbeat = 0.0

    # ------------------------------------------------------------------------------------ called by the stream's side

    def add(self, requests: Iterable[PendingRequest], complete: bool) -> None:
        """Queue more requests; `complete` says that none come after them."""
        for pending in requests:
            self.waiting.setdefault(pending.queue, deque()).append(pending)
        self.complete = complete
        self.wake.set()

    def stop(self) -> None:
        """Send nothing more. Requests in flight are waited for, up to `PATIENCE_SECONDS`, and stored."""
        self._failure = self._failure or asyncio.CancelledError()
        self._deadline = time.monotonic() + PATIENCE_SECONDS
        self._schedule_wake(PATIENCE_SECONDS)
        self.wake.set()

    # ------------------------------------------------------------------------------------------------------ the loop

    async def run(self) -> None:
        """Serve until all is answered, or the first failure: nothing is sent after it, answers are stored."""
        self.client.dispatchers.append(self)
        try:
            while not await self._step():
                pass
        except Exception as error:  # of a judge's estimate, say: whoever waits for results is told
            self._failure = error
        finally:
            for task in [*self.batches, *self.in_flight]:
                task.cancel()
            self._give_up_in_flight()
            self.client.dispatchers.remove(self)
            self.results.put(self._failure)
            self.client.wake()

    async def _step(self) -> bool:
        """Store what has been answered, send what may be sent, and wait. True at the end."""
        try:
            self._store_completed()
            if self._failure is None:
                self._settle_refused()
                self._send()
        except AfarmError as error:
            self._failure = self._failure or error
        if self._failure is not None:
            while self.retrying:
                self.retrying.popitem()[0].cancel()
            if not self.in_flight or time.monotonic() >= self._deadline:
                return True
        elif self.complete and not (
            self.in_flight or self.held_elsewhere or self.batches or any(self.waiting.values())
        ):
            self._failure = find_fault(self.refused, is_all=True)
            return True
        await self._wait()
        return False

    async def _wait(self) -> None:
        """Sleep until an answer, more requests, an opened rate limit, or the next look or heartbeat."""
        times = [queue.limiter.seconds_until_open() for queue, waiting in self.waiting.items() if waiting]
        times += [pending.queue.limiter.seconds_held() for pending in self.retrying.values()]
        times = [seconds for seconds in times if seconds > 0]
        if self.held_elsewhere:
            times.append(HELD_SECONDS)
        timer = self._schedule_wake(min([*times, HEARTBEAT_SECONDS]))  # also if a limit has opened since it was asked
        await self.wake.wait()
        self.wake.clear()
        timer.cancel()
        if self.in_flight and time.monotonic() >= self._next_heartbeat:
            self._next_heartbeat = time.monotonic() + HEARTBEAT_SECONDS
            self.client.ledger.heartbeat()

    def _schedule_wake(self, seconds: float) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(seconds, self.wake.set)

    # ------------------------------------------------------------------------------------------------------- answers

    def _store_completed(self) -> None:
        """Store all answers that are in, in one transaction, and only then hand them on."""
        completed, self._completed = self._completed, []
        if not completed:
            return
        answered: list[Answered] = []
        free: list[str] = []
        charged: list[str] = []
        for task in completed:
            if task not in self.in_flight:
                continue
            pending, attempt = self.in_flight.pop(task)
            error = task.exception() if not task.cancelled() else asyncio.CancelledError()
            limiter = pending.queue.limiter
            if error is None:
                answer = task.result()
                limiter.answered(attempt, answer.seconds)
                pending.queue.answered_at = time.monotonic()
                text, degraded = encodable(answer.text), (*pending.degraded, *answer.degraded)
                answered.append((pending, replace(answer, key=pending.key, text=text, degraded=degraded)))
                if answer.price is None and pending.queue.worst_case_price(pending.request):
                    charged.append(pending.key)
                continue
            if isinstance(error, SlowDown):
                is_long = (error.seconds or 0.0) > PATIENCE  # others are asked, to see if all are to wait
                limiter.refused(None if is_long else error.seconds)
                if not pending.slowed:
                    pending.sent_at, pending.slowed_at = attempt.at, time.monotonic()
                pending.slowed += 1
                error = self._lose_patience(error, pending, is_long)
            else:
                limiter.ended()
            (charged if error is not None and may_be_charged(error) else free).append(pending.key)
            if error is None:  # behind all others, whom its refusal need not concern
                self.waiting.setdefault(pending.queue.direct or pending.queue, deque()).append(pending)
            elif isinstance(error, RequestRefused):
                self.refused.append((pending, error))
            else:
                self._failure = self._failure or explained(error, pending)
        self._store(answered, free, charged)
        if len(self.client.dispatchers) > 1:
            self.client.wake()

    def _store(self, answered: list[Answered], free: Sequence[str] = (), charged: Sequence[str] = ()) -> None:
        answers = [(pending.request, pending.queue.identity, completion) for pending, completion in answered]
        self.client.ledger.resolve(answers, self.client.run, free, charged, self.client.stage())
        self.deliver(answered)

    def _lose_patience(self, refusal: SlowDown, pending: PendingRequest, is_long: bool) -> JudgeError | None:
        """The error to end `pending` with after `refusal`; None as long as it is to be sent again."""
        queue, limiter = pending.queue, pending.queue.limiter
        if not is_long and limiter.refused_seconds <= GIVE_UP_SECONDS:
            return None
        waiting = self.waiting.get(queue.direct or queue, deque())
        slowed = [pending, *(each for each in waiting if each.slowed)]
        n_others = sum(each.queue is queue and not each.slowed for each, _ in self.in_flight.values())
        is_all = len(slowed) > len(waiting) and not n_others
        # Sent with those that were refused, the judge may have taken what came first: of many, that shows nothing.
        unsure = [each for each in slowed if not limiter.has_taken_since(each.slowed_at)]
        if is_all and len(unsure) < ALIKE and all(queue.answered_at > each.sent_at for each in unsure):
            own = RequestRefused(str(refusal))
            self.refused += [(each, own) for each in waiting]
            waiting.clear()
            return own
        if is_long:
            n_since = sum(each.slowed_at > queue.answered_at for each in slowed)
            return refusal if is_all or n_since >= max(ALIKE, n_others) else None
        words = f"refused {len(slowed)} requests, up to {max(each.slowed for each in slowed)} times each"
        nothing = f"{queue.identity} has answered nothing for {PATIENCE / 60:.0f} minutes and {words}"
        is_silent = limiter.refused_seconds > PATIENCE
        return JudgeError(f"{nothing}; the last time: {refusal}", charged=False) if is_silent else None

    def _settle_refused(self) -> None:
        """Settle requests that were refused by their own fault. Raises `JudgeError` if it is not theirs."""
        refusals, refused, self.refused = self.client.refusals, self.refused, []
        settled: list[Answered] = []
        for pending, refusal in refused:
            if refusals.is_own_fault(pending):
                refusals.remember(pending, refusal)
                settled.append((pending, Completion("", key=pending.key, price=0.0, finish_reason=REQUEST_REFUSED)))
            else:
                self.refused.append((pending, refusal))
        if settled:
            self._store(settled)
        if fault := find_fault(self.refused, is_all=False):
            raise fault

    def _give_up_in_flight(self) -> None:
        """Count requests in flight as charged without an answer: nobody waits for them any more."""
        for pending, _ in self.in_flight.values():
            pending.queue.limiter.ended()
        try:
            keys = [pending.key for pending, _ in self.in_flight.values()]
            self.client.ledger.resolve([], self.client.run, charged_without_answer=keys)
        except AfarmError as error:
            self._failure = self._failure or error
        self.in_flight.clear()
        self.retrying.clear()

    def deliver(self, answered: list[Answered], purchased: bool = True) -> None:
        """Hand on answers that the ledger holds; `purchased` says that they were paid for just now."""
        for pending, completion in answered:
            if completion.text.strip() or completion.finish_reason not in EMPTY:
                if completion.finish_reason != REQUEST_REFUSED:
                    pending.queue.first_answers.about = None
                    self.client.refusals.answered[pending.asker] = True
            elif purchased:
                self._count_useless(pending.queue, "empty", f"it is empty{EMPTY[completion.finish_reason]}")
            if purchased:
                self.client.spend.add(pending.request, completion)
        if answered:
            self.results.put(answered)

    # ------------------------------------------------------------------------------------------------------- sending

    def _send(self) -> None:
        self._send_again()
        if self.held_elsewhere and time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + HELD_SECONDS
            held, self.held_elsewhere = self.held_elsewhere, []
            for pending in reversed(held):
                self.waiting.setdefault(pending.queue, deque()).appendleft(pending)
        for queue, waiting in self.waiting.items():
            if queue.direct:  # once the largest batch, or the last request, is there
                while waiting and (self.complete or len(waiting) >= LARGEST_BATCH):
                    self.start_batch(queue, [waiting.popleft() for _ in range(min(len(waiting), LARGEST_BATCH))])
                continue
            if waiting and (wait := queue.limiter.exhausted):
                raise JudgeError(f"{queue.identity} {wait}; {GO_ON}", charged=False)
            # Again while there is room: what was taken may have been answered or in flight elsewhere.
            while n_free := min(queue.limiter.free_slots(), len(waiting)):
                before = len(waiting)
                self._send_some(queue, waiting, [waiting.popleft() for _ in range(n_free)])
                if len(waiting) > before - n_free:  # the budget allows no more for now
                    break

    def _send_some(self, queue: JudgeQueue, waiting: deque[PendingRequest], requests: Sequence[PendingRequest]) -> None:
        prices = [self.worst_case_price(queue, pending) for pending in requests]
        # A formula's answer costs less than to claim it. A server of one's own may be free and is still work.
        granted = requests if queue.judge.simulated else self.claim(queue, requests, prices, waiting)
        loop = asyncio.get_running_loop()
        for pending in granted:
            task = loop.create_task(self._complete(pending))
            self.in_flight[task] = pending, queue.limiter.sent()
            task.add_done_callback(self._on_completed)

    async def _complete(self, pending: PendingRequest) -> Completion:
        if known := self.client.refusals.known.get(subject(pending)):
            raise known
        ANSWER_LOST.set(partial(self._answer_lost, pending))
        judge, identity = pending.queue.judge, pending.queue.identity
        with attribute_failures("judges", identity, judge):
            try:
                completion = await judge.complete(pending.request)
            except (KeyboardInterrupt, asyncio.CancelledError) as error:
                task = asyncio.current_task()
                if task and task.cancelling():
                    raise
                # The judge's own: an interrupt would end the loop, for whose answers the run waits.
                raise RuntimeError(type(error).__name__) from error
        return require_completion(completion, identity, judge)

    async def _answer_lost(self, pending: PendingRequest, why: str) -> None:
        """See `afarm.judging.answer_lost`."""
        self.client.ledger.charged_without_answer(pending.key)
        self._count_useless(pending.queue, "lost", why)
        allowed = asyncio.get_running_loop().create_future()
        self.retrying[allowed] = pending
        self.wake.set()
        await allowed

    def _count_useless(self, queue: JudgeQueue, kind: str, why: str) -> None:
        if queue.first_answers.add(kind, why):
            mend = "mend it, or choose another with --judge"
            self._failure = self._failure or JudgeError(f"{queue.identity}{queue.first_answers}; {mend}: {GO_ON}")

    def _send_again(self) -> None:
        """Allow retries within budget and rate limit. Raises `BudgetError` if nothing in flight frees money."""
        for allowed, pending in list(self.retrying.items()):
            if pending.queue.limiter.seconds_held() > 0:
                continue
            price = self.worst_case_price(pending.queue.direct or pending.queue, pending)
            if not self.client.ledger.reserve_again(pending.key, price, self.client.run, self.client.budget):
                if not (self.client.in_flight or self.batch_ids):
                    raise self._budget_reached(self.client.ledger.committed(self.client.run), pending.queue)
                return
            del self.retrying[allowed]
            allowed.set_result(None)

    def _budget_reached(self, committed: float, queue: JudgeQueue) -> BudgetError:
        none = f"{queue.identity}{queue.first_answers}; so " if queue.first_answers.about else ""
        return BudgetError(
            f"{none}the budget of {dollars(self.client.budget or 0.0)} is reached "
            f"({dollars(committed)} is spent or may be); what is paid for is kept: run the same command with a larger "
            "--budget to go on"
        )

    def claim(
        self,
        queue: JudgeQueue,
        requests: Sequence[PendingRequest],
        prices: Sequence[float | None],
        waiting: deque[PendingRequest],
    ) -> list[PendingRequest]:
        """Reserve money for `requests` and return those that may be sent now.

        Of the others, answered ones are delivered, those in a batch or held by another process are waited for, and what
        the budget does not allow yet goes back into `waiting`. Raises `BudgetError` if not one more may be sent and
        none is in flight to release money.
        """
        ledger, budget = self.client.ledger, self.client.budget
        wanted = [(pending.key, price) for pending, price in zip(requests, prices, strict=True)]
        claim = ledger.claim(wanted, self.client.run, budget)
        granted, in_batch, held = set(claim.granted), set(claim.pending), set(claim.held)
        self.held_elsewhere += [pending for pending in requests if pending.key in held]
        if in_batch:
            self.start_batch(queue, [pending for pending in requests if pending.key in in_batch])
        if claim.answered:
            stored = ledger.completions(claim.answered)
            self.client.spend.answers_reused += ledger.reused(self.client.run, list(stored))
            self.deliver([(p, stored[p.key]) for p in requests if p.key in stored], purchased=False)
        if claim.over_budget:
            elsewhere = granted | in_batch | held | set(claim.answered)
            waiting.extendleft(pending for pending in reversed(requests) if pending.key not in elsewhere)
            if not (granted or self.client.in_flight or self.held_elsewhere or self.batch_ids):
                raise self._budget_reached(claim.committed, queue)
        return [pending for pending in requests if pending.key in granted]

    def worst_case_price(self, queue: JudgeQueue, pending: PendingRequest) -> float | None:
        """The price to reserve. Raises `BudgetError` if it is unknown and there is a budget to keep."""
        price = queue.worst_case_price(pending.request)
        if price is None and self.client.budget is not None:
            raise BudgetError(unpriced(queue.identity))
        return price

    def _on_completed(self, task: asyncio.Task[Completion]) -> None:
        self._completed.append(task)
        self.wake.set()

    # ------------------------------------------------------------------------------------------------------- batches

    def start_batch(self, queue: JudgeQueue, requests: Sequence[PendingRequest]) -> None:
        """Answer `requests` through a batch endpoint, in a task of its own."""
        from afarm.judging.batch_api import answer_in_batches

        task = asyncio.get_running_loop().create_task(answer_in_batches(self, queue, requests))
        self.batches.add(task)
        task.add_done_callback(self._batch_done)

    def _batch_done(self, task: asyncio.Task[None]) -> None:
        self.batches.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self._failure = self._failure or error
        self.wake.set()


def may_be_charged(error: BaseException) -> bool:
    """True unless the judge knows that a request that ended in `error` was not charged for."""
    return bool(getattr(error, "charged", True))


def misfit(judge: str, names: Sequence[str], annotators: Sequence[str]) -> str:
    """The message that `judge` cannot take the parameters `names`, which `annotators` ask for."""
    *others, last = annotators
    who = f"{', '.join(others)} and {last} ask" if others else f"{last or 'a request'} asks"
    return (
        f"{judge} takes no {' or '.join(names)}, which {who} for: choose another judge, or leave it out with "
        "--allow-degraded (every label then says so)"
    )


def unpriced(judge: str) -> str:
    """The message that a budget cannot be kept without the price of `judge`."""
    return (
        f"the price of {judge} is unknown, so a budget cannot be kept: give it with "
        f"--price {judge}=INPUT/OUTPUT (dollars per million tokens), or leave --budget out"
    )


def explained(error: BaseException, pending: PendingRequest) -> AfarmError:
    """The error itself if it explains itself, otherwise one that names the judge."""
    failed = isinstance(error, PluginError) and error.__cause__ is not None
    if isinstance(error, JudgeError) and (judge := pending.queue.identity.partition("@")[0]) not in str(error):
        error.args = (f"{judge}: {error}",)
    if isinstance(error, AfarmError) and not failed:
        return error
    name = "" if failed else f"{pending.queue.identity} failed: {type(error).__name__}: "
    wrapped = JudgeError(f"{name}{error}")
    wrapped.__cause__ = error.__cause__ or error
    return wrapped
