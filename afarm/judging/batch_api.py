"""Asking through a vendor's batch endpoint: half the price, an answer within a day.

A ticket is in the ledger as soon as there is one, with all that it asks. So a restart collects what is pending instead
of buying it again, whoever asks for it and in whichever way.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from afarm.core.judge import Completion
from afarm.judging.dispatch import Dispatcher, JudgeQueue, Question, may_be_charged


async def answer_in_batches(sending: Dispatcher, lane: JudgeQueue, questions: Sequence[Question]) -> None:
    """Collect what is pending of `questions`, hand in the rest where `lane` leads to a batch endpoint, and deliver.

    What a batch could not answer is asked one by one. Raises `JudgeError` where a batch was not accepted or its ticket
    is not known any more, and `BudgetError` where the budget allows nothing more.
    """
    ledger = sending.desk.ledger
    rest = {question.key: question for question in questions}
    pending = ledger.pending_batches(lane.identity, list(rest))
    for ticket in pending:
        await _collect(sending, lane, ticket)
    _deliver(sending, rest)
    tried = {key for keys in pending.values() for key in keys}
    if lane.direct is None:
        _ask_directly(sending, lane, list(rest.values()))
        return
    _ask_directly(sending, lane.direct, [rest.pop(key) for key in tried if key in rest])
    queue = deque(rest.values())
    while queue:
        asked = list(queue)
        queue.clear()
        prices = [worst_price(sending, lane, question) for question in asked]
        granted = sending.claim(lane, asked, prices, queue)
        if granted:
            ticket = await asyncio.shield(_hand_in(sending, lane, granted))
            handed = {question.key: question for question in granted}
            await _collect(sending, lane, ticket)
            _deliver(sending, handed)
            _ask_directly(sending, lane.direct, list(handed.values()))
        elif queue:
            await asyncio.sleep(1.0)  # until what else is in flight releases money


def worst_price(sending: Dispatcher, lane: JudgeQueue, question: Question) -> float | None:
    price = sending.worst_price(question)
    charged = lane.judge.price()
    return None if price is None else price * (charged.batch if charged else 0.5)


async def _hand_in(sending: Dispatcher, lane: JudgeQueue, questions: Sequence[Question]) -> str:
    """Submit and write the ticket down. Not to be cancelled in between, since what is submitted is paid for."""
    ledger, run = sending.desk.ledger, sending.desk.run
    try:
        ticket = await lane.judge.submit([question.sent for question in questions])
    except Exception as error:
        keys = [question.key for question in questions]
        if may_be_charged(error):
            ledger.resolve([], run, lost=keys)
        else:
            ledger.resolve([], run, abandoned=keys)
        raise
    prices = [worst_price(sending, lane, question) for question in questions]
    rows = [(q.key, q.sent, q.degraded, price) for q, price in zip(questions, prices, strict=True)]
    ledger.handed_in(ticket, lane.identity, run, rows)
    return ticket


async def _collect(sending: Dispatcher, lane: JudgeQueue, ticket: str) -> None:
    """Wait until the batch is done, and store all its answers, those that nobody asks for now as well."""
    ledger = sending.desk.ledger
    sending.tickets.add(ticket)
    try:
        while ledger.pending_ticket(ticket):  # until here, or in another process, it is collected
            answers: Sequence[Completion | None] | None = await lane.judge.collect(ticket)
            if answers is not None:
                ledger.collected(ticket, answers, sending.desk.stage())
                return
            await asyncio.sleep(sending.desk.batch_poll_seconds)
    finally:
        sending.tickets.discard(ticket)


def _deliver(sending: Dispatcher, wanted: dict[str, Question]) -> None:
    """Hand on what the ledger now holds of `wanted`, and take it out."""
    found = sending.desk.ledger.completions(list(wanted))
    sending.deliver([(wanted.pop(key), completion) for key, completion in found.items()])


def _ask_directly(sending: Dispatcher, lane: JudgeQueue, questions: Sequence[Question]) -> None:
    sending.waiting.setdefault(lane, deque()).extend(questions)
    sending.wake.set()
