"""Recovery of a damaged ledger: the rows that can still be read, copied into a new file.

The damaged file stays beside the new one. Answers are what was paid for: of their table every readable page is saved,
of the others what lies before and behind the damage. Judgements that are lost are read from the answers again.
"""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from afarm.core.errors import StoreError
from afarm.judging.ledger import LIVE_SECONDS, Ledger

TABLES = ("completions", "judgements", "in_flight", "spent", "stage_spend", "reuse", "batch_requests")
SIDE_FILES = ("", "-wal", "-shm")
"""The endings of the files that SQLite keeps of one database."""

PAGE = 4096
"""Bytes per page of every ledger."""

SMALLEST_ROW = 64
"""No answer takes fewer bytes: it bounds the row numbers that are tried."""

PATIENCE = 200_000
"""Reads that may fail in a table before the rest of it is given up."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """Rows saved, by table, and where the damaged file lies now."""

    saved: dict[str, int]
    damaged: Path

    @property
    def answers(self) -> int:
        return self.saved["completions"]


def is_sound(path: Path) -> bool:
    """Check every page of the ledger at `path`."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            return db.execute("PRAGMA integrity_check").fetchall() == [("ok",)] and set(TABLES) <= tables
    except sqlite3.Error:
        return False


def recover(path: Path) -> Recovery:
    """Replace the damaged ledger at `path` by a new one with all rows that can still be read.

    Raises `StoreError` if nothing can be read, or if a process that is alive uses the ledger.
    """
    with TemporaryDirectory(dir=path.parent, prefix=".recovery-") as place:
        copy, new = Path(place) / "copy.sqlite", Path(place) / "new.sqlite"
        for ending in SIDE_FILES[:2]:  # what is in the log counts; the index of it is made anew
            with suppress(FileNotFoundError):
                shutil.copyfile(f"{path}{ending}", f"{copy}{ending}")
        with Ledger(new) as ledger:
            with closing(_opened(copy, new)) as damaged:
                _refuse_if_in_use(damaged, path)
                saved = {table: _save(damaged, ledger, table, path.stat().st_size) for table in TABLES}
            _count_spending_again(ledger)
        if not any(saved.values()):
            raise StoreError(f"nothing can be read of {path}: restore a copy of it, or move it away to start anew")
        names = (path.with_name(f"ledger.damaged-{number}.sqlite") for number in count(1))
        aside = next(name for name in names if not name.exists())
        for ending in SIDE_FILES:
            with suppress(FileNotFoundError):
                Path(f"{path}{ending}").rename(f"{aside}{ending}")
        new.rename(path)
    return Recovery(saved, aside)


def _opened(copy: Path, new: Path) -> sqlite3.Connection:
    """Open what is left. Without a readable first page, it gets that of a new ledger: all are made alike."""
    for attempt in range(2):
        db = sqlite3.connect(copy, isolation_level=None)
        db.text_factory = lambda text: text.decode("utf-8", "replace")
        db.execute("PRAGMA writable_schema = ON")  # reads a file that is shorter than its header says
        try:
            db.execute("SELECT 1 FROM completions WHERE rowid = -1").fetchall()
            return db
        except sqlite3.DatabaseError:
            if attempt or copy.stat().st_size < PAGE:
                return db
            db.close()
            with suppress(FileNotFoundError):
                Path(f"{copy}-wal").unlink()
            with closing(sqlite3.connect(new)) as fresh:
                fresh.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            first = bytearray(new.read_bytes()[:PAGE])
            first[28:32] = (copy.stat().st_size // PAGE).to_bytes(4, "big")
            with copy.open("r+b") as file:
                file.write(first)
    raise AssertionError("unreachable")


def _refuse_if_in_use(damaged: sqlite3.Connection, path: Path) -> None:
    with suppress(sqlite3.Error):
        alive = "SELECT 1 FROM in_flight WHERE seen > ? LIMIT 1"
        if damaged.execute(alive, [time.time() - LIVE_SECONDS]).fetchone():
            raise StoreError(f"{path} is in use by another process: stop it, then recover the ledger")


def _save(damaged: sqlite3.Connection, ledger: Ledger, table: str, size: int) -> int:
    """Copy the readable rows of a table, and return how many there are."""
    before = ledger.read(f"SELECT COUNT(*) FROM {table}")[0][0]
    columns = len(ledger.read(f"PRAGMA table_info({table})"))
    numbered = table in ("completions", "in_flight")
    rows = _by_number(damaged, table, size) if numbered else _from_both_ends(damaged, table)
    with ledger.transaction() as db:
        marks = ",".join("?" * columns)
        for row in rows:
            if len(row) == columns and (table != "completions" or _makes_sense(row)):
                db.execute(f"INSERT OR IGNORE INTO {table} VALUES ({marks})", row)
    return int(ledger.read(f"SELECT COUNT(*) FROM {table}")[0][0] - before)


def _by_number(db: sqlite3.Connection, table: str, size: int) -> Iterator[Sequence[Any]]:
    """Yield the rows of a table by ranges of row numbers, halved where they cannot be read."""
    ranges, failures = [(1, size // SMALLEST_ROW + 1)], 0
    while ranges and failures < PATIENCE:
        first, last = ranges.pop()
        try:
            # A range is read whole before any of it is used: a failure in it must not yield a row twice.
            step = min(last, first + 9_999)
            yield from db.execute(f"SELECT * FROM {table} WHERE rowid BETWEEN ? AND ?", [first, step]).fetchall()
            if step < last:
                ranges.append((step + 1, last))
        except sqlite3.Error:
            failures += 1
            if step < last:
                ranges.append((step + 1, last))
            if first < step:
                middle = (first + step) // 2
                ranges += [(middle + 1, step), (first, middle)]


def _from_both_ends(db: sqlite3.Connection, table: str) -> Iterator[Sequence[Any]]:
    """Yield the rows of a table without row numbers up to the damage, then from the end back to it."""
    try:
        info = db.execute(f"PRAGMA table_info({table})").fetchall()
    except sqlite3.Error:
        return
    key = [name for _, name, *_, position in sorted(info, key=lambda row: row[-1]) if position]
    for direction in ("ASC", "DESC"):
        order = ", ".join(f"{name} {direction}" for name in key)
        with suppress(sqlite3.Error):
            for row in db.execute(f"SELECT * FROM {table} ORDER BY {order}"):  # noqa: UP028 - a failure ends the scan
                yield row


def _makes_sense(row: Sequence[Any]) -> bool:
    """Tell if a row is an answer, and no remains of a page that was overwritten."""
    key, request, text, price = row[0], row[5], row[6], row[10]
    try:
        asked = json.loads(request)
    except (TypeError, ValueError):
        return False
    plausible = isinstance(text, str) and (price is None or isinstance(price, int | float))
    return plausible and isinstance(asked, dict) and bool(re.fullmatch(r"[0-9a-f]{32}", str(key)))


def _count_spending_again(ledger: Ledger) -> None:
    """Count at least what the saved answers have cost as spent by each run: budgets hold."""
    with ledger.transaction() as db:
        db.execute(
            "INSERT INTO spent SELECT run, SUM(price) FROM completions WHERE run NOT NULL AND price > 0 GROUP BY run "
            "ON CONFLICT (run) DO UPDATE SET dollars = MAX(dollars, excluded.dollars)"
        )
