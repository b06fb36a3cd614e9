"""Recovery of a damaged ledger: the rows that can still be read, copied into a new file.

The damaged file stays beside the new one. Answers are what was paid for: every page that holds some is read by itself,
so that no other page has to be whole. Of the other tables what lies before and behind the damage is saved. Judgements
that are lost are read from the answers again.
"""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from afarm.core.errors import StoreError
from afarm.judging.database import Transaction
from afarm.judging.ledger import LIVE_SECONDS, Ledger
from afarm.judging.ledger_pages import PAGE, rows_in_leaves
from afarm.judging.ledger_schema import column_names

TABLES = ("completions", "judgements", "in_flight", "spent", "stage_spend", "reuse", "batch_requests")


@dataclass(frozen=True, slots=True)
class Recovery:
    """Rows saved, by table, and where the damaged file lies now.

    `lost_answers` are those that saved judgements were read from and that are gone, `lost_dollars` what the runs have
    spent beyond what the saved answers have cost. Both are the least: more is lost where the tables that tell are.
    """

    saved: dict[str, int]
    damaged: Path
    lost_answers: int
    lost_dollars: float

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
        for ending in ("", "-wal"):  # what is in the log counts; the index of it is made anew
            with suppress(FileNotFoundError):
                shutil.copyfile(f"{path}{ending}", f"{copy}{ending}")
        with Ledger(new) as ledger:
            with closing(_opened(copy, new)) as damaged:
                _refuse_if_in_use(damaged, path)
                saved = {"completions": _save(ledger, "completions", filter(_makes_sense, _answers(damaged, copy)))}
                saved |= {table: _save(ledger, table, _from_both_ends(damaged, table)) for table in TABLES[1:]}
            lost = _known_losses(ledger)
            _count_spending_again(ledger)
        if not any(saved.values()):
            raise StoreError(f"nothing can be read of {path}: restore a copy of it, or move it away to start anew")
        names = (path.with_name(f"ledger.damaged-{number}.sqlite") for number in count(1))
        aside = next(name for name in names if not name.exists())
        Path(f"{path}-shm").unlink(missing_ok=True)
        if (log := Path(f"{path}-wal")).exists():
            log.rename(f"{aside}-wal") if log.stat().st_size else log.unlink()
        path.rename(aside)
        new.rename(path)
    return Recovery(saved, aside, *lost)


def _opened(copy: Path, new: Path) -> sqlite3.Connection:
    """Open what is left. Without a readable first page, it gets that of a new ledger: all are made alike."""
    db = _connected(copy)
    with suppress(sqlite3.DatabaseError):
        if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'completions'").fetchone():
            return db
    if copy.stat().st_size < PAGE:
        return db
    db.close()
    with closing(sqlite3.connect(new)) as fresh:
        fresh.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    first = bytearray(new.read_bytes()[:PAGE])
    first[28:32] = (copy.stat().st_size // PAGE).to_bytes(4, "big")
    with copy.open("r+b") as file:
        file.write(first)
    return _connected(copy)


def _connected(copy: Path) -> sqlite3.Connection:
    db = sqlite3.connect(copy, isolation_level=None)
    db.text_factory = lambda text: text.decode("utf-8", "replace")
    db.execute("PRAGMA writable_schema = ON")  # reads a file that is shorter than its header says
    return db


def _refuse_if_in_use(damaged: sqlite3.Connection, path: Path) -> None:
    with suppress(sqlite3.Error):
        alive = "SELECT 1 FROM in_flight WHERE seen > ? LIMIT 1"
        if damaged.execute(alive, [time.time() - LIVE_SECONDS]).fetchone():
            raise StoreError(f"{path} is in use by another process: stop it, then recover the ledger")


def _answers(damaged: sqlite3.Connection, copy: Path) -> Iterator[Sequence[Any]]:
    """Yield the rows of the copy's table of answers, those that are only in its log too."""
    with suppress(sqlite3.Error):
        damaged.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    yield from rows_in_leaves(copy, len(column_names("completions")))


def _save(ledger: Ledger, table: str, rows: Iterable[Sequence[Any]]) -> int:
    """Put rows into a table, and return how many there are."""
    before = ledger.read(f"SELECT COUNT(*) FROM {table}")[0][0]
    columns = len(ledger.read(f"PRAGMA table_info({table})"))

    def insert(db: Transaction) -> None:
        marks = ",".join("?" * columns)
        for row in rows:
            if len(row) == columns:
                db.execute(f"INSERT OR IGNORE INTO {table} VALUES ({marks})", row)

    ledger.database.write(insert)
    return int(ledger.read(f"SELECT COUNT(*) FROM {table}")[0][0] - before)


def _from_both_ends(db: sqlite3.Connection, table: str) -> Iterator[Sequence[Any]]:
    """Yield the rows of a table up to the damage, then from the end back to it."""
    try:
        info = db.execute(f"PRAGMA table_info({table})").fetchall()
    except sqlite3.Error:
        return
    key = [name for _, name, *_, position in sorted(info, key=lambda row: row[-1]) if position] or ["rowid"]
    for direction in ("ASC", "DESC"):
        order = ", ".join(f"{name} {direction}" for name in key)
        with suppress(sqlite3.Error):
            for row in db.execute(f"SELECT * FROM {table} ORDER BY {order}"):  # noqa: UP028 - a failure ends the scan
                yield row
            return


def _makes_sense(row: Sequence[Any]) -> bool:
    """Tell if a row is an answer, and no remains of a page that was overwritten."""
    key, request, text, price = row[0], row[5], row[6], row[10]
    try:
        asked = json.loads(request)
    except (TypeError, ValueError):
        return False
    plausible = isinstance(text, str) and (price is None or isinstance(price, int | float))
    return plausible and isinstance(asked, dict) and bool(re.fullmatch(r"[0-9a-f]{32}", str(key)))


def _known_losses(ledger: Ledger) -> tuple[int, float]:
    """Count the answers that judgements name and that are gone, and dollars that bought no saved one."""
    answers = "SELECT COUNT(DISTINCT completion) FROM judgements WHERE completion NOT IN (SELECT key FROM completions)"
    of_saved = "SELECT TOTAL(price) FROM completions WHERE completions.run = spent.run"
    dollars = f"SELECT TOTAL(MAX(0, dollars - ({of_saved}))) FROM spent"
    return int(ledger.read(answers)[0][0]), float(ledger.read(dollars)[0][0])


def _count_spending_again(ledger: Ledger) -> None:
    """Count at least what the saved answers have cost as spent by each run: budgets hold."""
    spent = (
        "INSERT INTO spent SELECT run, SUM(price) FROM completions WHERE run NOT NULL AND price > 0 GROUP BY run "
        "ON CONFLICT (run) DO UPDATE SET dollars = MAX(dollars, excluded.dollars)"
    )
    ledger.database.write(lambda db: db.execute(spent))
