"""The seam under the ledger: a database with tables of its own, read and written by plain SQL.

Statements are what SQLite and PostgreSQL both take, with `?` for values. What one of them says in its own way is an
attribute here.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from afarm.core.errors import ConfigError, StoreError
from afarm.storage.text import without_passwords

Place = Path | str
"""Of a ledger: a file of SQLite, or the URL of a database of PostgreSQL."""

SCHEMES = ("postgresql", "postgres")
"""Of URLs that name a database of PostgreSQL."""

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
    def write(self, work: Callable[[Transaction], T]) -> T:
        """Do `work` in one transaction, alone among all writers: all that it writes is kept, or nothing.

        It may be done again, after an attempt of which nothing was kept.
        """

    @abstractmethod
    def read(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        """Return the rows of a query."""

    @abstractmethod
    def now(self) -> float:
        """Return the Unix time in seconds, by the database's clock if it has one of its own."""

    @abstractmethod
    def close(self) -> None: ...


def is_url(place: Place) -> bool:
    """Tell if a ledger's place is a URL. Raises `ConfigError` if it is one of no known kind."""
    if isinstance(place, str) and re.match(f"({'|'.join(SCHEMES)}):(?!//)", place):
        raise ConfigError(f"--ledger {place.partition(':')[0]}:… is no URL: name a file, or postgresql://HOST/DATABASE")
    scheme, separator, _ = str(place).partition("://")
    if separator and isinstance(place, str) and scheme not in SCHEMES:
        raise ConfigError(f"--ledger {scheme}://…: name a file, or postgresql://HOST/DATABASE")
    return bool(separator) and isinstance(place, str)


def fixed_place(place: Place) -> Place:
    """Return a place that stays the same if the process changes its directory."""
    return place if is_url(place) else Path(place).absolute()


def open_database(place: Place) -> Database:
    """Open the database at `place`, and make its tables if it has none."""
    if is_url(place):
        from afarm.judging.postgres_database import PostgresDatabase

        return PostgresDatabase(str(place))
    from afarm.judging.sqlite_database import SqliteDatabase

    return SqliteDatabase(Path(place))


def is_there(place: Place) -> bool:
    """Tell if there is a ledger at `place`, without making one.

    Raises `StoreError` if its directory may not be read.
    """
    if is_url(place):
        from afarm.judging.postgres_database import has_tables

        return has_tables(str(place))
    path = Path(place)
    try:
        return path.is_file() and path.stat().st_size > 0
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from error


def shown_place(place: Place) -> str:
    """Return a ledger's place as it is shown to people and given to commands, without a password."""
    return without_passwords(str(place))


def other_tables(found: int, known: int) -> str:
    """Say that a ledger's tables are of another version of afarm, and what to do."""
    if found > known:
        return f"it was written by a newer afarm (tables {found}, known {known}): install that one"
    return f"it was written by an older afarm (tables {found}, known {known}): use that one, or begin a new ledger"
