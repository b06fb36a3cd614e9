"""Answers that may have been charged for and never came: a judge reports them before it asks again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar

ANSWER_LOST: ContextVar[Callable[[], Awaitable[None]]] = ContextVar("ANSWER_LOST")
"""Called by `answer_lost` for the current request; set by the engine."""


async def answer_lost() -> None:
    """Report that the current request may have been charged for, got no answer, and will be sent again.

    The engine goes on counting it and returns when the budget allows another attempt; if it never will, the request is
    cancelled. Does nothing outside of the engine.
    """
    if report := ANSWER_LOST.get(None):
        await report()
