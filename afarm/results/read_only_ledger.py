"""A ledger opened for reading only: nothing is written, created or locked."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from afarm.core.errors import StoreError
from afarm.judging.database import Place, T, Transaction, is_there, is_url
from afarm.judging.ledger import Ledger
from afarm.judging.ledger_schema import LEDGER_VERSION
from afarm.judging.sqlite_database import SqliteDatabase


class ReadOnlyFile(SqliteDatabase):
    """A ledger's file, opened for reading alone."""

    def __init__(self, path: Path):
        """Open `path`. Raises `StoreError` if it cannot be read, or has another version's tables."""
        self.path, self.name = path, str(path)
        self._lock = threading.RLock()
        self._db = self._open(path)
        [(version,)] = self.read("PRAGMA user_version")
        if version != LEDGER_VERSION:
            self.close()
            raise StoreError(f"{path} has the tables of another version of afarm ({version}, known {LEDGER_VERSION})")

    def _open(self, path: Path) -> sqlite3.Connection:
        address = f"file:{quote(str(path))}?mode=ro"
        error = sqlite3.Error()
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
        raise self._trouble("read", error)

    def write(self, work: Callable[[Transaction], T]) -> T:
        raise StoreError(f"{self.name} is open for reading only")

    def _trouble(self, verb: str, error: Exception) -> StoreError:
        return StoreError(f"{self.name} cannot be {verb}: {error}")


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
