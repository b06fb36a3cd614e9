"""A ledger's database on a PostgreSQL server, for processes of several machines.

Its tables are in the schema `afarm` of the URL's database. A server that restarts, or a connection that breaks, is
waited for, and the transaction done again. If the connection breaks during a commit, the server is asked what became of
it (`txid_status`; PostgreSQL manual, section 9.27.7).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit

from afarm import ConfigError, StoreError
from afarm.judging import LEDGER_SCHEMA, LEDGER_VERSION, Database, explain_version, split_statements
from afarm.results import Transaction, redact_place

if TYPE_CHECKING:
    import psycopg

T = TypeVar("T")

PATIENCE = 60.0
"""Seconds for which a server that was there is waited for, and for another process that writes."""

STARTING = 5.0
"""Seconds for which a server that was not there yet is waited for: one that restarts."""

CONNECTION = {
    "application_name": "afarm",
    "client_encoding": "UTF8",
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
}
"""Parameters of libpq, unless the URL has others: a connection that is cut is given up after some 20 s."""

SESSION = f"""
SET search_path TO afarm;
SET lock_timeout = '{PATIENCE:.0f}s';
SET idle_in_transaction_session_timeout = '20s';
SET tcp_keepalives_idle = 10;
SET tcp_keepalives_interval = 5;
SET tcp_keepalives_count = 3
"""
"""Settings of each session. The last ones free what a machine that is cut off has locked."""

ALONE = "SELECT txid_current(), pg_advisory_xact_lock(6321709431)"
"""Locks out other writers until the transaction ends, and numbers it."""

TABLES = LEDGER_SCHEMA.replace(" WITHOUT ROWID", "").replace("REAL", "DOUBLE PRECISION").replace("INTEGER", "BIGINT")
EXTRA = """
ALTER TABLE completions ADD COLUMN number BIGINT GENERATED ALWAYS AS IDENTITY UNIQUE;
CREATE TABLE version (tables INTEGER NOT NULL)
"""
THERE = """
SELECT 1 FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE nspname = 'afarm' AND relname = 'version'
"""
"""Tables as SQLite's, with its number of each row and its version of the tables."""


