"""What a board is: systems under one protocol, ranked by their win rate, or by what an evaluator finds of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from afarm.core.errors import DataError
from afarm.core.records import Row
from afarm.evaluation.metrics import interval, number
from afarm.evaluation.protocol import EvaluationProtocol

if TYPE_CHECKING:
    from afarm.evaluation.win_table import WinTable

WHOLE = 0.99
"""The share of a board's instructions that a system must have been asked about to have a place."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where an entry comes from: `name` for people (a file, a run), and the file of its judgements, if there is one;
    `created` is when it was evaluated, in seconds since 1970, 0 where that is not known."""

    name: str = ""
    judgements: str = ""
    reference: str = ""
    created: float = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Metric:
    """What an evaluator says of a system: `value` with its standard error or its 95% interval, from `n` judgements.
    `flag` is what must be known to believe it."""

    value: float
    error: float | None = None
    low: float | None = None
    high: float | None = None
    n: int | None = None
    flag: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """A system on a board. None is a figure that is not known.

    `win_rate`, `standard_error`, `length_controlled` and its error are percentages; `n` comparisons were won, lost or
    drawn, about `instructions` (where that is not said, as many) `of` those there are, a share `coverage` of those
    there should be; `stopped_early` says that no more were asked about because it was clear. `length` is in mean
    characters. `prefers_longer` and `prefers_lists` are the judge's shares of choices for the longer output and for the
    one with a list, where outputs differ in that. `length_controlled_source` is what the length-controlled figure was
    worked out from, and `length_controlled_warning` why not to trust it. `flags` are the sentences of its guards, and
    `figures` those of other evaluators, by name.

    `rank` is its place, None for a system that was judged on part of the instructions; `rank_low` to `rank_high` hold
    the true one with 95%. `difference` is to the system `difference_to` in points, paired by instruction, with its 95%
    interval and its p-value, corrected for all comparisons; one of `detectable` points would be found four times in
    five, by a test of its own.
    """

    system: str
    win_rate: float
    standard_error: float | None = None
    n: int | None = None
    wins: int | None = None
    losses: int | None = None
    draws: int | None = None
    unparsed: int | None = None
    coverage: float | None = None
    length: float | None = None
    length_controlled: float | None = None
    length_controlled_error: float | None = None
    length_controlled_source: str = ""
    length_controlled_warning: str = ""
    prefers_longer: float | None = None
    prefers_lists: float | None = None
    flags: tuple[str, ...] = ()
    figures: Mapping[str, Metric] = field(default_factory=dict)
    rank: int | None = None
    rank_low: int | None = None
    rank_high: int | None = None
    difference: float | None = None
    difference_low: float | None = None
    difference_high: float | None = None
    p_value: float | None = None
    difference_to: str = ""
    detectable: float | None = None
    instructions: int | None = None
    of: int | None = None
    stopped_early: bool = False
    source: Source = field(default_factory=Source)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95% interval of the win rate, None where its error is not known."""
        return interval(self.win_rate, self.standard_error, self.instructions or self.n)

    @property
    def asked(self) -> int | None:
        """About how many instructions the judge was asked, those without an answer among them; None if not known."""
        if self.instructions and self.n and self.n > self.instructions:
            return self.instructions  # several labels of each: what has no answer is counted in labels
        judged = self.instructions or self.n
        return None if judged is None else judged + (self.unparsed or 0)

    @property
    def partial(self) -> bool:
        """Whether it was judged on part of the board's instructions only."""
        return bool(self.of and self.asked is not None and self.asked < WHOLE * self.of)

    def to_row(self) -> Row:
        low, high = self.interval or (None, None)
        row = asdict(self)
        row["source"] = self.source.name  # where judgements lie on this machine tells another one nothing
        return {**row, "flags": list(self.flags), "low": low, "high": high}

    @classmethod
    def from_row(cls, row: Mapping[str, Any], where: str, columns: Mapping[str, str] | None = None) -> Entry:
        """`columns` are what a table calls fields. Raises `DataError` naming `where` and what is wrong there."""
        known = {f.name for f in fields(cls)} - {"source", "flags", "figures", "stopped_early", *TEXTS}
        numbers = _numbers({name: row.get(name) for name in known}, where, columns)
        if not isinstance(row.get("system"), str):
            raise DataError(f"{where}: field 'system' must be text, not {row.get('system')!r}")
        if "win_rate" not in numbers:
            raise DataError(f"{where}: {'column' if columns else 'field'} 'win_rate' has no number")
        flags, figures = row.get("flags") or (), row.get("figures") or {}
        texts: dict[str, Any] = {name: str(row.get(name) or "") for name in TEXTS}
        return cls(
            **numbers,
            **texts,
            stopped_early=bool(row.get("stopped_early")),
            flags=tuple(map(str, flags)) if isinstance(flags, list) else (),
            figures=_figures(figures, where) if isinstance(figures, Mapping) else {},
            source=Source(str(row.get("source") or "")),
        )


TEXTS = ("system", "length_controlled_source", "length_controlled_warning", "difference_to")
"""The fields of an entry that are text."""


ANY = -math.inf, math.inf
PERCENT, SHARE = (0, 100), (0, 1)
BOUNDS: Mapping[str, tuple[float, float]] = {
    **dict.fromkeys(("win_rate", "length_controlled"), PERCENT),
    **dict.fromkeys(("coverage", "prefers_longer", "prefers_lists", "p_value"), SHARE),
    **dict.fromkeys(("value", "low", "high", "difference", "difference_low", "difference_high"), ANY),
}
"""What the numbers of a row lie between; errors, counts, places and lengths from 0 on."""


