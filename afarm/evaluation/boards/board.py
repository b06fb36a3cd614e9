"""Leaderboards: systems under one protocol, ranked by win rate or another evaluator's metric."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from afarm.core.errors import DataError, PluginError
from afarm.core.records import Row
from afarm.evaluation.metrics import finite_number, interval, main_metric, warnings, within_percent
from afarm.evaluation.protocol import EvaluationProtocol
from afarm.storage.table import Tabular, html_table

if TYPE_CHECKING:
    from afarm.evaluation.win_table import WinTable

FULL_COVERAGE = 0.99
"""The share of a leaderboard's instructions that a system must have been asked about to have a rank."""
DIFFERENCE = "Δ "
"""What names of metrics that are differences from the reference's begin with."""


Finite = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Size = Annotated[Finite, Field(ge=0)]
Percent = Annotated[Finite, Field(ge=0, le=100)]
Share = Annotated[Finite, Field(ge=0, le=1)]
Count = Annotated[int, Field(strict=True, ge=0)]


@dataclass(frozen=True, slots=True)
class Source:
    """The origin of an entry: a `name` for people, and the file of its judgements, if there is one.

    `created` is the time of its evaluation in seconds since 1970, 0 if unknown, `pages` are about its judges, by title.
    """

    name: str = ""
    judgements: str = ""
    reference: str = ""
    created: float = field(default=0, compare=False)
    pages: Mapping[str, Path] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class Metric:
    """An evaluator's main metric of a system, with its error or 95% interval, from `n` judgements.

    `flag` is a warning about it, `unit` "%" for a win rate.
    """

    value: Finite
    error: Size | None = None
    low: Finite | None = None
    high: Finite | None = None
    n: Count | None = None
    flag: str = ""
    unit: Literal["", "%"] = ""


def read_main_metric(evaluator: str, metrics: Mapping[str, Any]) -> Metric | None:
    """The main metric of an evaluation, its warnings as a flag; None if it has none."""
    main, n = main_metric(evaluator, metrics), finite_number(metrics.get("n_total"))
    if main is None:
        return None
    flag = "; ".join(warnings(metrics).values())
    return Metric(main.value, main.error, n=None if n is None else round(n), flag=flag, unit=main.unit)


