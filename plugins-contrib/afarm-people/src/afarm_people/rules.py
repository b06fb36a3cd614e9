"""The rules of a project: who gets which pair, and what becomes of an answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from afarm_people.store import CHECK, GOLD, PAIR, Assignment, Person, ProjectStore

MOST_REASON = 4000
"""Characters of a reason that are kept."""
LOOKS = 40
"""How often in one doubling or so of the labels it is looked if they decide: each look reads them all."""
LONGEST = 3600.0
"""Seconds after which a label's time says that the person was away."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of a project, as its command line gives them.

    `each` people label a pair; who has it before them holds it for `timeout` seconds. `per_person` bounds the labels of
    one person. `pay` is in US dollars per label. Of the gold pairs a person must answer `pass_mark`, a share, as
    known; after every `check_every` labels comes a pair that checks their attention. `is_open`: whoever opens the page
    by its one link is the one person who labels, with the organiser's page.
    """

    is_open: bool = True
    each: int = 1
    timeout: float = 1800.0
    per_person: int | None = None
    tie: bool = True
    reasons: bool = True
    pay: float = 0.0
    pass_mark: float = 0.7
    check_every: int = 20
    until_decided: bool = False
    guideline: str = ""
    code: str = ""
    code_failed: str = ""


class StaleError(Exception):
    """An answer to a pair that was answered otherwise, or given to others, since the form was shown."""


class Project:
    """A project: its store and rules. `decide`, if given, says when enough is labelled."""

    def __init__(self, store: ProjectStore, rules: Rules, decide: Callable[[], str] = lambda: ""):
        self.store, self.rules, self.decide = store, rules, decide
        self.open_link = ""

    @property
    def oldest(self) -> float:
        """The time before which a pair that was given to somebody is free again."""
        return time.time() - self.rules.timeout

    @property
    def decision(self) -> str:
        """Why enough is labelled; empty if it is not."""
        return self.store.get("decision") if self.rules.until_decided else ""

    def enter(self, name: str, secret: str = "", outside: Mapping[str, str] | None = None) -> Person:
        """Add a person, who must pass the gold pairs first if there are any."""
        return self.store.add_person(name, secret, "qualifying" if self.store.count_pairs(GOLD) else "active", outside)

    def restore(self, person: Person) -> None:
        """Take back a person who was discarded, as their gold pairs say."""
        with self.store.writing():
            self.store.restore(person)
            self._graded(replace(person, state="qualifying"))

    def next_number(self, person: Person, after: int = 0) -> int | None:
        """The number of the pair that a person should see next; None if there is none.

        It is the first that is open, then a new one, then one that was skipped, after the pair `after` if there is any.
        """
        with self.store.writing():
            person = self._graded(person)
            if person.state not in ("qualifying", "active"):
                return None
            kind = GOLD if person.state == "qualifying" else PAIR
            open_ones = [one for one in self.open_numbers(person) if kind != PAIR or not self.decision]
            if fresh := [number for number, skipped in open_ones if not skipped]:
                return fresh[0]
            if pair := self._new_pair(person, kind):
                return self.store.assign(person.id, pair)
            later = [number for number, _ in open_ones if number > after]
            return later[0] if later else None

    def open_numbers(self, person: Person) -> list[tuple[int, bool]]:
        """The numbers of a person's pairs that are still theirs to label, and if each was skipped."""
        rows = self.store.rows(
            "SELECT number, pair, skipped FROM assignments WHERE person = :person AND choice IS NULL ORDER BY number",
            person=person.id,
        )
        free = (self.store.is_free(person.id, row["pair"], self.rules.each, self.oldest) for row in rows)
        return [(row["number"], bool(row["skipped"])) for row, is_free in zip(rows, free, strict=True) if is_free]

    def _new_pair(self, person: Person, kind: str) -> str | None:
        if kind == GOLD:
            return self.store.next_free(person.id, GOLD)
        if self.decision:
            return None
        given = self.given(person, PAIR)
        if self.rules.per_person is not None and given >= self.rules.per_person:
            return None
        is_due = given // self.rules.check_every > self.given(person, CHECK)
        if is_due and (pair := self.store.next_free(person.id, CHECK)):
            return pair
        return self.store.next_free(person.id, PAIR, self.rules.each, self.oldest)

    def _graded(self, person: Person) -> Person:
        """A person who has answered all gold pairs, as passed or failed; else as they are."""
        if person.state != "qualifying" or self.store.next_free(person.id, GOLD) or self.open_numbers(person):
            return person
        right, asked = self.known_answers(person, GOLD)
        passed = right >= self.rules.pass_mark * asked
        self.store.qualify(person, passed, f"{right} of {asked} gold pairs right" if asked else "")
        return replace(person, state="active" if passed else "failed")

    def known_answers(self, person: Person, kind: str) -> tuple[int, int]:
        """Count a person's answers to pairs with a known one: (right, all). A tie is wrong."""
        given = [one for one in self.store.labels(kind, with_discarded=True) if one.person == person.id]
        return sum(one.win == one.extra["p2"] for one in given), len(given)

    def given(self, person: Person, kind: str, labelled: bool = False) -> int:
        """Count the pairs of a kind that a person was given; with `labelled`, those that they have labelled."""
        where = " AND a.choice IS NOT NULL" if labelled else ""
        row = self.store.row(
            "SELECT count(*) AS n FROM assignments a JOIN pairs ON pairs.id = a.pair "
            f"WHERE a.person = :person AND pairs.kind = :kind{where}",
            person=person.id,
            kind=kind,
        )
        return int(row["n"])

    def progress(self, person: Person) -> tuple[int, int]:
        """Labels of a person, and how many there may be: of gold pairs while they qualify.

        Checks count among the others: a count that stood still would tell which pair was one.
        """
        if person.state == "qualifying":
            return self.given(person, GOLD, labelled=True), self.store.count_pairs(GOLD)
        done = self.given(person, PAIR, labelled=True) + self.given(person, CHECK, labelled=True)
        total = min(self.store.count_pairs(PAIR), self.rules.per_person or 10**9)
        return done, total + min(self.store.count_pairs(CHECK), total // self.rules.check_every)

    # -------------------------------------------------------------------------------------------------- one answer

    def look(self, person: Person, number: int) -> Assignment | None:
        """A person's pair of that number, held for them from now on; None if there is none, or others have it."""
        with self.store.writing():
            one = self.store.assignment(person.id, number)
            if one is None or person.state not in ("qualifying", "active"):
                return None
            if one.choice is None and not self.store.is_free(person.id, one.pair, self.rules.each, self.oldest):
                return None
            if one.kind == GOLD and person.state != "qualifying":
                return None
            self.store.open(person.id, number)
            return self.store.assignment(person.id, number)

    def answer(
        self, person: Person, number: int, choice: int, reason: str, version: int, seconds: float | None
    ) -> None:
        """Store an answer, the choice as it was shown. Raises `StaleError`; the same answer twice counts once."""
        with self.store.writing():
            one = self.store.assignment(person.id, number)
            if one is None or person.state not in ("qualifying", "active"):
                raise StaleError("This pair is not yours to label.")
            if one.kind == GOLD and person.state != "qualifying":
                raise StaleError("The test is over: its answers cannot be changed.")
            stored, reason = choice if one.shown == "12" else -choice, reason.strip()[:MOST_REASON]
            if (one.choice, one.reason, one.version) == (stored, reason, version + 1):
                return  # the form was sent twice
            if one.version != version:
                raise StaleError("You answered this pair in another window meanwhile. That answer stands.")
            if one.choice is None and not self.store.is_free(person.id, one.pair, self.rules.each, self.oldest):
                raise StaleError("This pair was open for so long that it went to somebody else.")
            elapsed = time.time() - (one.opened or time.time())
            spent = min(elapsed if seconds is None else max(0.0, min(seconds, elapsed)), LONGEST)
            self.store.label(one, stored, reason, spent)
            if one.kind == PAIR and self.rules.until_decided and not self.decision:
                count = self.summary()["labels"]
                if count % max(1, count // LOOKS) == 0 and (found := self.decide()):
                    self.store.set("decision", found)

    def skip(self, person: Person, number: int) -> None:
        if self.look(person, number):
            self.store.skip(person.id, number)

    def summary(self) -> dict[str, Any]:
        """Count what is labelled: labels, pairs that `each` people have labelled, pairs in all."""
        counts = self.store.row(
            "SELECT count(*) AS pairs, sum(n) AS labels, sum(n >= :each) AS done FROM (SELECT (SELECT count(*) FROM "
            "assignments a JOIN people q ON q.id = a.person WHERE a.pair = pairs.id AND q.state = 'active' AND "
            "a.choice IS NOT NULL) AS n FROM pairs WHERE kind = 'pair')",
            each=self.rules.each,
        )
        return {name: counts[name] or 0 for name in ("pairs", "labels", "done")}

    def export(self) -> Iterator[dict[str, Any]]:
        """Yield the labels of active people as rows: AlpacaEval's columns and afarm's, under pseudonyms.

        `preference` is 1 or 2, or 1.5 for a tie; `strength` 0.5 says "slightly"; `order` "12" if output_1 came first.
        """
        for one in self.store.labels():
            yield {
                **one.judged().to_row(),
                "reason": one.reason,
                "time_per_example": round(one.seconds, 1),
                **({"price_per_example": self.rules.pay} if self.rules.pay else {}),
                "labelled_at": datetime.fromtimestamp(one.labelled, UTC).isoformat(timespec="seconds"),
                **one.extra,
            }
