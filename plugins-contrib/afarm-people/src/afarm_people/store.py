"""Labels on disk: one SQLite file per project, with its pairs, people, sessions and assignments.

An assignment is a pair given to a person, and holds the label once there is one. Every change is one transaction, on
disk before its answer is sent, so that a kill loses nothing, and several windows or processes may work at once.

Choices are numbers: -2 and 2 say that output_1 and output_2 is better, -1 and 1 slightly so, 0 that neither is.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from afarm import DataError, JudgedPair, Pair, Preference, StoreError, seeding

FORMAT = "1"
SCHEMA = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE pairs (
    id TEXT PRIMARY KEY, kind TEXT NOT NULL, position REAL NOT NULL, row TEXT NOT NULL, extra TEXT NOT NULL
);
CREATE TABLE people (
    id INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL, pseudonym TEXT UNIQUE NOT NULL, secret TEXT NOT NULL,
    state TEXT NOT NULL, why TEXT NOT NULL DEFAULT '', outside TEXT NOT NULL DEFAULT '{}', joined REAL NOT NULL
);
CREATE TABLE sessions (
    id INTEGER PRIMARY KEY, person INTEGER REFERENCES people ON DELETE CASCADE, token TEXT NOT NULL
);
CREATE TABLE assignments (
    person INTEGER NOT NULL REFERENCES people ON DELETE CASCADE, pair TEXT NOT NULL REFERENCES pairs,
    number INTEGER NOT NULL, shown TEXT NOT NULL, given REAL NOT NULL, opened REAL, skipped INTEGER NOT NULL DEFAULT 0,
    choice INTEGER, reason TEXT NOT NULL DEFAULT '', seconds REAL, labelled REAL, version INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (person, pair), UNIQUE (person, number)
);
CREATE INDEX assignments_of_pairs ON assignments (pair);
"""

PAIR, EQUAL, GOLD, CHECK = "pair", "equal", "gold", "check"
"""Kinds of pairs: to be labelled; with equal responses, which are draws; with a known answer, for qualification and to
check attention."""

JUST = 10.0
"""Seconds for which a pair counts as just given: a page that is opened then needs no write."""

State = Literal["qualifying", "active", "failed", "discarded"]

TAKEN = """(SELECT count(*) FROM assignments a JOIN people q ON q.id = a.person WHERE a.pair = pairs.id
    AND a.person != :person AND q.state = 'active' AND (a.choice IS NOT NULL OR a.given > :oldest))"""
"""SQL: how many others have labelled a pair, or have it before them now."""


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody who labels, `outside` by the ids of a service; `why` says how they came to their state."""

    id: int
    name: str
    pseudonym: str
    state: State
    why: str
    outside: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Assignment:
    """A pair before a person. `shown` is "12" if output_1 came first; `choice` is None without a label."""

    person: int
    pair: str
    number: int
    shown: str
    opened: float | None
    skipped: bool
    choice: int | None
    reason: str
    version: int
    kind: str
    row: Mapping[str, Any]

    @property
    def shown_choice(self) -> int | None:
        """The choice as it was shown: below 0 for the first response."""
        return self.choice if self.choice is None or self.shown == "12" else -self.choice


@dataclass(frozen=True, slots=True)
class Labelled:
    """A label of an active person: its pair's record, further columns of its row, and how it came about."""

    pair: Pair
    extra: Mapping[str, Any]
    pseudonym: str
    person: int
    choice: int
    shown: str
    reason: str
    seconds: float
    labelled: float

    @property
    def win(self) -> float:
        """The win of output_2: 1 and 0, or one half if neither is better."""
        return (self.choice > 0) + 0.5 * (self.choice == 0)

    def judged(self) -> JudgedPair:
        """The label as a record; "slightly" is its strength, 0.5."""
        decided, id = self.choice != 0, self.pair.id
        strength = {1: 0.5, 2: 1.0}[abs(self.choice)] if decided else None
        outcome: Any = "decided" if decided else "draw"
        label = Preference(id, self.win if decided else None, outcome, "human", strength, order=self.shown)
        return JudgedPair(self.pair, label, self.pseudonym)


