"""The tables of the ledger, their rows, and the file systems on which a file may not be shared."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from afarm.core.judge import ChatRequest, Completion

VERSION = 3
"""Of the tables."""

SCHEMA = """
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


def prepare(db: sqlite3.Connection) -> None:
    """Make the tables of a new file. Raises `sqlite3.DatabaseError` for a file with other tables."""
    if _version(db) == VERSION:
        return
    db.execute("BEGIN IMMEDIATE")  # several processes may open a new file at once
    try:
        version = _version(db)
        if version > VERSION:
            raise sqlite3.DatabaseError(f"it was written by a newer afarm (tables {version}, known {VERSION})")
        if version < VERSION:
            if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'completions'").fetchone():
                raise sqlite3.DatabaseError(f"it was written by an older afarm (tables {version}, known {VERSION})")
            _run(db, SCHEMA)
            db.execute(f"PRAGMA user_version = {VERSION}")
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def keep_private(path: Path) -> None:
    """Make the file for its owner alone, or take it from others: it holds all prompts and outputs.

    SQLite gives its log the same rights. Rights of a group stay if only a group has them.
    """
    if str(path) == ":memory:":
        return
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    mode = path.stat().st_mode
    if mode & 0o007:
        with suppress(PermissionError):  # another's file
            path.chmod(0o600)


def _version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def _run(db: sqlite3.Connection, script: str) -> None:
    """Execute each statement. `executescript` would commit first."""
    for statement in script.split(";"):
        if statement.strip():
            db.execute(statement)


COMPLETION = (
    "text, input_tokens, output_tokens, cached_input_tokens, price, finish_reason, model, seconds, key, logprobs, "
    "degraded"
)

CHARGE = (
    "INSERT INTO in_flight SELECT key, '', run, reserved, created, NULL FROM in_flight "
    "WHERE key = ? AND owner = ? AND reserved IS NOT 0"
)
CHARGE_BATCHED = (
    "INSERT INTO in_flight SELECT key, '', run, reserved, created, NULL FROM batch_requests "
    "WHERE ticket = ? AND reserved IS NOT 0"
)
"""A charge without an answer becomes a reservation without an owner, which is never closed."""


def completion_of(row: Sequence[Any]) -> Completion:
    """Read a completion from the columns `COMPLETION`."""
    *plain, logprobs, degraded = row
    positions = None if logprobs is None else tuple(json.loads(logprobs))
    return Completion(*plain, logprobs=positions, degraded=tuple(json.loads(degraded or "[]")))  # type: ignore[misc]


def row_of(request: ChatRequest, judge: str, completion: Completion, run: str) -> tuple[Any, ...]:
    """Write an answer bought by `run` as a row of completions."""
    first_columns = (completion.key, judge, request.role, request.annotator, run, sent_text(request))
    return columns_of(first_columns, completion)


def columns_of(asked: Sequence[Any], c: Completion) -> tuple[Any, ...]:
    """Write a completion as a row; `asked`: its key, judge, role, annotator, run and request."""
    return (
        *(*asked, encodable(c.text), c.input_tokens, c.output_tokens),
        *(c.cached_input_tokens, c.price, c.finish_reason, c.model, c.seconds, time.time()),
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
    """Escape halves of surrogate pairs: models do emit half an emoji, and UTF-8 cannot hold it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text


NETWORK_FILE_SYSTEMS = {
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "lustre",
    "ceph",
    "gpfs",
    "beegfs",
    "fuse.sshfs",
    "9p",
    "afs",
}


def network_file_system(path: Path, mounts: Path = Path("/proc/mounts")) -> str:
    """The type of the network file system that holds `path`, empty for a local disk or if unknown."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    real = str(path.parent.resolve())
    best, kind = "", ""
    for line in lines:
        parts = line.split()
        if len(parts) < 3:
            continue
        point = parts[1].replace("\\040", " ")
        if (real == point or real.startswith(point.rstrip("/") + "/")) and len(point) >= len(best):
            best, kind = point, parts[2]
    return kind if kind in NETWORK_FILE_SYSTEMS else ""
