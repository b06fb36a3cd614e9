"""Completions as rows of the ledger's table, and what was sent as text."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from afarm.core.judge import ChatRequest, Completion

COMPLETION = (
    "text, input_tokens, output_tokens, cached_input_tokens, price, finish_reason, model, seconds, key, logprobs, "
    "degraded"
)

LOSE = (
    "INSERT INTO in_flight SELECT key, '', run, reserved, created, NULL FROM in_flight "
    "WHERE key = ? AND owner = ? AND reserved IS NOT 0"
)
LOSE_BATCHED = (
    "INSERT INTO in_flight SELECT key, '', run, reserved, created, NULL FROM batch_requests "
    "WHERE ticket = ? AND reserved IS NOT 0"
)
"""What may have been charged for without an answer is an intent of nobody, which is never closed."""


def completion_of(row: Sequence[Any]) -> Completion:
    *plain, logprobs, degraded = row
    known = None if logprobs is None else tuple(json.loads(logprobs))
    return Completion(*plain, logprobs=known, degraded=tuple(json.loads(degraded or "[]")))  # type: ignore[misc]


def row_of(request: ChatRequest, judge: str, completion: Completion, run: str) -> tuple[Any, ...]:
    asked = (completion.key, judge, request.role, request.annotator, run, sent_text(request))
    return columns_of(asked, completion)


def columns_of(asked: Sequence[Any], c: Completion) -> tuple[Any, ...]:
    """A completion as a row of its table; `asked` are its first columns: key, judge, role, annotator, run, request."""
    return (
        *(*asked, encodable(c.text), c.input_tokens, c.output_tokens),
        *(c.cached_input_tokens, c.price, c.finish_reason, c.model, c.seconds, time.time()),
        None if c.logprobs is None else json.dumps([dict(position) for position in c.logprobs]),
        json.dumps(list(c.degraded)) if c.degraded else None,
    )


def sent_text(request: ChatRequest) -> str:
    """What was sent, as JSON. Written by hand: `asdict` copies deeply, which cost more than all the rest."""
    sent = {
        "role": request.role,
        "messages": [{"role": m.role, "content": m.content, "name": m.name} for m in request.messages],
        "prompt": request.prompt,
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "favour": request.favoured_tokens,
        "avoid": request.penalised_tokens,
        "schema": request.schema,
        "tool": asdict(request.tool) if request.tool else None,
        "top_logprobs": request.top_logprobs,
        "annotator": request.annotator,
        "seed": request.seed,
        "draw": request.sample_index,
    }
    return encodable(json.dumps(sent, ensure_ascii=False))


def encodable(text: str) -> str:
    """`text` with halves of surrogate pairs as escapes: models do emit half an emoji, and UTF-8 cannot hold it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text
