"""An index over the judged pairs of a run: the place of each row, and what rows are found by.

Texts stay in the file, but for one copy in lower case that is searched. 100,000 rows are indexed in seconds, in the
background; the first rows can be read meanwhile. The last search and all orders are kept: whoever types on, or filters
what is ordered, waits for the rest alone.
"""

from __future__ import annotations

import re
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from afarm import Instruction, Row
from afarm.report import row_verdict
from afarm.results import Match, finite_number, suspicious
from afarm_plugins.view.values import json_row, text
from afarm_plugins.view.values import rows as mappings

MOST_TEXT = 200_000
"""Characters of one text that a page gets and a search looks at; the rest is in the file."""

LOOKED_AT = 20_000
"""Characters of an output that are looked at for talk to the judge."""

FLAGGED_AT_ONCE = 2_000
"""Rows up to which outputs are searched for talk to the judge unasked: each takes most of a millisecond."""

Figure = Literal["margin", "gold", "reward", "longer"]
"""A figure of a pair that rows are ordered by: the system's gold, reward, or length over the reference's."""


class OutputsIndex:
    """The columns of one file of judged pairs, one entry per row; `ready` says that they are whole."""

    def __init__(
        self, path: Path, scores: Callable[[], Sequence[Row]] = list, formulas: Mapping[str, bool] | None = None
    ):
        self.path = path
        self.formulas = formulas or {}
        """The identities of judges, each with True if it is a formula."""
        self.ready = threading.Event()
        self.flags_seen = 0
        """Rows whose outputs were looked at for what talks to the judge."""
        self.problem = ""
        self.progress = 0.0
        """The share of the file that was read."""
        self.skipped = 0
        """Lines that are no rows: half written, or damaged."""
        self.places = array("Q")
        self.sizes = array("Q")
        self.verdicts: list[str] = []
        self.members: list[str] = []
        self.keys: list[int] = []
        """A number for each instruction with its input, the same in every index of this process."""
        self.longer = array("q")
        """By how many characters the system's output is longer."""
        self.cut = bytearray()
        self.flagged = bytearray()
        self.gold: list[tuple[float | None, float | None]] = []
        self.reward: list[tuple[float | None, float | None]] = []
        self._scores = scores
        self.known: Mapping[str, bool] = {"gold": False, "reward": False}
        """If any row has a gold reward, and a reward."""
        self._texts: list[bytes] = []
        self._last_search: tuple[frozenset[bytes], Sequence[int]] = frozenset(), ()
        self._orders: dict[tuple[Figure, bool], array[int]] = {}
        self.members_counted: Mapping[str, int] = {}
        self._flagging = threading.Lock()

    def __len__(self) -> int:
        return len(self.places)

    def build(self) -> None:
        """Read the file. Raises nothing."""
        try:
            self._read()
        except OSError as error:
            self.problem = f"{self.path}: {error.strerror}"
        scores = self._scores()
        usable = scores if len(scores) == len(self) else [{}] * len(self)
        columns = {"gold": self.gold, "reward": self.reward}
        for name, column in columns.items():
            column += [(finite_number(s.get(name)), finite_number(s.get(f"{name}_reference"))) for s in usable]
        self.known = {name: any(ours is not None for ours, _ in column) for name, column in columns.items()}
        self.flagged = bytearray(len(self))
        self.members_counted = Counter(self.members)
        self.ready.set()
        if any(self.known.values()):
            for descending in (True, False):  # the order that is asked for first
                self.ordered("margin", descending)
        if len(self) <= FLAGGED_AT_ONCE:
            self.flag()

    def _read(self) -> None:
        total = max(1, self.path.stat().st_size)
        place = 0
        with self.path.open("rb") as handle:
            for line in handle:
                if (row := json_row(line)) is not None:
                    task, given = text(row.get("instruction")), text(row.get("input"))
                    first, second = text(row.get("output_1")), text(row.get("output_2"))
                    self.places.append(place)
                    self.sizes.append(len(line))
                    self.verdicts.append(row_verdict(row))
                    decided = text(row.get("member") or row.get("annotator")) or "(unnamed)"
                    self.members.append("(noise)" if row.get("source") == "noise" else decided)
                    self.keys.append(hash((task, given)))
                    self.longer.append(len(second) - len(first))
                    self.cut.append("length" in (row.get("finish_reason_1"), row.get("finish_reason_2")))
                    searched = "\n".join(one[:MOST_TEXT] for one in (task, given, first, second))
                    self._texts.append(searched.lower().encode("utf-8", "replace"))
                elif line.strip():
                    self.skipped += 1
                place += len(line)
                self.progress = place / total

    @property
    def flags_ready(self) -> bool:
        """True if every output was looked at for what talks to the judge."""
        return self.ready.is_set() and self.flags_seen >= len(self)

    def flag(self) -> None:
        """Look at every output for what talks to the judge, once; a second caller waits for the first."""
        with self._flagging:
            for number, row in enumerate(self.rows(range(self.flags_seen, len(self))), self.flags_seen):
                self.flagged[number] = bool(find_suspicious(row))
                self.flags_seen = number + 1
                time.sleep(0)  # to whoever waits for an answer
            self.flags_seen = len(self)

    def flag_in_background(self) -> None:
        """Begin to look at outputs, unless that has begun."""
        if not (self.flags_ready or self._flagging.locked()):
            threading.Thread(target=self.flag, name="afarm-view-flags", daemon=True).start()

    def rows(self, numbers: Iterable[int]) -> Iterator[Row]:
        """Read rows from the file by their numbers; what is not there any more is empty."""
        try:
            with self.path.open("rb") as handle:
                for number in numbers:
                    handle.seek(self.places[number])
                    yield json_row(handle.read(self.sizes[number])) or {}
        except OSError:
            return

    def search(self, words: str) -> Sequence[int] | None:
        """Find the rows whose texts hold all of `words` (quoted ones together), in any case; None without."""
        found = re.findall(r'"([^"]+)"|(\S+)', words.lower())
        terms = frozenset((quoted or word).encode("utf-8", "replace") for quoted, word in found)
        if not terms:
            return None
        known, before = self._last_search
        goes_on = known and all(any(part in term for term in terms) for part in known)
        rows: Sequence[int] = before if goes_on else range(len(self))
        for term in sorted(terms, key=len, reverse=True):  # a long one is rare, and leaves the others few rows
            rows = array("I", [row for row in rows if term in self._texts[row]])
        self._last_search = terms, rows
        return rows

    def margin(self, number: int) -> float | None:
        """By how much the system's gold is above the reference's; by reward if there is no gold."""
        for ours, theirs in (self.gold[number], self.reward[number]):
            if ours is not None and theirs is not None:
                return ours - theirs
        return None

    def ordered(self, figure: Figure, descending: bool) -> Sequence[int]:
        """Order all rows by a figure; those without it come last, equal ones in the file's order."""
        if (figure, descending) in self._orders:
            return self._orders[figure, descending]
        values: Sequence[float | None]
        if figure == "longer":
            values = self.longer
        elif figure == "margin":
            values = list(map(self.margin, range(len(self))))
        else:
            values = [ours for ours, _ in (self.gold if figure == "gold" else self.reward)]
        known = [number for number, value in enumerate(values) if value is not None]
        unknown = [number for number, value in enumerate(values) if value is None]
        known.sort(key=values.__getitem__, reverse=descending)  # type: ignore[arg-type]
        order = self._orders[figure, descending] = array("I", known + unknown)
        return order

    @cached_property
    def rows_by_key(self) -> dict[int, int]:
        """The first row of each instruction."""
        rows: dict[int, int] = {}
        for number, key in enumerate(self.keys):
            rows.setdefault(key, number)
        return rows


