"""Requests through a vendor's batch endpoint: half the price, an answer within a day.

A batch's id is in the ledger as soon as there is one, with all its requests. So a restart collects what is pending
instead of buying it again, whoever asks for it and in whichever way.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

from afarm.core.errors import attribute_failures, require_promise, type_name
from afarm.core.judge import Completion
from afarm.judging.dispatch import Dispatcher, JudgeQueue, PendingRequest, may_be_charged
from afarm.judging.rate_limit import LONGEST_PAUSE, PATIENCE, PAUSE, SlowDown
from afarm.judging.return_checks import require_completion
from afarm.storage.record_fields import short_repr

T = TypeVar("T")


async def answer_in_batches(dispatcher: Dispatcher, queue: JudgeQueue, requests: Sequence[PendingRequest]) -> None:
    """Collect pending answers to `requests`, submit the rest to the batch endpoint, deliver.

    Without a batch endpoint (`queue.direct` is None) the rest is asked one by one, as are requests that a batch could
    not answer. Raises `JudgeError` if a batch was not accepted or its id is not known any more, and `BudgetError` if
    the budget allows nothing more.
    """
    ledger = dispatcher.client.ledger
    rest = {pending.key: pending for pending in requests}
    batches = ledger.pending_batches(queue.identity, list(rest))
    for batch_id in batches:
        await _collect(dispatcher, queue, batch_id)
    _deliver(dispatcher, rest)
    tried = {key for keys in batches.values() for key in keys}
    if queue.direct is None:
        _ask_directly(dispatcher, queue, list(rest.values()))
        return
    _ask_directly(dispatcher, queue.direct, [rest.pop(key) for key in tried if key in rest])
    waiting = deque(rest.values())
    while waiting:
        wanted = list(waiting)
        waiting.clear()
        prices = [dispatcher.worst_case_price(queue, pending) for pending in wanted]
        granted = dispatcher.claim(queue, wanted, prices, waiting)
        if granted:
            batch_id = await asyncio.shield(_submit(dispatcher, queue, granted))
            submitted = {pending.key: pending for pending in granted}
            await _collect(dispatcher, queue, batch_id)
            _deliver(dispatcher, submitted)
            _ask_directly(dispatcher, queue.direct, list(submitted.values()))
        elif waiting:
            await asyncio.sleep(1.0)  # until what else is in flight releases money


async def patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """Await `ask()`, again after each wait that a judge asks for. Raises `SlowDown` after too long."""
    began, pause = time.monotonic(), PAUSE
    while True:
        try:
            return await ask()
        except SlowDown as refusal:
            wait = pause if refusal.seconds is None else refusal.seconds
            if time.monotonic() - began + wait > PATIENCE:
                raise
        await asyncio.sleep(wait)
        pause = min(2 * pause, LONGEST_PAUSE)


async def _submit(dispatcher: Dispatcher, queue: JudgeQueue, requests: Sequence[PendingRequest]) -> str:
    """Submit a batch and record its id. Not to be cancelled in between: what is submitted is paid for."""
    ledger, run = dispatcher.client.ledger, dispatcher.client.run
    try:
        with attribute_failures("judges", queue.identity, queue.judge):
            batch_id = await patiently(partial(queue.judge.submit, [pending.request for pending in requests]))
        promise = f"submit must return the id of the batch, not {short_repr(batch_id)}"
        require_promise(isinstance(batch_id, str), "judges", queue.identity, promise, queue.judge)
    except Exception as error:
        keys = [pending.key for pending in requests]
        if may_be_charged(error):
            ledger.resolve([], run, charged_without_answer=keys)
        else:
            ledger.resolve([], run, free=keys)
        raise
    rows = [(p.key, p.request, p.degraded, dispatcher.worst_case_price(queue, p)) for p in requests]
    ledger.submitted(batch_id, queue.identity, run, rows)
    return batch_id


async def _collect(dispatcher: Dispatcher, queue: JudgeQueue, batch_id: str) -> None:
    """Wait until the batch is done, and store all its answers, wanted now or not."""
    ledger, is_pending = dispatcher.client.ledger, "SELECT 1 FROM batch_requests WHERE ticket = ? LIMIT 1"
    dispatcher.batch_ids.add(batch_id)
    try:
        while ledger.read(is_pending, [batch_id]):  # until here, or in another process, it is collected
            answers: Sequence[Completion | None] | None
            with attribute_failures("judges", queue.identity, queue.judge):
                answers = await patiently(partial(queue.judge.collect, batch_id))
            if answers is not None:
                promise = f"collect must return the answers of the batch, or None, not {type_name(answers)}"
                require_promise(isinstance(answers, list | tuple), "judges", queue.identity, promise, queue.judge)
                answers = [a if a is None else require_completion(a, queue.identity, queue.judge) for a in answers]
                ledger.collected(batch_id, answers, dispatcher.client.stage())
                return
            await asyncio.sleep(dispatcher.client.batch_poll_seconds)
    finally:
        dispatcher.batch_ids.discard(batch_id)


def _deliver(dispatcher: Dispatcher, wanted: dict[str, PendingRequest]) -> None:
    """Hand on the answers to `wanted` that the ledger holds, and take those requests out."""
    stored = dispatcher.client.ledger.completions(list(wanted))
    dispatcher.deliver([(wanted.pop(key), completion) for key, completion in stored.items()])


def _ask_directly(dispatcher: Dispatcher, queue: JudgeQueue, requests: Sequence[PendingRequest]) -> None:
    dispatcher.waiting.setdefault(queue, deque()).extend(requests)
    dispatcher.wake.set()