class ProjectStore:
    """The file of a project. Methods are transactions, and may be called by any thread."""

    def __init__(self, path: Path, seed: int = 0):
        """Open or make the file; `seed` counts when it is made. Raises `StoreError` if it cannot be."""
        self.path = path
        try:
            path.touch(0o600)  # it names people; one that is there is not opened, which would cost SQLite its locks
            self.db = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
            self.db.row_factory = sqlite3.Row
            self.lock = threading.RLock()
            for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON", "secure_delete = ON"):
                self.db.execute(f"PRAGMA {pragma}")
            with self.writing():
                if not self.db.execute("SELECT 1 FROM sqlite_master").fetchone():
                    for statement in SCHEMA.split(";"):
                        self.db.execute(statement)
                    project = seeding.digest(os.urandom(16).hex(), length=8)
                    for name, value in {"format": FORMAT, "seed": str(seed), "project": project}.items():
                        self.set(name, value)
            if (found := self.get("format")) != FORMAT:
                raise StoreError(f"{path}: is of format {found}, and this afarm-people reads {FORMAT}: update it")
        except (OSError, sqlite3.Error) as error:
            raise StoreError(f"{path}: cannot be opened ({error}): name another file with --store FILE") from error
        self.project, self.seed = self.get("project"), int(self.get("seed"))

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Make a transaction, which is on disk when it ends."""
        with self.lock:
            if self.db.in_transaction:
                yield self.db
                return
            self.db.execute("BEGIN IMMEDIATE")
            try:
                yield self.db
                self.db.execute("COMMIT")
            except BaseException:
                self.db.execute("ROLLBACK")
                raise

    def rows(self, statement: str, **values: Any) -> list[sqlite3.Row]:
        with self.lock:
            return self.db.execute(statement, values).fetchall()

    def row(self, statement: str, **values: Any) -> Any:
        """The first row of an answer; None if it is empty."""
        return next(iter(self.rows(statement, **values)), None)

    def get(self, name: str) -> str:
        found = self.row("SELECT value FROM meta WHERE name = :name", name=name)
        return found["value"] if found else ""

    def set(self, name: str, value: str) -> None:
        with self.writing() as db:
            db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))

    def close(self) -> None:
        self.db.close()

    # ------------------------------------------------------------------------------------------------------- pairs

    def add_pairs(
        self, pairs: Iterable[tuple[Pair, Mapping[str, Any]]], kind: str = PAIR, ordered: bool = False
    ) -> int:
        """Add pairs that are not there yet, each with further columns; return their number.

        They are handed out in an order drawn by the seed, or, if they are `ordered`, as given. Raises `DataError` if
        the file has pairs to be labelled, and none of these.
        """
        listed = list(pairs)
        with self.writing() as db:
            there = {row["id"] for row in self.rows("SELECT id FROM pairs WHERE kind = :kind", kind=kind)}
            if kind == PAIR and there and there.isdisjoint(pair.id for pair, _ in listed):
                raise DataError(
                    f"{self.path} is of other pairs: none of these {len(listed):,} is among its {len(there):,}. "
                    "Name another file for their labels: --store FILE"
                )
            count = 0
            for number, (pair, extra) in enumerate(listed):
                position = float(number) if ordered else seeding.uniform(self.seed, "position", pair.id)
                row = JudgedPair(pair, Preference(pair.id, None, "unparsed")).to_row()
                values = (pair.id, kind, position, json.dumps(row), json.dumps(dict(extra)))
                count += db.execute("INSERT OR IGNORE INTO pairs VALUES (?, ?, ?, ?, ?)", values).rowcount
        return count

    def count_pairs(self, kind: str = PAIR) -> int:
        return int(self.row("SELECT count(*) AS n FROM pairs WHERE kind = :kind", kind=kind)["n"])

    def pairs_in_order(self, kind: str) -> list[tuple[str, Pair, dict[str, Any]]]:
        """The pairs of a kind in the order that they are handed out: id, pair and further columns."""
        rows = self.rows("SELECT id, row, extra FROM pairs WHERE kind = :kind ORDER BY position, id", kind=kind)
        return [(row["id"], JudgedPair.from_row(json.loads(row["row"])).pair, json.loads(row["extra"])) for row in rows]

    def skipped_pairs(self) -> frozenset[str]:
        """The ids of pairs that somebody skipped, and has not labelled since."""
        rows = self.rows("SELECT pair FROM assignments WHERE skipped = 1 AND choice IS NULL")
        return frozenset(row["pair"] for row in rows)

    # ------------------------------------------------------------------------------------------------------ people

    def add_person(self, name: str, secret: str, state: State, outside: Mapping[str, str] | None = None) -> Person:
        """Add a person under a pseudonym that is drawn; `secret` is the digest of their link's."""
        with self.writing() as db:
            pseudonym = f"person-{os.urandom(4).hex()}"
            db.execute(
                "INSERT INTO people (name, pseudonym, secret, state, outside, joined) VALUES (?, ?, ?, ?, ?, ?)",
                (name, pseudonym, secret, state, json.dumps(dict(outside or {})), time.time()),
            )
            found = self.find_person(name)
        assert found
        return found

    def find_person(self, name: str | int) -> Person | None:
        """Find a person by name, by pseudonym or by number."""
        column = "id" if isinstance(name, int) else "name"
        row = self.row(f"SELECT * FROM people WHERE {column} = :name OR pseudonym = :name", name=name)
        return _person(row) if row else None

    def people(self) -> list[Person]:
        return [_person(row) for row in self.rows("SELECT * FROM people ORDER BY id")]

    def discard(self, person: Person, why: str) -> None:
        """Leave a person's labels out from now on: others are given their pairs."""
        self._set_state(person, "discarded", why)

    def restore(self, person: Person) -> None:
        """Take a person back, who is to be graded anew."""
        self._set_state(person, "qualifying", "")

    def qualify(self, person: Person, passed: bool, why: str) -> None:
        self._set_state(person, "active" if passed else "failed", why)

    def _set_state(self, person: Person, state: State, why: str) -> None:
        with self.writing() as db:
            db.execute("UPDATE people SET state = ?, why = ? WHERE id = ?", (state, why, person.id))
            if "discarded" in (state, person.state):
                self.set("decision", "")  # it was of other labels

    def delete_person(self, person: Person) -> int:
        """Delete a person with all their labels from the disk; return the number of labels.

        Raises `StoreError` if another program keeps the deleted rows on disk.
        """
        with self.writing() as db:
            count = db.execute(
                "SELECT count(*) FROM assignments WHERE person = ? AND choice IS NOT NULL", (person.id,)
            ).fetchone()[0]
            db.execute("DELETE FROM people WHERE id = ?", (person.id,))
            self.set("decision", "")
        with self.lock:
            is_busy = self.db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        if is_busy:
            raise StoreError(
                f"{self.path}: {person.name} is deleted, but another program reads the file, so that the labels are "
                f"still in {self.path}-wal: end that program, and the page, and they are gone"
            )
        return int(count)

    # ------------------------------------------------------------------------------------------------- assignments

    def assign(self, person: int, pair: str) -> int:
        """Give a pair to a person, the order of its responses drawn by seed; return its number among theirs."""
        with self.writing() as db:
            shown = "12" if seeding.uniform(self.seed, "order", person, pair) < 0.5 else "21"
            last = self.row("SELECT max(number) AS last FROM assignments WHERE person = :person", person=person)
            number = (last["last"] or 0) + 1
            now = time.time()
            statement = "INSERT INTO assignments (person, pair, number, shown, given, opened) VALUES (?, ?, ?, ?, ?, ?)"
            db.execute(statement, (person, pair, number, shown, now, now))
        return number

    def assignment(self, person: int, number: int) -> Assignment | None:
        row = self.row(
            "SELECT a.*, pairs.kind, pairs.row FROM assignments a JOIN pairs ON pairs.id = a.pair "
            "WHERE a.person = :person AND a.number = :number",
            person=person,
            number=number,
        )
        if row is None:
            return None
        fields = {name: row[name] for name in Assignment.__slots__ if name not in ("row", "skipped")}
        return Assignment(**fields, skipped=bool(row["skipped"]), row=json.loads(row["row"]))

    def is_free(self, person: int, pair: str, each: int, oldest: float) -> bool:
        """Tell if fewer than `each` others have a pair, or if it is one that all get."""
        row = self.row(
            f"SELECT kind, {TAKEN} AS taken FROM pairs WHERE id = :pair", person=person, pair=pair, oldest=oldest
        )
        return row["kind"] != PAIR or row["taken"] < each

    def next_free(self, person: int, kind: str, each: int = 0, oldest: float = 0.0) -> str | None:
        """The first pair of a kind that a person has not had, and, to be labelled, fewer than `each` have."""
        limit = f"AND {TAKEN} < :each" if kind == PAIR else ""
        row = self.row(
            "SELECT id FROM pairs WHERE kind = :kind AND id NOT IN "
            f"(SELECT pair FROM assignments WHERE person = :person) {limit} ORDER BY position, id LIMIT 1",
            kind=kind,
            person=person,
            each=each,
            oldest=oldest,
        )
        return row["id"] if row else None

    def open(self, person: int, number: int) -> None:
        """Note that a person looks at a pair, unless they just got it: it is held for them anew."""
        now = time.time()
        with self.writing() as db:
            db.execute(
                "UPDATE assignments SET given = ?, opened = CASE WHEN choice IS NULL THEN ? ELSE opened END "
                "WHERE person = ? AND number = ? AND given < ?",
                (now, now, person, number, now - JUST),
            )

    def skip(self, person: int, number: int) -> None:
        """Leave a pair to others, until its person looks at it again."""
        with self.writing() as db:
            db.execute(
                "UPDATE assignments SET skipped = 1, given = 0 WHERE person = ? AND number = ?", (person, number)
            )

    def label(self, one: Assignment, choice: int, reason: str, seconds: float) -> None:
        """Store a label over the one that was there."""
        with self.writing() as db:
            db.execute(
                "UPDATE assignments SET choice = ?, reason = ?, seconds = ?, labelled = ?, skipped = 0, "
                "version = version + 1 WHERE person = ? AND number = ?",
                (choice, reason, seconds, time.time(), one.person, one.number),
            )

    def take_labels(self, labels: Iterable[tuple[str, str, int, str, str, float]]) -> tuple[int, int]:
        """Store labels that were given elsewhere, all or none; return how many are new and changed.

        Each is the pair's id, a person's name, the choice, the order shown, the reason and seconds; their last counts.
        """
        with self.writing() as db:
            new = changed = 0
            for pair, name, choice, shown, reason, seconds in {one[:2]: one for one in labels}.values():
                person = self.find_person(name) or self.add_person(name, "", "active")
                there = self.row(
                    "SELECT number, choice FROM assignments WHERE person = :person AND pair = :pair",
                    person=person.id,
                    pair=pair,
                )
                number = there["number"] if there else self.assign(person.id, pair)
                given = there["choice"] if there else None
                new, changed = new + (given is None), changed + (given not in (None, choice))
                if given != choice:
                    db.execute(
                        "UPDATE assignments SET shown = ?, choice = ?, reason = ?, seconds = ?, labelled = ?, "
                        "skipped = 0, version = version + 1 WHERE person = ? AND number = ?",
                        (shown, choice, reason, seconds, time.time(), person.id, number),
                    )
            self.set("decision", "")  # it was of other labels
        return new, changed

    def labels(self, kind: str = PAIR, with_discarded: bool = False) -> list[Labelled]:
        """The labels of pairs of a kind, by pair and person."""
        found, pairs = [], dict[str, tuple[Pair, Any]]()
        for row in self.rows(
            "SELECT a.*, pairs.row, pairs.extra, people.pseudonym FROM assignments a JOIN pairs ON pairs.id = a.pair "
            "JOIN people ON people.id = a.person WHERE a.choice IS NOT NULL AND pairs.kind = :kind AND "
            "(people.state = 'active' OR :all) ORDER BY pairs.position, pairs.id, a.person",
            kind=kind,
            all=with_discarded,
        ):
            if row["pair"] not in pairs:
                record = json.loads(row["row"])
                pair = JudgedPair.from_row(record).pair
                pairs[row["pair"]] = replace(pair, occurrence=record.get("occurrence") or 0), json.loads(row["extra"])
            names = ("pseudonym", "person", "choice", "shown", "reason", "seconds", "labelled")
            found.append(Labelled(*pairs[row["pair"]], **{name: row[name] for name in names}))
        return found


def _person(row: sqlite3.Row) -> Person:
    names = ("id", "name", "pseudonym", "state", "why")
    return Person(**{name: row[name] for name in names}, outside=json.loads(row["outside"]))