def first_rows(path: Path, count: int) -> list[Row]:
    """The first rows of a file, whose index is not there yet."""
    try:
        with path.open("rb") as handle:
            return [row for line in islice(handle, 2 * count) if (row := json_row(line)) is not None][:count]
    except OSError:
        return []


def read_pair_scores(record: Row) -> list[Row]:
    """Return gold and reward per pair from the rows that a run's evaluators wrote; empty without them."""
    merged: list[dict[str, Any]] = []
    main = next(iter(mappings(record.get("results"))), {})
    for result in mappings(record.get("results")):
        name, rows = result.get("evaluator"), mappings(result.get("rows"))
        if name in ("gold", "reward") and result.get("reference") == main.get("reference") and rows:
            if not merged:
                merged = [{} for _ in rows]
            if len(merged) == len(rows):
                for row, scores in zip(merged, rows, strict=True):
                    row |= {key: scores.get(key) for key in (name, f"{name}_reference")}
    return merged


def find_suspicious(row: Row) -> list[tuple[str, Match]]:
    """Find text addressed to the judge in a row's outputs: the side, and the match."""
    try:
        task = Instruction(text(row.get("instruction")), text(row.get("input")))
        sides = ("output_1", "output_2")
        return [(side, match) for side in sides for match in suspicious(text(row.get(side))[:LOOKED_AT], task)]
    except (ValueError, RecursionError):
        return []
