"""A ledger's database in a file of SQLite: of one machine, or of several that share it with its locks."""

from __future__ import annotations

import os
import shlex
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from afarm.core.errors import StoreError
from afarm.judging.database import Database, Row, T, Transaction, explain_version
from afarm.judging.ledger_schema import LEDGER_SCHEMA, LEDGER_VERSION, split_statements

TIMEOUT = 60.0
"""Seconds to wait for another process that is writing the file."""


class SqliteDatabase(Database):
    """One SQLite file, safe for several threads and processes at once. `:memory:` keeps nothing."""

    day_of_creation = "date(created, 'unixepoch', 'localtime')"
    row_number = "rowid"

    def __init__(self, place: Path | str):
        """Open or create the file at `place`. Raises `StoreError` if that cannot be done."""
        self.path = path = Path(place)
        self.name = str(path)
        self._lock = threading.RLock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            keep_private(path)
            self._db = sqlite3.connect(path, timeout=TIMEOUT, check_same_thread=False, isolation_level=None)
            self._choose_journal()
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._make_tables()
        except (sqlite3.Error, OSError) as error:
            raise self._trouble("used", error) from error

    @classmethod
    def is_there(cls, place: Path | str) -> bool:
        path = Path(place)
        try:
            return path.is_file() and path.stat().st_size > 0
        except OSError as error:
            raise StoreError(f"{path} cannot be read: {error.strerror}") from error

    def write(self, work: Callable[[Transaction], T]) -> T:
        with self._lock:
            try:
                if self.name != ":memory:" and not self.path.exists():
                    self._db.execute("VACUUM INTO ?", [self.name])  # from the deleted file, which is still open
                    raise StoreError(f"the ledger {self.path} was deleted meanwhile: it is back. Run the command again")
                self._db.execute("BEGIN IMMEDIATE")
                result = work(self._db)
                self._db.execute("COMMIT")
                return result
            except sqlite3.Error as error:
                raise self._trouble("written", error) from error
            finally:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")

    def read(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        with self._lock:
            try:
                return self._db.execute(statement, values).fetchall()
            except sqlite3.Error as error:
                raise self._trouble("read", error) from error

    def now(self) -> float:
        return time.time()

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def _trouble(self, verb: str, error: Exception) -> StoreError:
        """Make the error for a failure of SQLite: a damaged file has its own way out."""
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            where = shlex.quote(str(self.path.parent))
            return StoreError(
                f"the ledger {self.path} is damaged ({error}): `afarm ledger --recover --output-dir {where}` sets it "
                "aside, and goes on with what was spent and the answers that can be read"
            )
        remedy = "make room and see to it that it may be written"
        if not self.path.exists():
            remedy += ", or choose another --output-dir"
        return StoreError(f"the ledger {self.path} cannot be {verb}: {error}; {remedy}: the same command then goes on")

    def _choose_journal(self) -> None:
        """Set the journal's mode, waiting for other processes that open a new file."""
        # While another connection writes, SQLite refuses this at once, whatever its timeout.
        # WAL needs memory shared between processes, which network file systems do not give.
        mode = "DELETE" if self.name != ":memory:" and network_file_system(self.path) else "WAL"
        deadline = time.monotonic() + TIMEOUT
        while True:
            try:
                self._db.execute(f"PRAGMA journal_mode={mode}")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    def _make_tables(self) -> None:
        """Make the tables of a new file. Raises `StoreError` for a file with other tables."""
        if self._version() == LEDGER_VERSION:
            return
        self._db.execute("BEGIN IMMEDIATE")  # several processes may open a new file at once
        try:
            version = self._version()
            old = self._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'completions'").fetchone()
            if version > LEDGER_VERSION or (old and version < LEDGER_VERSION):
                raise StoreError(f"the ledger {self.path} cannot be used: {explain_version(version, LEDGER_VERSION)}")
            if version < LEDGER_VERSION:
                for statement in split_statements(LEDGER_SCHEMA):  # `executescript` would commit first
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA user_version = {LEDGER_VERSION}")
            self._db.execute("COMMIT")
        finally:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")

    def _version(self) -> int:
        return int(self._db.execute("PRAGMA user_version").fetchone()[0])


def keep_private(path: Path) -> None:
    """Keep the file from others, but for a group: it holds all prompts. SQLite's log gets its rights."""
    if str(path) == ":memory:":
        return
    path.touch(0o600)  # opens none that is there: closing it would give up the locks of SQLite's other connections
    if path.stat().st_mode & 0o007:
        with suppress(PermissionError):  # another's file
            path.chmod(0o600)


def require_usable(path: Path) -> None:
    """Raise `StoreError` if the ledger cannot be kept at `path`; SQLite's log needs its directory."""
    nearest = next(parent for parent in path.absolute().parents if parent.exists())
    if path.exists() and not path.is_file():
        what = "is a directory" if path.is_dir() else "is no regular file but a pipe or a device"
    elif not nearest.is_dir():
        what = f"cannot be made: {nearest} is a file"
    elif not os.access(nearest, os.W_OK | os.X_OK):
        what = f"cannot be written: {nearest} gives you no right to"
    elif path.exists() and not os.access(path, os.R_OK | os.W_OK):
        what = "cannot be written: it gives you no right to"
    else:
        return
    raise StoreError(f"the ledger {path} {what}; name another file with --ledger, or leave it out for the output's own")


NETWORK_FILE_SYSTEMS = {
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "ceph", "gpfs", "beegfs", "fuse.sshfs", "9p", "afs"),
}


def network_file_system(path: Path, mounts: Path = Path("/proc/mounts")) -> str:
    """The type of the network file system that holds `path`, empty for a local disk or if unknown."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    real = path.parent.resolve()
    mounted = [(Path(parts[1].replace("\\040", " ")), parts[2]) for line in lines if len(parts := line.split()) > 2]
    holding = [(len(point.parts), n, kind) for n, (point, kind) in enumerate(mounted) if real.is_relative_to(point)]
    kind = max(holding, default=(0, 0, ""))[2]  # of several mounts of one place, the last
    return kind if kind in NETWORK_FILE_SYSTEMS else ""