def _numbers(given: Mapping[str, Any], where: str, columns: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Those that are known. Raises `DataError` naming `where` and the one that is no number, or cannot be."""
    found = {name: value for name, value in given.items() if value is not None}
    for name, value in found.items():
        called = f"column {columns[name]!r}" if columns else f"field {name!r}"
        low, high = BOUNDS.get(name, (0, math.inf))
        if number(value) is None:
            raise DataError(f"{where}: {called} must be a number, not {value!r}")
        if not low <= value <= high:
            must = "not be negative" if high == math.inf else f"lie between {low} and {high}"
            raise DataError(f"{where}: {called} must {must}, and is {value!r}")
    return found


def _figures(given: Mapping[str, Any], where: str) -> dict[str, Metric]:
    found = {}
    for name, row in given.items():
        row = row if isinstance(row, Mapping) else {"value": row}
        part = f"{where}, figure {name!r}"
        numbers = _numbers({n: row.get(n) for n in ("value", "error", "low", "high", "n")}, part)
        if numbers:
            if "value" not in numbers:
                raise DataError(f"{part}: field 'value' is missing")
            found[str(name)] = Metric(**numbers, flag=str(row.get("flag") or ""))
    return found


@dataclass(frozen=True, slots=True)
class Leaderboard:
    """Entries of one protocol, best first: by win rate, or by the figure of the evaluator `order`.

    `note` is what else must be known to read it, `origin` the file that it was read from, where that does not say how
    it was judged. `apart` says what sets it apart from boards of the same heading. `wins` are the judgements behind it,
    where they are at hand.
    """

    protocol: EvaluationProtocol
    entries: tuple[Entry, ...]
    title: str = ""
    note: str = ""
    order: str = ""
    origin: str = ""
    apart: str = field(default="", compare=False)
    wins: WinTable | None = field(default=None, compare=False, repr=False)

    @property
    def name(self) -> str:
        """What it is, without what sets it apart from others."""
        return self.title or self.protocol.sentence()

    @property
    def heading(self) -> str:
        return f"{self.name} ({self.apart})" if self.apart else self.name

    @property
    def instructions(self) -> int | None:
        """How many there are for its systems to be judged on: those of the judgements at hand together, and what other
        entries say of themselves. None where nothing is known of that, or systems met each other at will."""
        if self.order:
            return None
        seen = len(self.wins.instructions) if self.wins else 0
        inside = set(self.wins.systems) if self.wins else set()
        return max(seen, *(e.of or e.asked or 0 for e in self.entries if e.system not in inside), 0) or None

    @property
    def remarks(self) -> str:
        """The note, and why systems have no place, where some have none."""
        partial = [entry for entry in self.entries if entry.partial]
        told = ""
        if partial:
            systems, early = named([entry.system for entry in partial]), [entry.stopped_early for entry in partial]
            how = "judged until it was clear, on" if all(early) else "judged on"
            told = f"no place for {systems}: {how} part of the {partial[0].of:,} instructions, the rest could turn it"
            if len(partial) == len(self.entries) and not any(early):
                told += " (--eval-set FILE compares on those that all answered)"
        return "; ".join(filter(None, (self.note, told)))

    @property
    def id(self) -> str:
        """What parts boards: the protocol and what orders them, or where that is not known, title and origin."""
        return f"{self.protocol.id} {self.order}" if self.protocol.known else f"{self.title}\n{self.origin}"

    def to_row(self) -> Row:
        return {
            "title": self.title,
            "heading": self.heading,
            "note": self.note,
            "order": self.order,
            "origin": self.origin,
            "protocol": self.protocol.to_row() if self.protocol.known else None,
            "entries": [entry.to_row() for entry in self.entries],
        }

    @classmethod
    def from_row(cls, row: Any, where: str) -> Leaderboard:
        """Raises `DataError` naming `where` and what is wrong."""
        entries = row.get("entries") if isinstance(row, Mapping) else None
        if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
            raise DataError(f"{where}: must hold a list of entries")
        read = [Entry.from_row(entry, f"{where}, entry {number}") for number, entry in enumerate(entries)]
        protocol = EvaluationProtocol.from_row(row.get("protocol"))
        title = str(row.get("title") or "") or ("" if protocol.known else where)
        note, order, origin = (str(row.get(name) or "") for name in ("note", "order", "origin"))
        return ranked(cls(protocol, tuple(read), title, note, order, origin))


MANY = 5


def named(names: Sequence[str], what: str = "systems") -> str:
    """A few by name, more as a number of `what` they are."""
    return ", ".join(names) if len(names) <= MANY else f"{len(names)} {what}"


def ranked(board: Leaderboard) -> Leaderboard:
    """`board` in its order, with places; equal figures share one. Rank intervals stay where they are.

    A system that was judged on part of the instructions has no place, and stands below those that have one: on other
    instructions, or where judging stopped at a moment that suited it, a high win rate is luck as well.
    """

    def value(entry: Entry) -> float:
        found = entry.figures.get(board.order)
        return entry.win_rate if not board.order else -math.inf if found is None else found.value

    of = board.instructions
    entries = [replace(entry, of=of) for entry in board.entries]
    entries = sorted(entries, key=lambda entry: (entry.partial, -value(entry), entry.system))
    whole = [value(entry) for entry in entries if not entry.partial]
    placed = (
        replace(entry, rank=None if entry.partial else 1 + sum(other > value(entry) for other in whole))
        for entry in entries
    )
    return replace(board, entries=tuple(placed))