@dataclass(frozen=True, slots=True)
class Entry:
    """A system on a leaderboard; None if a value is unknown.

    `win_rate`, `standard_error`, `length_controlled` and its error are percentages; a table of other figures (Elo
    ratings, say) has no win rate. `n` comparisons were won, lost or
    drawn, about `instructions` (as many, if unknown) `of` those there are, a share `coverage` of those there should be;
    `stopped_early` if no more were asked about because the comparison was decided. `length` is in mean characters,
    `seconds` of wall time made the stages of its run. `prefers_longer` and `prefers_lists` are the judge's
    shares of choices for the longer output and for the one with a list, if outputs differ in that.
    `length_controlled_source` names what the length-controlled win rate was computed from, `length_controlled_warning`
    why not to trust it. `flags` are the sentences of its red flags, `metrics` other evaluators' main metrics, by name.

    Over several `seeds`, `win_rate` is the mean of `win_rates`, with the standard error of that mean.

    `rank` is None for a system that was judged on part of the instructions; `rank_low` to `rank_high` hold the true
    rank with 95%. `difference` is to the system `difference_to` in points, paired by instruction, with its 95% interval
    and its p-value, corrected for all comparisons; a difference of `detectable` points would be found four times in
    five, by a test of its own.
    """

    system: str
    win_rate: Percent | None
    standard_error: Size | None = None
    n: Count | None = None
    wins: Count | None = None
    losses: Count | None = None
    draws: Count | None = None
    unparsed: Count | None = None
    coverage: Share | None = None
    length: Size | None = None
    length_controlled: Percent | None = None
    length_controlled_error: Size | None = None
    length_controlled_source: str = ""
    length_controlled_warning: str = ""
    prefers_longer: Share | None = None
    prefers_lists: Share | None = None
    flags: tuple[str, ...] = ()
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    rank: Count | None = None
    rank_low: Count | None = None
    rank_high: Count | None = None
    difference: Finite | None = None
    difference_low: Finite | None = None
    difference_high: Finite | None = None
    p_value: Share | None = None
    difference_to: str = ""
    detectable: Size | None = None
    instructions: Count | None = None
    of: Count | None = None
    stopped_early: bool = False
    seeds: tuple[int, ...] = ()
    win_rates: tuple[Percent, ...] = ()
    seconds: Size | None = None
    source: Source = field(default_factory=Source)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95% interval of the win rate: over seeds (Student's t) if there are several, else instructions.

        None if its error is unknown, and over seeds without scipy.
        """
        if len(self.win_rates) > 1:
            from afarm.evaluation.statistics.intervals import mean

            with suppress(PluginError):
                over = mean(self.win_rates)
                return None if over.low is None or over.high is None else within_percent(over.low, over.high)
        if len(self.seeds) > 1 or self.win_rate is None:
            return None
        return interval(self.win_rate, self.standard_error, self.instructions or self.n)

    @property
    def n_asked(self) -> int | None:
        """About how many instructions the judge was asked, unanswered ones included; None if unknown."""
        if self.instructions and self.n and self.n > self.instructions:
            return self.instructions  # several labels of each: what has no answer is counted in labels
        judged = self.instructions or self.n
        return None if judged is None else judged + (self.unparsed or 0)

    @property
    def partial(self) -> bool:
        """True if it was judged on part of the leaderboard's instructions only."""
        return bool(self.of and self.n_asked is not None and self.n_asked < FULL_COVERAGE * self.of)

    def figure(self, name: str) -> float | None:
        """Look up an evaluator's metric, or a field by its own or AlpacaEval's name; "" is the win rate."""
        if name in self.metrics:
            return self.metrics[name].value
        field_name = FIGURES.get(name)
        return getattr(self, field_name) if field_name else None

    def to_row(self) -> Row:
        low, high = self.interval or (None, None)
        row = asdict(self)
        row["source"] = self.source.name  # where judgements lie on this machine tells another one nothing
        return {**row, "flags": list(self.flags), "low": low, "high": high}

    @classmethod
    def from_row(cls, row: Mapping[str, Any], where: str, columns: Mapping[str, str] | None = None) -> Entry:
        """Read an entry; `columns` are a table's names of fields. Raises `DataError` naming `where`."""
        columns = columns or {}
        values = {"system": None, "win_rate": None, **row, "source": Source(str(row.get("source") or ""))}
        try:
            entry = _entries().validate_python(values)
        except ValidationError as error:
            [first, *_] = error.errors()
            name = ".".join(map(str, first["loc"]))
            problem = f"{first['msg'].removeprefix('Input ')}, and is {first['input']!r}"
            raise DataError(
                f"{where}: {'column' if columns else 'field'} {columns.get(name, name)!r} {problem}"
            ) from error
        if entry.win_rate is None and not entry.metrics:
            raise DataError(f"{where}: {'column' if columns else 'field'} 'win_rate' has no number")
        for name, metric in entry.metrics.items():
            if metric.unit and not name.startswith(DIFFERENCE) and not 0 <= metric.value <= 100:
                raise DataError(f"{where}: metric {name!r} must lie between 0 and 100, and is {metric.value!r}")
        return entry


@cache
def _entries() -> TypeAdapter[Entry]:
    return TypeAdapter(Entry)


def entry_of_wins(system: str, wins: Sequence[float], instructions: Sequence[Hashable], **fields: Any) -> Entry:
    """Make an entry from a system's `wins` and the instruction of each, with further `fields`."""
    from afarm.evaluation.statistics.intervals import mean

    rate = mean(wins, instructions)
    return Entry(
        system,
        100 * rate.value,
        None if rate.error is None else 100 * rate.error,
        len(wins),
        sum(win > 0.5 for win in wins),
        sum(win < 0.5 for win in wins),
        sum(win == 0.5 for win in wins),
        instructions=rate.n,
        **fields,
    )


FIGURES = {
    "": "win_rate",
    **{
        name: name
        for name in ("win_rate", "length_controlled", "length", "wins", "losses", "draws", "unparsed", "n", "seconds")
    },
    **{name: name for name in ("prefers_longer", "prefers_lists")},
    "length_controlled_winrate": "length_controlled",
    "avg_length": "length",
}
"""The fields of an entry that can order a board, by what they may be called."""


@dataclass(frozen=True, slots=True, repr=False)
class Leaderboard(Tabular):
    """Entries under one protocol, best first: by win rate, or by the figure `order` (`Entry.figure`).

    `note` is a caveat, `origin` the file that it was read from if that does not say how it was judged.
    `distinguishing` sets it apart from leaderboards of the same name. `wins` are the judgements behind it, if they
    are at hand.
    """

    protocol: EvaluationProtocol
    entries: tuple[Entry, ...]
    title: str = ""
    note: str = ""
    order: str = ""
    origin: str = ""
    distinguishing: str = field(default="", compare=False)
    wins: WinTable | None = field(default=None, compare=False, repr=False)

    @property
    def name(self) -> str:
        """Its title, or else its protocol in words."""
        return self.title or self.protocol.sentence()

    @property
    def heading(self) -> str:
        return f"{self.name} ({self.distinguishing})" if self.distinguishing else self.name

    @property
    def instructions(self) -> int | None:
        """The number of instructions to judge systems on; None if unknown, or if systems met at will."""
        if self.order and self.protocol.known and not self.protocol.reference:
            return None
        judged = len(self.wins.instructions) if self.wins else 0
        with_judgements = set(self.wins.systems) if self.wins else set()
        return (
            max(judged, *(e.of or e.n_asked or 0 for e in self.entries if e.system not in with_judgements), 0) or None
        )

    @property
    def remarks(self) -> str:
        """The note, and why systems have no rank if some have none."""
        partial = [entry for entry in self.entries if entry.partial]
        without_rank = ""
        if partial:
            systems, early = named([entry.system for entry in partial]), [entry.stopped_early for entry in partial]
            how = "judged until it was clear, on" if all(early) else "judged on"
            instructions = f"part of the {partial[0].of:,} instructions"
            without_rank = f"no place for {systems}: {how} {instructions}, the rest could turn it"
            if len(partial) == len(self.entries) and not any(early):
                without_rank += " (--eval-set FILE compares on those that all answered)"
        lacking = [entry.system for entry in self.entries if entry.figure(self.order) is None]
        without_figure = f"no place for {named(lacking)}: no {self.order}" if lacking else ""
        return "; ".join(filter(None, (self.note, without_rank, without_figure)))

    @property
    def pages(self) -> dict[str, Path]:
        """The pages about the judges of its entries, by title."""
        return {title: page for entry in self.entries for title, page in entry.source.pages.items()}

    @property
    def id(self) -> str:
        """Equal for leaderboards whose entries may be merged: the protocol and the order, or title and origin."""
        return f"{self.protocol.id} {self.order}" if self.protocol.known else f"{self.title}\n{self.origin}"

    def table_rows(self) -> Iterator[Row]:
        """Yield a row per entry: its numbers, the win rate's interval, and each metric under its name."""
        for entry in self.entries:
            row = entry.to_row()
            numbers = {name: value for name, value in row.items() if not isinstance(value, dict | list | tuple)}
            yield {**numbers, **{name: metric.value for name, metric in entry.metrics.items()}}

    def __repr__(self) -> str:
        figure = self.entries[0].figure(self.order) if self.entries else None
        unit = "" if self.order else " %"
        first = "" if figure is None else f", first {self.entries[0].system} at {figure:.1f}{unit}"
        return f"Leaderboard({self.heading}: {len(self.entries)} systems{first})"

    def _repr_html_(self) -> str:
        columns = ("rank", "system", "win_rate", "low", "high", "n")
        return html_table(columns, [[row.get(name) for name in columns] for row in self.table_rows()], self.heading)

    def to_dict(self) -> Row:
        """Return the board as JSON has it."""
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
        """Read what `to_dict` returned. Raises `DataError` naming `where` and what is wrong."""
        rows = row.get("entries") if isinstance(row, Mapping) else None
        if not isinstance(rows, list) or not all(isinstance(entry, Mapping) for entry in rows):
            raise DataError(f"{where}: must hold a list of entries")
        entries = tuple(Entry.from_row(entry, f"{where}, entry {number}") for number, entry in enumerate(rows))
        protocol = EvaluationProtocol.from_row(row.get("protocol"))
        title = str(row.get("title") or "") or ("" if protocol.known else where)
        note, order, origin = (str(row.get(name) or "") for name in ("note", "order", "origin"))
        return ranked(cls(protocol, entries, title, note, order, origin))


MOST_NAMED = 5


def named(names: Sequence[str], what: str = "systems") -> str:
    """List a few names; of more than `MOST_NAMED`, say how many `what` they are."""
    return ", ".join(names) if len(names) <= MOST_NAMED else f"{len(names)} {what}"


def ranked(board: Leaderboard) -> Leaderboard:
    """Sort `board` and rank its entries; equal values share a rank. Rank intervals stay where they are.

    A system that was judged on part of the instructions, or lacks the figure, has no rank, and stands below those that
    have one: on other instructions, or if judging stopped at a moment that suited it, a high win rate is luck as well.
    """

    def value(entry: Entry) -> float:
        figure = entry.figure(board.order)
        return -math.inf if figure is None else figure

    def without_rank(entry: Entry) -> bool:
        return entry.partial or value(entry) == -math.inf

    of = board.instructions
    entries = [replace(entry, of=of) for entry in board.entries]
    entries = sorted(entries, key=lambda entry: (without_rank(entry), -value(entry), entry.system))
    complete = [value(entry) for entry in entries if not without_rank(entry)]
    with_ranks = (
        replace(entry, rank=None if without_rank(entry) else 1 + sum(other > value(entry) for other in complete))
        for entry in entries
    )
    return replace(board, entries=tuple(with_ranks))


NO_COMPARISON: Mapping[str, Any] = {
    **dict.fromkeys(
        ("rank_low", "rank_high", "difference", "difference_low", "difference_high", "p_value", "detectable")
    ),
    "difference_to": "",
}
"""The fields of an entry that compare its win rate with others', emptied."""


def ordered(board: Leaderboard, names: Sequence[str]) -> Leaderboard:
    """Order a board by the first of these figures that any of its entries has; unchanged if none has any.

    Rank intervals and differences are of win rates, and left out in another order.
    """
    name = next((name for name in names if any(entry.figure(name) is not None for entry in board.entries)), None)
    if name is None:
        return board
    order = "" if name == "win_rate" else name
    entries = board.entries if not order else tuple(replace(entry, **NO_COMPARISON) for entry in board.entries)
    return ranked(replace(board, order=order, entries=entries))
