"""The seam under the ledger: a database with tables of its own, read and written by plain SQL.

Statements are what SQLite and PostgreSQL both take, with `?` for values. What one of them says in its own way is an
attribute here. A file is opened by SQLite, a URL by the database that a plugin registers for its scheme.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from afarm.core.errors import ConfigError, require_promise
from afarm.storage.text import without_passwords

Place = Path | str
"""The place of a ledger: a file of SQLite, or the URL of a database that a plugin brings."""

PLACES = "name a file, or postgresql://HOST/DATABASE"
"""What a message about a wrong place of a ledger advises."""

Row = tuple[Any, ...]
T = TypeVar("T")


class Cursor(Protocol):
    """The rows of a statement, and the number of those that it changed."""

    @property
    def rowcount(self) -> int: ...
    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...


class Transaction(Protocol):
    """A transaction that is open."""

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> Cursor: ...
    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> Any: ...


class Database(ABC):
    """One connection to a ledger's tables, for several threads; other processes have theirs.

    Every method raises `StoreError` if the database cannot do it, with the way out.
    """

    name: str
    """The database as it is shown to people, without a password."""

    day_of_creation: ClassVar[str]
    """SQL for the day of the column `created`, as "2026-01-31"."""

    row_number: ClassVar[str]
    """SQL for a number of each row of `completions` that grows as they are written."""

    @abstractmethod
    def __init__(self, place: Any):
        """Open the database at `place`, and make its tables (`LEDGER_SCHEMA`) if it has none."""

    @classmethod
    @abstractmethod
    def is_there(cls, place: Any) -> bool:
        """Tell if there is a ledger at `place`, without making one."""

    @abstractmethod
    def write(self, work: Callable[[Transaction], T]) -> T:
        """Do `work` in one transaction, alone among writers; perhaps again after an attempt that left nothing."""

    @abstractmethod
    def read(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        """Return the rows of a query."""

    @abstractmethod
    def now(self) -> float:
        """Return the Unix time in seconds, by the database's clock if it has one of its own."""

    @abstractmethod
    def close(self) -> None: ...


def is_url(place: Place) -> bool:
    """Tell if a place is a URL. Raises `ConfigError` for a misspelt one or one that no plugin opens."""
    if not _scheme(place):
        return False
    _database_class(place)
    return True


def fixed_place(place: Place) -> Place:
    """Return a place that stays the same if the process changes its directory."""
    return place if is_url(place) else Path(place).absolute()


def open_database(place: Place) -> Database:
    """Open the database at `place`, and make its tables if it has none."""
    return _database_class(place)(place)


def is_there(place: Place) -> bool:
    """Tell if there is a ledger at `place`, without making one. Raises `StoreError` if that is not known."""
    return _database_class(place).is_there(place)


def _scheme(place: Place) -> str:
    """Return the scheme of a URL; empty for a file. Raises `ConfigError` for a misspelt URL."""
    match = re.match("([A-Za-z][A-Za-z0-9+.-]*):(//)?", place) if isinstance(place, str) else None
    if match and not match[2]:
        raise ConfigError(f"--ledger {match[1]}:… is no URL: {PLACES} (a file of that name is ./{match[1]}:…)")
    return match[1] if match else ""


def _database_class(place: Place) -> type[Database]:
    """Return the class of the database at `place`. Raises `ConfigError` if no plugin opens such URLs."""
    scheme = _scheme(place)
    if not scheme:
        from afarm.judging.sqlite_database import SqliteDatabase

        return SqliteDatabase
    from afarm.core.plugins import load_by_scheme

    unknown = f"--ledger {scheme}://…: no plugin opens it: {PLACES} (pip install 'afarm[postgres]')"
    loaded: type[Database] = load_by_scheme("databases", scheme, unknown)
    fits = isinstance(loaded, type) and issubclass(loaded, Database)
    require_promise(fits, "databases", scheme, f"{loaded!r} is no class of afarm.judging.Database", loaded)
    return loaded


def redact_place(place: Place) -> str:
    """Return a ledger's place without its password, for messages and commands."""
    return without_passwords(str(place))


def explain_version(found: int, known: int) -> str:
    """Say that a ledger's tables are of another version of afarm, and what to do."""
    if found > known:
        return f"it was written by a newer afarm (tables {found}, known {known}): install that one"
    return f"it was written by an older afarm (tables {found}, known {known}): use that one, or begin a new ledger"
