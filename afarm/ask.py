"""The metered way to a judge: concurrent, cached in the ledger, within the budget.

Only this engine calls a `Judge`, so that no plugin can pay twice. It has one event loop on a thread of its own, and so
works in a script, in a notebook and inside a running loop alike.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from afarm.errors import AfarmError, BudgetError, JudgeError, did_you_mean
from afarm.judges import Capabilities, ChatRequest, Completion, Judge, Judgement, JudgementKey, unsupported
from afarm.ledger import Ledger, encodable, request_key

T = TypeVar("T")
Answer = tuple[ChatRequest, str, Completion]


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


class Asker:
    """Implements `afarm.judges.Ask`. `judges` maps family roles to judges; "*" answers for every other role."""

    def __init__(
        self,
        judges: Mapping[str, Judge],
        ledger: Ledger,
        *,
        run: str = "",
        max_concurrency: int = 64,
        budget: float | None = None,
        allow_degraded: bool = False,
    ):
        self.judges = dict(judges)
        self.ledger = ledger
        self.run = run
        self.max_concurrency = max_concurrency
        self.budget = budget
        self.allow_degraded = allow_degraded
        self.spend = Spend()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    # ---------------------------------------------------------------------------------------- the `Ask` interface

    def __call__(self, requests: Sequence[ChatRequest]) -> list[Completion]:
        """See `afarm.judges.Ask.__call__`."""
        keys = [request_key(r, self.judge(r.role)) for r in requests]
        answers = self.ledger.completions(list(dict.fromkeys(keys)))
        missing = {key: r for key, r in zip(keys, requests, strict=True) if key not in answers}
        self.spend.answers_reused += len(answers)
        if missing:
            answers |= self._wait(self._send_all(missing))
        return [answers[key] for key in keys]

    def recall(self, keys: Sequence[JudgementKey]) -> dict[JudgementKey, Judgement]:
        """See `afarm.judges.Ask.recall`."""
        found = self.ledger.recall(keys)
        self.spend.judgements_reused += len(found)
        return found

    def learn(self, judgements: Mapping[JudgementKey, Judgement]) -> None:
        """See `afarm.judges.Ask.learn`."""
        self.ledger.learn(judgements)

    def judge(self, role: str) -> str:
        """See `afarm.judges.Ask.judge`."""
        return self._judge(role).identity

    def capabilities(self, role: str) -> Capabilities:
        """See `afarm.judges.Ask.capabilities`."""
        return self._judge(role).capabilities

    def degraded(self, request: ChatRequest) -> tuple[str, ...]:
        """See `afarm.judges.Ask.degraded`."""
        names = unsupported(request, self.capabilities(request.role))
        if names and not self.allow_degraded:
            raise JudgeError(
                f"{self.judge(request.role)} takes no {' or '.join(names)}, which {request.annotator or 'a request'} "
                "asks for: choose another judge, or leave it out with --allow-degraded (every label then says so)"
            )
        return names

    def worst_case_price(self, request: ChatRequest) -> float | None:
        """The most that `request` can cost in dollars; None where its judge's prices are unknown."""
        return self._judge(request.role).worst_case_price(request)

    def _judge(self, role: str) -> Judge:
        try:
            return self.judges.get(role) or self.judges["*"]
        except KeyError:
            raise JudgeError(
                f"no judge answers for the role {role!r}.{did_you_mean(role, self.judges)} "
                f"Name one with --judge {role}=…"
            ) from None

    # ------------------------------------------------------------------------------------------------- the engine

    async def _send_all(self, missing: Mapping[str, ChatRequest]) -> dict[str, Completion]:
        """Send every request, at most `max_concurrency` at once, and store each answer before it is returned.

        The first failure stops further sending; what is in flight is awaited and stored, then the failure is raised.
        """
        waiting = list(reversed(list(missing.items())))
        flying: dict[asyncio.Task[Completion], tuple[str, ChatRequest]] = {}
        answers: dict[str, Completion] = {}
        failure: BaseException | None = None
        try:
            while flying or (waiting and failure is None):
                if failure is None:
                    room = self.max_concurrency - len(flying)
                    try:
                        batch = self._reserve(waiting, room, waits=bool(flying))
                    except BudgetError as error:
                        failure, batch = error, []
                    for key, request in batch:
                        flying[asyncio.create_task(self._judge(request.role).complete(request))] = key, request
                if flying:
                    failure = await self._land(flying, answers) or failure
        except asyncio.CancelledError:
            await self._drain(flying, answers)
            raise
        if failure is not None:
            raise failure
        return answers

    def _reserve(self, waiting: list[tuple[str, ChatRequest]], room: int, waits: bool) -> list[tuple[str, ChatRequest]]:
        """Take up to `room` requests that the budget allows, and write their intents.

        Raises `BudgetError` where not one more may be sent and none is in flight (`waits`) to release money.
        """
        batch: list[tuple[str, ChatRequest]] = []
        prices: list[float] = []
        committed = self.ledger.committed(self.run) if self.budget is not None else 0.0
        while waiting and len(batch) < room:
            key, request = waiting[-1]
            price = self.worst_case_price(request)
            if self.budget is not None:
                if price is None:
                    raise BudgetError(
                        f"the price of {self.judge(request.role)} is unknown, so a budget cannot be kept; "
                        "name a judge with a price, or leave --budget out"
                    )
                if committed + sum(prices) + price > self.budget:
                    if not batch and not waits:
                        raise BudgetError(
                            f"the budget of ${self.budget:.2f} is reached (${committed:.2f} committed); what is paid "
                            "for is kept: run the same command with a larger --budget to go on"
                        )
                    break
            waiting.pop()
            batch.append((key, request))
            prices.append(price or 0.0)
        priced = [(key, price) for (key, _), price in zip(batch, prices, strict=True) if price]
        if priced:
            self.ledger.intend([k for k, _ in priced], [p for _, p in priced], self.run)
        return batch

    async def _land(
        self, flying: dict[asyncio.Task[Completion], tuple[str, ChatRequest]], answers: dict[str, Completion]
    ) -> BaseException | None:
        """Wait for at least one request, store all answers that are in, in one transaction; return a failure."""
        done, _ = await asyncio.wait(flying, return_when=asyncio.FIRST_COMPLETED)
        failure: BaseException | None = None
        landed: list[Answer] = []
        abandoned: list[str] = []
        for task in done:
            key, request = flying.pop(task)
            error = task.exception() if not task.cancelled() else asyncio.CancelledError()
            if error is None:
                answer = task.result()
                landed.append(
                    (request, self.judge(request.role), replace(answer, key=key, text=encodable(answer.text)))
                )
            else:
                abandoned.append(key)
                failure = failure or _explained(error, self.judge(request.role))
        self.ledger.resolve(landed, self.run, abandoned)
        for request, _, completion in landed:
            answers[completion.key] = completion
            self.spend.add(request, completion)
        return failure

    async def _drain(
        self, flying: dict[asyncio.Task[Completion], tuple[str, ChatRequest]], answers: dict[str, Completion]
    ) -> None:
        """After an interrupt: give what was already sent a little time to arrive, since it is paid for."""
        try:
            async with asyncio.timeout(10):
                while flying:
                    await self._land(flying, answers)
        except TimeoutError:
            for task in flying:
                task.cancel()

    # ------------------------------------------------------------------------------------------- the loop's thread

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._running_loop())
        try:
            return future.result()
        except KeyboardInterrupt:
            self._stop(future)
            raise

    def _stop(self, future: Future[T]) -> None:
        """Cancel the work and wait until it has stored what was in flight (a second interrupt abandons that)."""
        loop = self._running_loop()
        future.cancel()
        idle = asyncio.run_coroutine_threadsafe(_others_done(), loop)
        idle.result(timeout=15)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name="afarm-ask", daemon=True)
            self._thread.start()
        return self._loop

    def close(self) -> None:
        """Close the judges and stop the loop's thread. The ledger stays open: it is the caller's."""
        if self._loop is None or self._thread is None:
            return
        for judge in dict.fromkeys(self.judges.values()):
            self._wait(judge.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._loop = self._thread = None


async def _others_done() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others)


def _explained(error: BaseException, judge: str) -> AfarmError:
    """The error itself where it already explains itself, otherwise one that names the judge."""
    if isinstance(error, AfarmError):
        return error
    wrapped = JudgeError(f"{judge} failed: {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped
