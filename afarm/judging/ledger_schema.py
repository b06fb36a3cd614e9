"""The tables of the ledger, how an older file is brought up to date, and where a file may not be shared."""

from __future__ import annotations

import sqlite3
from pathlib import Path

VERSION = 3
"""Of the tables. The first had no logprobs, degraded, spent, reuse or batch_requests, and intents no sign of life; the
second no stage_spend."""

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

UPGRADE = """
ALTER TABLE completions ADD COLUMN logprobs TEXT;
ALTER TABLE completions ADD COLUMN degraded TEXT;
ALTER TABLE in_flight ADD COLUMN seen REAL;
DROP INDEX IF EXISTS prices;
"""

TOTALS = """
INSERT INTO spent SELECT COALESCE(run, ''), SUM(price) FROM completions WHERE price > 0 GROUP BY COALESCE(run, '');
"""


def prepare(db: sqlite3.Connection) -> None:
    """Make the tables, or bring older ones up to date. Raises `sqlite3.DatabaseError` for a file from the future."""
    if _version(db) == VERSION:
        return
    db.execute("BEGIN IMMEDIATE")  # several processes may open a new file, or an old one, at once
    try:
        version = _version(db)
        if version > VERSION:
            raise sqlite3.DatabaseError(f"it was written by a newer afarm (tables {version}, known {VERSION})")
        if version < VERSION:
            old = db.execute("SELECT 1 FROM sqlite_master WHERE name = 'completions'").fetchone()
            first = old and version < 2
            _run(db, (UPGRADE if first else "") + SCHEMA + (TOTALS if first else ""))
            db.execute(f"PRAGMA user_version = {VERSION}")
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def _version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def _run(db: sqlite3.Connection, script: str) -> None:
    """Not `executescript`, which commits first."""
    for statement in script.split(";"):
        if statement.strip():
            db.execute(statement)


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
    """The type of the network file system that holds `path`, empty for a local disk or where it cannot be told."""
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
