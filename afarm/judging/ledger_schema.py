"""The tables of the ledger, and their rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from afarm.core.judge import ChatRequest, Completion

LEDGER_VERSION = 3
"""The version of the ledger's tables."""

LEDGER_SCHEMA = """
CREATE TABLE IF NOT EXISTS completions (
    key TEXT PRIMARY KEY, judge TEXT NOT NULL, role TEXT, annotator TEXT, run TEXT, request TEXT NOT NULL,
    text TEXT NOT NULL, input_tokens INTEGER, output_tokens INTEGER, cached_input_tokens INTEGER, price REAL,
    finish_reason TEXT, model TEXT, seconds REAL, created REAL NOT NULL, logprobs TEXT, degraded TEXT);
CREATE TABLE IF NOT EXISTS judgements (
    annotator TEXT, pair_id TEXT, shown TEXT, seed INTEGER, draw INTEGER, first REAL, outcome TEXT NOT NULL,
    completion TEXT, created REAL NOT NULL, PRIMARY KEY (annotator, pair_id, shown, seed, draw)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS in_flight (
    key TEXT NOT NULL, owner TEXT NOT NULL, run TEXT, reserved REAL, created REAL NOT NULL, seen REAL);
CREATE INDEX IF NOT EXISTS in_flight_keys ON in_flight (key);
CREATE TABLE IF NOT EXISTS spent (run TEXT PRIMARY KEY, dollars REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS stage_spend (
    stage TEXT PRIMARY KEY, calls INTEGER, input_tokens INTEGER, output_tokens INTEGER, dollars REAL,
    unpriced_calls INTEGER) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS reuse (
    run TEXT, judge TEXT, annotator TEXT, day TEXT, answers INTEGER, dollars REAL,
    PRIMARY KEY (run, judge, annotator, day)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS batch_requests (
    ticket TEXT, position INTEGER, key TEXT NOT NULL, judge TEXT NOT NULL, run TEXT, role TEXT, annotator TEXT,
    request TEXT NOT NULL, degraded TEXT, reserved REAL, created REAL NOT NULL,
    PRIMARY KEY (ticket, position)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS batch_keys ON batch_requests (key);
"""
"""The statements that make a ledger's tables, as SQLite takes them."""

LEDGER_COLUMNS = {
    "completions": "key, judge, role, annotator, run, request, text, input_tokens, output_tokens, cached_input_tokens, "
    "price, finish_reason, model, seconds, created, logprobs, degraded",
    "judgements": "annotator, pair_id, shown, seed, draw, first, outcome, completion, created",
    "in_flight": "key, owner, run, reserved, created, seen",
    "spent": "run, dollars",
    "stage_spend": "stage, calls, input_tokens, output_tokens, dollars, unpriced_calls",
    "reuse": "run, judge, annotator, day, answers, dollars",
    "batch_requests": "ticket, position, key, judge, run, role, annotator, request, degraded, reserved, created",
}
"""The columns of each table as statements name them, the table of answers first."""


def column_names(table: str) -> tuple[str, ...]:
    """Return the names of a table's columns."""
    return tuple(LEDGER_COLUMNS[table].split(", "))


def split_statements(script: str) -> list[str]:
    """Split a script into its statements."""
    return [statement.strip() for statement in script.split(";") if statement.strip()]


COMPLETION = (
    "text, input_tokens, output_tokens, cached_input_tokens, price, finish_reason, model, seconds, key, logprobs, "
    "degraded"
)

CHARGE = (
    "INSERT INTO in_flight SELECT key, '', run, reserved, created, NULL FROM in_flight "
    "WHERE key = ? AND owner = ? AND COALESCE(reserved, 1) <> 0"
)
CHARGE_BATCHED = (
    "INSERT INTO in_flight SELECT key, '', run, reserved, created, NULL FROM batch_requests "
    "WHERE ticket = ? AND COALESCE(reserved, 1) <> 0"
)
"""A charge without an answer becomes a reservation without an owner, which is never closed."""


def decode_completion(row: Sequence[Any]) -> Completion:
    """Read a completion from the columns `COMPLETION`."""
    *plain, logprobs, degraded = row
    positions = None if logprobs is None else tuple(json.loads(logprobs))
    return Completion(*plain, logprobs=positions, degraded=tuple(json.loads(degraded or "[]")))  # type: ignore[misc]


def encode_completion(asked: Sequence[Any], c: Completion, now: float) -> tuple[Any, ...]:
    """Encode a completion as a row; `asked` holds its key, judge, role, annotator, run and request."""
    return (
        *(*asked, encodable(c.text), c.input_tokens, c.output_tokens),
        *(c.cached_input_tokens, c.price, c.finish_reason, c.model, c.seconds, now),
        None if c.logprobs is None else json.dumps([dict(position) for position in c.logprobs]),
        json.dumps(list(c.degraded)) if c.degraded else None,
    )


def sent_text(request: ChatRequest) -> str:
    """The request as JSON. Written by hand: `asdict` copies deeply, which cost more than all the rest."""
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
    """Escape what a database cannot hold: NUL, and the half emojis that models do emit."""
    text = text.replace("\0", r"\x00")
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text
