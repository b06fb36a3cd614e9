"""A ledger opened for reading only: nothing is written, created or locked."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from afarm.core.errors import StoreError
from afarm.judging.database import Database, Place, Row, T, Transaction, is_there, is_url
from afarm.judging.ledger import Ledger
from afarm.judging.ledger_schema import LEDGER_VERSION
from afarm.judging.sqlite_database import SqliteDatabase


class ReadOnlyFile(Database):
    """A ledger's file, opened for reading alone."""

    day_of_creation = SqliteDatabase.day_of_creation
    row_number = SqliteDatabase.row_number
    is_there = SqliteDatabase.is_there

    def __init__(self, path: Path):
        """Open `path`. Raises `StoreError` if it cannot be read, or has another version's tables."""
        self.name = str(path)
        self._lock = threading.Lock()
        self._db = self._open(path)
        [(version,)] = self.read("PRAGMA user_version")
        if version != LEDGER_VERSION:
            self.close()
            raise StoreError(f"{path} has the tables of another version of afarm ({version}, known {LEDGER_VERSION})")

    def _open(self, path: Path) -> sqlite3.Connection:
        address = f"file:{quote(str(path))}?mode=ro"
        error: sqlite3.Error | None = None
        # Beside a file in WAL mode its reader writes, too, unless it is told that nobody else does: without a log
        # beside it nobody has it open, and nothing is left behind.
        is_open = path.with_name(f"{path.name}-wal").exists()
        for more in ("", "&immutable=1") if is_open else ("&immutable=1",):
            try:
                opened = sqlite3.connect(f"{address}{more}", uri=True, timeout=5, check_same_thread=False)
                opened.execute("SELECT 1 FROM sqlite_master").fetchone()
                return opened
            except sqlite3.Error as failure:
                error = failure
        raise StoreError(f"{path} cannot be read: {error}")

    def write(self, work: Callable[[Transaction], T]) -> T:
        raise StoreError(f"{self.name} is open for reading only")

    def read(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        with self._lock:
            try:
                return self._db.execute(statement, values).fetchall()
            except sqlite3.Error as error:
                raise StoreError(f"{self.name} cannot be read: {error}") from error

    def now(self) -> float:
        raise StoreError(f"{self.name} is open for reading only")

    def close(self) -> None:
        with self._lock:
            self._db.close()


class ReadOnlyLedger(Ledger):
    """A ledger over a database that is opened for reading."""

    def __init__(self, place: Path):
        self.place = place
        self.database = ReadOnlyFile(place)


@contextmanager
def open_ledger(place: Place) -> Iterator[Ledger | None]:
    """Open the ledger at `place` for reading; None if there is none.

    Raises `StoreError` if it cannot be read.
    """
    if not is_there(place):
        yield None
        return
    opened = Ledger(place) if is_url(place) else ReadOnlyLedger(Path(place))
    try:
        yield opened
    finally:
        opened.database.close()
