"""Copy of a ledger to another place: from a file to a server when machines come to share it, or back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from afarm import StoreError
from afarm.judging import LEDGER_COLUMNS, Database
from afarm.results import LIVE_SECONDS, LOOK_SECONDS, Ledger, Place, Transaction, fixed_place, redact_place

ROWS = 1000
"""Answers that are in memory at once."""


def copy_ledger(source: Ledger, place: Place) -> int:
    """Copy answers, judgements, spending, batches and reservations into an empty ledger at `place`.

    One transaction there, with writers of both kept out: all of it is copied, or nothing. Returns how many answers.
    Raises `StoreError` if there is anything at `place` already, since spending would count twice, and if a living
    process has requests in flight here.
    """
    if fixed_place(place) == fixed_place(source.place):
        raise StoreError(f"{redact_place(place)} is the ledger itself: name another place to copy it to")
    _refuse_if_in_use(source)
    with Ledger(place) as target:

        def copy(read: Transaction) -> int:
            return target.database.write(lambda write: _copy(read, write, source.database, target.database))

        return source.database.write(copy)


def _copy(read: Transaction, write: Transaction, source: Database, target: Database) -> int:
    if any(write.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone() for table in LEDGER_COLUMNS):
        raise StoreError(
            f"{target.name} holds answers or spending already, which a copy would count twice: name a new file or "
            "database"
        )
    copied = 0
    for rows in _answers(read, source.row_number):
        _insert(write, "completions", rows)
        copied += len(rows)
    for table in list(LEDGER_COLUMNS)[1:]:
        _insert(write, table, read.execute(f"SELECT {LEDGER_COLUMNS[table]} FROM {table}").fetchall())
    return copied


def _answers(read: Transaction, number: str) -> Iterator[list[tuple[Any, ...]]]:
    columns, last = LEDGER_COLUMNS["completions"], -1
    while True:
        statement = f"SELECT {number}, {columns} FROM completions WHERE {number} > ? ORDER BY {number} LIMIT {ROWS}"
        rows = read.execute(statement, [last]).fetchall()
        if not rows:
            return
        last = rows[-1][0]
        yield [row[1:] for row in rows]


def _insert(write: Transaction, table: str, rows: list[tuple[Any, ...]]) -> None:
    columns = LEDGER_COLUMNS[table]
    marks = ",".join("?" * (columns.count(",") + 1))
    write.executemany(f"INSERT INTO {table} ({columns}) VALUES ({marks})", rows)


def _refuse_if_in_use(source: Ledger) -> None:
    """Watch the processes that have requests in flight, if there are any, for signs of life."""
    statement = "SELECT owner, MAX(seen) FROM in_flight WHERE owner <> '' GROUP BY owner"
    signs, until = set(source.read(statement)), time.monotonic() + LIVE_SECONDS
    while signs and time.monotonic() < until:
        time.sleep(LOOK_SECONDS)
        if set(source.read(statement)) - signs:
            raise StoreError(f"{source.database.name} is in use by another process: stop it, then copy the ledger")
