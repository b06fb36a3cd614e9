"""Recovery of a damaged ledger: the rows that SQL still reads begin a new one.

The damaged file is set aside. Rows before the damage are read from the start of a table, rows behind it from the end.
What runs have spent is in one table, and again as the prices of the answers in another: a single damaged page leaves
one of the two whole. If both are damaged nothing is replaced, since budgets would forget. Answers that SQL does not
reach are for SQLite's own tool.
"""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

from afarm.core.errors import StoreError
from afarm.judging.database import Row, Transaction
from afarm.judging.ledger import LIVE_SECONDS, Ledger
from afarm.judging.ledger_schema import LEDGER_COLUMNS

PAGE = 4096
"""Bytes per page of every ledger."""

STORED_BY_ROW_NUMBER = ("completions", "in_flight")
"""Tables whose rows are stored in the order in which they were written; others are stored by their first column."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """Answers in the new ledger, the place of the damaged file, and tables of which rows may be missing.

    `lost_dollars` is what runs have spent beyond the prices of the answers: at least that was paid for lost ones.
    """

    answers: int
    damaged: Path
    incomplete: tuple[str, ...]
    lost_dollars: float


def is_sound(path: Path) -> bool:
    """Check every page of the ledger at `path`."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            return db.execute("PRAGMA integrity_check").fetchall() == [("ok",)] and set(LEDGER_COLUMNS) <= tables
    except sqlite3.Error:
        return False


def recover(path: Path) -> Recovery:
    """Replace a damaged ledger by its readable rows. Raises `StoreError` if spending is lost or in use."""
    with TemporaryDirectory(dir=path.parent, prefix=".recovery-") as place:
        copy, new = Path(place) / "copy.sqlite", Path(place) / "new.sqlite"
        for ending in ("", "-wal"):  # a damaged file is copied as it is: SQLite's backup refuses many
            with suppress(FileNotFoundError):
                shutil.copyfile(f"{path}{ending}", f"{copy}{ending}")
        incomplete: set[str] = set()
        Ledger(new).close()  # which writes its log back
        with Ledger(new) as ledger, closing(_opened(copy, new)) as damaged:
            with suppress(sqlite3.Error):
                alive = "SELECT 1 FROM in_flight WHERE seen > ? LIMIT 1"
                if damaged.execute(alive, [time.time() - LIVE_SECONDS]).fetchone():
                    raise StoreError(f"{path} is in use by another process: stop it, then recover the ledger")
            ledger.database.write(lambda db: _copy_rows(damaged, db, incomplete))
            if {"spent", "completions"} <= incomplete:
                raise StoreError(
                    f"what was spent cannot be read from {path}: restore a copy of it, or move it away and begin with "
                    f"--start-anew, where budgets begin at 0; `sqlite3 {path} .recover` may save its answers"
                )
            spent, paid = (
                float(ledger.read(f"SELECT TOTAL({amount}) FROM {table}")[0][0])
                for amount, table in (("dollars", "spent"), ("price", "completions"))
            )
            [(answers,)] = ledger.read("SELECT COUNT(*) FROM completions")
        numbered = (path.with_name(f"ledger.damaged-{number}.sqlite") for number in count(1))
        aside = next(name for name in numbered if not name.exists())
        Path(f"{path}-shm").unlink(missing_ok=True)
        if (log := Path(f"{path}-wal")).exists():
            log.rename(f"{aside}-wal") if log.stat().st_size else log.unlink()
        path.rename(aside)
        new.rename(path)
    return Recovery(answers, aside, tuple(sorted(incomplete)), max(0.0, spent - paid))


def _opened(copy: Path, new: Path) -> sqlite3.Connection:
    """Open a damaged file, if need be with the first page of a new ledger: all are made alike."""
    db = sqlite3.connect(copy, isolation_level=None)
    db.execute("PRAGMA writable_schema = ON")  # reads a file that is shorter than its header says
    with suppress(sqlite3.DatabaseError):
        if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'completions'").fetchone():
            return db
    if copy.stat().st_size >= PAGE:
        first = new.read_bytes()[:PAGE]
        with copy.open("r+b") as file:
            file.write(first[:28] + bytes(4) + first[32:])  # without the number of pages
    return db


def _copy_rows(damaged: sqlite3.Connection, db: Transaction, incomplete: set[str]) -> None:
    """Copy the rows of all tables, and count at least the prices of a run's answers as spent by it."""
    for table, names in LEDGER_COLUMNS.items():
        marks = ",".join("?" * len(names.split(", ")))
        rows = _rows_from_both_ends(damaged, table, incomplete)
        db.executemany(f"INSERT OR IGNORE INTO {table} ({names}) VALUES ({marks})", rows)
    db.execute(
        "INSERT INTO spent SELECT run, SUM(price) FROM completions WHERE run NOT NULL AND price > 0 GROUP BY run "
        "ON CONFLICT (run) DO UPDATE SET dollars = MAX(dollars, excluded.dollars)"
    )


def _rows_from_both_ends(db: sqlite3.Connection, table: str, incomplete: set[str]) -> Iterator[Row]:
    """Yield rows up to the damage, then from the end back to it, noting a damaged table in `incomplete`."""
    order = "rowid" if table in STORED_BY_ROW_NUMBER else LEDGER_COLUMNS[table].partition(",")[0]
    for direction in ("ASC", "DESC"):
        try:
            yield from db.execute(f"SELECT {LEDGER_COLUMNS[table]} FROM {table} ORDER BY {order} {direction}")
            return
        except sqlite3.Error:
            incomplete.add(table)
