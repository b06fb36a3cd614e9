"""What a board is: systems under one protocol, ranked by their win rate."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from afarm.errors import DataError
from afarm.protocol import Protocol
from afarm.records import Row

if TYPE_CHECKING:
    from afarm.wins import Wins

NORMAL_95 = 1.959964


@dataclass(frozen=True, slots=True)
class Source:
    """Where an entry comes from: `name` for people (a file, a run), and the file of its judgements, if there is one."""

    name: str = ""
    judgements: str = ""
    reference: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """A system on a board. None is a figure that is not known.

    `win_rate`, `standard_error`, `length_controlled` and its error are percentages; `n` comparisons were won, lost or
    drawn, about `instructions` (where that is not said, as many), a share `coverage` of those there should be; `length`
    is in mean characters. `prefers_longer` and `prefers_lists` are the judge's shares of choices for the longer output
    and for the one with a list, where outputs differ in that. `flags` are the sentences of its guards, and `figures`
    those of evaluators over the whole board.

    `rank` is its place, `rank_low` to `rank_high` hold the true one with 95%; `difference` is to the first of the
    board in points, paired by instruction, with its 95% interval and its p-value, corrected for all comparisons.
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
    prefers_longer: float | None = None
    prefers_lists: float | None = None
    flags: tuple[str, ...] = ()
    figures: Mapping[str, float | str | None] = field(default_factory=dict)
    rank: int = 0
    rank_low: int | None = None
    rank_high: int | None = None
    difference: float | None = None
    difference_low: float | None = None
    difference_high: float | None = None
    p_value: float | None = None
    instructions: int | None = None
    source: Source = field(default_factory=Source)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95% interval of the win rate, None where its error is not known."""
        return interval(self.win_rate, self.standard_error, self.instructions or self.n)

    def to_row(self) -> Row:
        low, high = self.interval or (None, None)
        row = asdict(self)
        row["source"] = self.source.name  # where judgements lie on this machine tells another one nothing
        return {**row, "flags": list(self.flags), "low": low, "high": high}

    @classmethod
    def from_row(cls, row: Mapping[str, Any], where: str) -> Entry:
        """Raises `DataError` naming `where` and the field that is wrong."""
        known = {f.name for f in fields(cls)} - {"source", "flags", "figures"}
        given = {name: row[name] for name in known if row.get(name) is not None}
        if not isinstance(given.get("system"), str):
            raise DataError(f"{where}: field 'system' must be text, not {row.get('system')!r}")
        for name, value in given.items():
            if name != "system" and (
                isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value)
            ):
                raise DataError(f"{where}: field {name!r} must be a number, not {value!r}")
        if "win_rate" not in given or not 0 <= given["win_rate"] <= 100:
            raise DataError(f"{where}: field 'win_rate' must lie between 0 and 100, and is {row.get('win_rate')!r}")
        flags, figures = row.get("flags") or (), row.get("figures") or {}
        return cls(
            **given,
            flags=tuple(map(str, flags)) if isinstance(flags, list) else (),
            figures=figures if isinstance(figures, Mapping) else {},
            source=Source(str(row.get("source") or "")),
        )


def interval(rate: float, error: float | None, n: int | None) -> tuple[float, float] | None:
    """The 95% interval of a win rate in percent, from its standard error over `n` instructions: t's, after two won and
    two lost ones are added, so that 25 wins of 25 are not sure to go on (Agresti and Coull 1998). Without n, ± 1.96."""
    if error is None:
        return None
    if not n or n < 2:
        return max(0.0, rate - NORMAL_95 * error), min(100.0, rate + NORMAL_95 * error)
    added, total = 4, n + 4
    mean = (n * rate + 2 * 100) / total
    squares = error**2 * n * (n - 1) + n * (rate - mean) ** 2 + 2 * mean**2 + 2 * (100 - mean) ** 2
    spread = math.sqrt(squares / (n + added - 1) / total)
    z, freedom = NORMAL_95, total - 1
    t = z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    return max(0.0, mean - t * spread), min(100.0, mean + t * spread)


@dataclass(frozen=True, slots=True)
class Board:
    """Entries of one protocol, the highest win rate first. `note` is what else must be known to read it. `wins` are the
    judgements behind it, where they are at hand."""

    protocol: Protocol
    entries: tuple[Entry, ...]
    title: str = ""
    note: str = ""
    wins: Wins | None = field(default=None, compare=False, repr=False)

    @property
    def heading(self) -> str:
        return self.title or self.protocol.sentence()

    @property
    def remarks(self) -> str:
        """The note, and that its systems were not compared on as many instructions, where they were not."""
        asked = {judged + (e.unparsed or 0) for e in self.entries if (judged := e.instructions or e.n)}
        if len(asked) < 2:
            return self.note
        told = (
            f"compared on different numbers of instructions, {min(asked):,} to {max(asked):,}: a win rate over fewer "
            "is of other instructions, its place says little"
        )
        return "; ".join(filter(None, (self.note, told)))

    @property
    def id(self) -> str:
        """What parts boards: the protocol, or where that is not known, the title."""
        return self.protocol.id if self.protocol.known else self.title

    def to_row(self) -> Row:
        return {
            "title": self.title,
            "note": self.note,
            "protocol": self.protocol.to_row() if self.protocol.known else None,
            "entries": [entry.to_row() for entry in self.entries],
        }

    @classmethod
    def from_row(cls, row: Any, where: str) -> Board:
        """Raises `DataError` naming `where` and what is wrong."""
        entries = row.get("entries") if isinstance(row, Mapping) else None
        if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
            raise DataError(f"{where}: must hold a list of entries")
        read = [Entry.from_row(entry, f"{where}, entry {number}") for number, entry in enumerate(entries)]
        protocol = Protocol.from_row(row.get("protocol"))
        title = str(row.get("title") or "") or ("" if protocol.known else where)
        return ranked(cls(protocol, tuple(read), title, str(row.get("note") or "")))


def ranked(board: Board) -> Board:
    """`board` in the order of its win rates, with places; equal rates share one. Rank intervals stay where they are."""
    entries = sorted(board.entries, key=lambda entry: (-entry.win_rate, entry.system))
    above = [sum(other.win_rate > entry.win_rate for other in entries) for entry in entries]
    placed = tuple(replace(entry, rank=1 + place) for entry, place in zip(entries, above, strict=True))
    return replace(board, entries=placed)


def group(boards: Iterable[Board]) -> list[Board]:
    """Boards of one protocol put together, those with more systems first. What is twice the same stands once.

    Two results of one system, such as runs with different settings, are called by where they come from as well. Ranks
    with intervals and differences are those of the parts no more, and left out where a board had several.
    """
    together: dict[str, list[Board]] = {}
    for board in boards:
        together.setdefault(board.id, []).append(board)
    return sorted(map(_merged, together.values()), key=lambda board: -len(board.entries))


def _merged(parts: Sequence[Board]) -> Board:
    first = parts[0]
    entries = dict.fromkeys(_identity(entry) for part in parts for entry in part.entries)
    found: dict[Any, Entry] = {}
    for part in parts:
        for entry in part.entries:
            found.setdefault(_identity(entry), entry)
    kept = [found[identity] for identity in entries]
    whole = len(parts) == 1
    if not whole:
        none: dict[str, Any] = dict.fromkeys(
            ("rank_low", "rank_high", "difference", "difference_low", "difference_high", "p_value")
        )
        kept = [replace(entry, **none) for entry in kept]
    notes = dict.fromkeys(part.note for part in parts if part.note)
    wins = first.wins if whole else None
    return ranked(Board(first.protocol, tuple(_told_apart(kept)), first.title, "; ".join(notes), wins))


def _identity(entry: Entry) -> tuple[Any, ...]:
    """What makes two entries the same result, read twice."""
    return entry.system, entry.win_rate, entry.standard_error, entry.n, entry.length


def _told_apart(entries: Sequence[Entry]) -> list[Entry]:
    """Systems of one name called by their sources as well, by the last part that tells them apart."""
    names = Counter(entry.system for entry in entries)
    return [
        replace(entry, system=f"{entry.system} ({Path(entry.source.name).name or number})")
        if names[entry.system] > 1
        else entry
        for number, entry in enumerate(entries, start=1)
    ]