class PostgresDatabase(Database):
    """The tables of a ledger on a server. Each instance has a connection of its own."""

    day_of_creation = "to_char(to_timestamp(created), 'YYYY-MM-DD')"
    row_number = "number"

    def __init__(self, place: str):
        """Connect, and make missing tables. Raises `StoreError`, or `ConfigError` for an unreadable URL."""
        self._server = _Server(place)
        self.name = self._server.name
        self._lock = threading.RLock()
        with self._server.explained("used"):
            self._db = self._server.connect(STARTING)
            self._clock = self._server_time()
        self._make_tables()

    @classmethod
    def is_there(cls, place: str) -> bool:
        server = _Server(place)
        with server.explained("used"), server.connect(STARTING) as db:
            return db.execute(THERE).fetchone() is not None

    def write(self, work: Callable[[Transaction], T]) -> T:
        with self._lock, self._server.explained("written"):
            return self._again(lambda: self._attempt(work))

    def read(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._lock, self._server.explained("read"):
            return self._again(lambda: self._db.execute(_with_placeholders(statement), values).fetchall())

    def now(self) -> float:
        return self._clock + time.monotonic()

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def _attempt(self, work: Callable[[Transaction], T]) -> T:
        """Do one transaction. A failed commit of unknown outcome is looked up."""
        try:
            self._db.execute("BEGIN")
            number = _one(self._db.execute(ALONE))
            result = work(_Statements(self._db, self._server.driver))
        except BaseException:
            with suppress(self._server.driver.Error):  # then its connection is closed, and the server forgets it
                if not self._db.closed:
                    self._db.execute("ROLLBACK")
            raise
        try:
            self._db.execute("COMMIT")
        except self._server.driver.Error:
            if not self._db.closed or not self._was_committed(number):
                raise
        return result

    def _was_committed(self, number: int) -> bool:
        """Ask the server, once it can be reached, what became of the transaction with this number."""
        deadline = time.monotonic() + PATIENCE
        while True:
            self._again(lambda: None)
            try:
                state = _one(self._db.execute("SELECT txid_status(%s)", [number]))
            except self._server.driver.errors.InvalidParameterValue:  # a number that a restored server never gave
                return False
            except self._server.driver.OperationalError:
                state = "in progress"
            if state != "in progress" or time.monotonic() > deadline:
                return bool(state == "committed")
            time.sleep(0.05)  # the server has not noticed yet that the connection is gone

    def _again(self, attempt: Callable[[], T]) -> T:
        """Return what `attempt` gives, with patience on new connections if this one broke."""
        errors = self._server.driver.errors
        deadline = time.monotonic() + PATIENCE
        while True:
            if self._db.closed:
                self._db = self._server.connect(deadline - time.monotonic())
            used = self._db  # a look at what became of a commit may put another one in its place
            try:
                return attempt()
            except (errors.SerializationFailure, errors.DeadlockDetected):
                if time.monotonic() > deadline:
                    raise
            except self._server.driver.OperationalError:
                if not used.closed or time.monotonic() > deadline:
                    raise

    def _server_time(self) -> float:
        """Return what to add to this process's own clock for the server's time."""
        before = time.monotonic()
        seconds = float(_one(self._db.execute("SELECT extract(epoch FROM clock_timestamp())")))
        return seconds - (before + time.monotonic()) / 2

    def _make_tables(self) -> None:
        """Make the tables if there are none. Raises `StoreError` if they are of another version."""
        if self.read("SHOW server_encoding") not in ([("UTF8",)], [("SQL_ASCII",)]):
            raise StoreError(
                f"the ledger {self.name} cannot hold every text, as its encoding is not UTF8: make another with "
                "`createdb --encoding UTF8 --template template0 NAME`"
            )
        if not self.read(THERE):
            self.write(self._make_missing_tables)
        if (found := self.read("SELECT tables FROM afarm.version")) != [(LEDGER_VERSION,)]:
            raise StoreError(f"the ledger {self.name} cannot be used: {explain_version(found[0][0], LEDGER_VERSION)}")

    def _make_missing_tables(self, db: Transaction) -> None:
        if not db.execute(THERE).fetchone():  # another process may have made them while this one waited
            if not db.execute("SELECT 1 FROM pg_namespace WHERE nspname = 'afarm'").fetchone():
                db.execute("CREATE SCHEMA afarm")  # a right that its owner need not have
            for statement in split_statements(TABLES + EXTRA):
                db.execute(statement)
            db.execute("INSERT INTO version VALUES (?)", [LEDGER_VERSION])


def _one(cursor: Any) -> Any:
    return cursor.fetchone()[0]


class _Statements:
    """A connection that takes the ledger's statements, with `?` for values."""

    def __init__(self, db: psycopg.Connection[Any], driver: Any):
        self._db, self._driver = db, driver

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> psycopg.Cursor[Any]:
        return self._db.execute(_with_placeholders(statement), values)

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> None:
        # The driver's own way is a pipeline, after which PostgreSQL 15 forgets the session's time limit when idle.
        cursor = self._driver.ClientCursor(self._db)
        if filled := [cursor.mogrify(_with_placeholders(statement), row) for row in rows]:
            cursor.execute(";".join(filled).encode())


def _with_placeholders(statement: str) -> bytes:
    return statement.replace("?", "%s").encode()


class _Server:
    """A database of a server by its URL: how to connect to it, and what to say if it does not do."""

    def __init__(self, url: str):
        try:
            import psycopg
        except ImportError as error:
            text = "--ledger postgresql://… needs psycopg: pip install 'afarm[postgres]'"
            raise ConfigError(text) from error
        self.driver = psycopg
        self._secrets = _secrets(url)
        try:
            given = psycopg.conninfo.conninfo_to_dict(url)
        except psycopg.Error as error:
            raise ConfigError(f"--ledger: this URL cannot be read: {self._cleaned(error)}") from error
        self.parameters = {**CONNECTION, **{name: str(value) for name, value in given.items()}}
        self.database = self.parameters.get("dbname", "")
        self.user = self.parameters.get("user", "")
        self.name = redact_place(url)

    def connect(self, patience: float) -> psycopg.Connection[Any]:
        """Connect, for up to `patience` seconds while the server does not answer or is starting."""
        deadline, pause = time.monotonic() + patience, 0.05
        while True:
            try:
                db = self.driver.connect(autocommit=True, prepare_threshold=None, **self.parameters)  # type: ignore[arg-type]
                break
            except self.driver.OperationalError as error:
                if time.monotonic() + pause > deadline or any(reason in str(error) for reason in FINAL):
                    raise
            time.sleep(pause)
            pause = min(2 * pause, 1.0)
        self.database, self.user = db.info.dbname, db.info.user
        db.adapters.register_loader("numeric", _number_loader())
        offset = time.localtime().tm_gmtoff // 60
        db.execute(f"{SESSION}; SET TIME ZONE INTERVAL '{offset} minutes'".encode())
        return db

    @contextmanager
    def explained(self, verb: str) -> Iterator[None]:
        """Turn the driver's errors into a `StoreError` with the way out."""
        try:
            yield
        except self.driver.Error as error:
            said = self._cleaned(error)
            raise StoreError(f"the ledger {self.name} cannot be {verb}: {said}; {self._way_out(error)}") from None

    def _cleaned(self, error: Exception) -> str:
        """Return the message of an error on one line, without the URL's password."""
        text = " ".join(str(error).split())
        for secret in self._secrets:
            text = text.replace(secret, "[password]")
        return text

    def _way_out(self, error: psycopg.Error) -> str:
        errors, text = self.driver.errors, str(error)
        if isinstance(error, errors.InsufficientPrivilege):
            missing = CREATING if "database" in text else USING
            return f"its owner gives you the right: psql {self.database} -c '{missing.format(user=self.user)}'"
        if "password" in text:
            return "put the right one into ~/.pgpass or the variable PGPASSWORD"
        if "does not exist" in text:
            return f"make it: createdb {self.database}" if "database" in text else "name another in the URL, USER@HOST"
        if "too many" in text:
            return "raise its max_connections, or start fewer workers"
        if isinstance(error, errors.LockNotAvailable):
            return f"another process has been writing for {PATIENCE:.0f} s: `SELECT * FROM pg_stat_activity` names it"
        if isinstance(error, errors.DiskFull):
            return "make room on the server: the same command then goes on"
        return "start the server, or name another with --ledger: the same command then goes on"


CREATING = 'CREATE SCHEMA afarm AUTHORIZATION "{user}"'
USING = (
    'GRANT USAGE ON SCHEMA afarm TO "{user}"; '
    'GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA afarm TO "{user}"'
)
"""The rights of a user who makes the tables, and of one who uses those of another."""


FINAL = ("authentication", "does not exist", "password", "pg_hba.conf", "not permitted")
"""What a failed connection says if the next one will fail too."""


def _secrets(url: str) -> list[str]:
    """Return the passwords in a URL, as they are written and as they are meant."""
    _, _, rest = url.partition("://")
    login, at, _ = rest.partition("?")[0].rpartition("@")
    passwords = [login.partition(":")[2]] if at else []
    passwords += [word.partition("=")[2] for word in urlsplit(url).query.split("&") if "password" in word]
    return [form for password in passwords if password for form in (password, unquote(password))]


def _number_loader() -> type:
    """Read sums and means as SQLite gives them: whole numbers as such."""
    from psycopg.adapt import Loader

    class NumberLoader(Loader):
        def load(self, data: Any) -> int | float:
            text = bytes(data).decode()
            return int(text) if text.lstrip("-").isdigit() else float(text)

    return NumberLoader
