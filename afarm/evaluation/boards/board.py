"""Leaderboards: systems under one protocol, ranked by win rate or another evaluator's metric."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from afarm.core.errors import DataError
from afarm.core.records import Row
from afarm.evaluation.metrics import finite_number, interval, main_metric, warnings
from afarm.evaluation.protocol import EvaluationProtocol
from afarm.storage.table import Tabular, html_table

if TYPE_CHECKING:
    from afarm.evaluation.win_table import WinTable

FULL_COVERAGE = 0.99
"""The share of a leaderboard's instructions that a system must have been asked about to have a rank."""
DIFFERENCE = "Δ "
"""What names of metrics that are differences from the reference's begin with."""


@dataclass(frozen=True, slots=True)
class Source:
    """The origin of an entry: a `name` for people, and the file of its judgements, if there is one.

    `created` is the time of its evaluation in seconds since 1970, 0 if unknown.
    """

    name: str = ""
    judgements: str = ""
    reference: str = ""
    created: float = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Metric:
    """An evaluator's main metric of a system, with its error or 95% interval, from `n` judgements.

    `flag` is a warning about it, `unit` "%" for a win rate.
    """

    value: float
    error: float | None = None
    low: float | None = None
    high: float | None = None
    n: int | None = None
    flag: str = ""
    unit: str = ""


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
    `seconds` are those of the system's own training and sampling. `prefers_longer` and `prefers_lists` are the judge's
    shares of choices for the longer output and for the one with a list, if outputs differ in that.
    `length_controlled_source` names what the length-controlled win rate was computed from, `length_controlled_warning`
    why not to trust it. `flags` are the sentences of its red flags, `metrics` those of other evaluators, by name.

    Over several `seeds`, `win_rate` is the mean of `win_rates`, and its error that of the mean.

    `rank` is None for a system that was judged on part of the instructions; `rank_low` to `rank_high` hold the true
    rank with 95%. `difference` is to the system `difference_to` in points, paired by instruction, with its 95% interval
    and its p-value, corrected for all comparisons; a difference of `detectable` points would be found four times in
    five, by a test of its own.
    """

    system: str
    win_rate: float | None
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
    metrics: Mapping[str, Metric] = field(default_factory=dict)
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
    seeds: tuple[int, ...] = ()
    win_rates: tuple[float, ...] = ()
    seconds: float | None = None
    source: Source = field(default_factory=Source)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95% interval of the win rate over instructions, None if its error is unknown or one over seeds."""
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
        names = {f.name for f in fields(cls)} - {*TEXTS, *NOT_NUMBERS}
        numbers = _numbers({name: row.get(name) for name in names}, where, columns)
        if not isinstance(row.get("system"), str):
            raise DataError(f"{where}: field 'system' must be text, not {row.get('system')!r}")
        flags, metrics = row.get("flags") or (), row.get("metrics") or {}
        if numbers.setdefault("win_rate", None) is None and not metrics:
            raise DataError(f"{where}: {'column' if columns else 'field'} 'win_rate' has no number")
        texts: dict[str, Any] = {name: str(row.get(name) or "") for name in TEXTS}
        return cls(
            **numbers,
            **texts,
            stopped_early=bool(row.get("stopped_early")),
            flags=tuple(map(str, flags)) if isinstance(flags, list) else (),
            metrics=_metrics(metrics, where) if isinstance(metrics, Mapping) else {},
            seeds=tuple(map(round, _number_list(row.get("seeds")))),
            win_rates=tuple(_number_list(row.get("win_rates"))),
            source=Source(str(row.get("source") or "")),
        )


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

TEXTS = ("system", "length_controlled_source", "length_controlled_warning", "difference_to")
"""The fields of an entry that are text."""
NOT_NUMBERS = ("source", "flags", "metrics", "stopped_early", "seeds", "win_rates")
"""Its fields that are neither text nor one number."""

ANY = -math.inf, math.inf
PERCENT, SHARE = (0, 100), (0, 1)
BOUNDS: Mapping[str, tuple[float, float]] = {
    **dict.fromkeys(("win_rate", "length_controlled"), PERCENT),
    **dict.fromkeys(("coverage", "prefers_longer", "prefers_lists", "p_value"), SHARE),
    **dict.fromkeys(("value", "low", "high", "difference", "difference_low", "difference_high"), ANY),
}
"""Bounds of the numbers of a row; errors, counts, ranks and lengths are from 0 on."""


def _numbers(values: Mapping[str, Any], where: str, columns: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Keep the values that are not None. Raises `DataError` naming `where` and one that is no such number."""
    numbers = {name: value for name, value in values.items() if value is not None}
    for name, value in numbers.items():
        called = f"column {columns[name]!r}" if columns else f"field {name!r}"
        low, high = BOUNDS.get(name, (0, math.inf))
        if finite_number(value) is None:
            raise DataError(f"{where}: {called} must be a number, not {value!r}")
        if not low <= value <= high:
            must = "not be negative" if high == math.inf else f"lie between {low} and {high}"
            raise DataError(f"{where}: {called} must {must}, and is {value!r}")
    return numbers


def _number_list(values: Any) -> list[float]:
    numbers = [finite_number(value) for value in values] if isinstance(values, list) else []
    return [value for value in numbers if value is not None]


def _metrics(rows: Mapping[str, Any], where: str) -> dict[str, Metric]:
    metrics = {}
    for name, row in rows.items():
        row = row if isinstance(row, Mapping) else {"value": row}
        inside = f"{where}, metric {name!r}"
        numbers = _numbers({n: row.get(n) for n in ("value", "error", "low", "high", "n")}, inside)
        if numbers:
            if "value" not in numbers:
                raise DataError(f"{inside}: field 'value' is missing")
            unit = row.get("unit") or ""
            if unit not in ("", "%"):
                raise DataError(f"{inside}: field 'unit' must be '%' or empty, not {unit!r}")
            if unit and not str(name).startswith(DIFFERENCE) and not 0 <= numbers["value"] <= 100:
                raise DataError(f"{inside}: field 'value' must lie between 0 and 100, and is {numbers['value']!r}")
            metrics[str(name)] = Metric(**numbers, flag=str(row.get("flag") or ""), unit=unit)
    return metrics


@dataclass(frozen=True, slots=True, repr=False)
class Leaderboard(Tabular):
    """Entries under one protocol, best first: by win rate, or by the figure `order` (`Entry.figure`).

    `note` is a caveat, `origin` the file that it was read from if that does not say how it was judged.
    `distinguishing` is what tells it from leaderboards of the same name. `wins` are the judgements behind it, if they
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
    def id(self) -> str:
        """Equal for leaderboards whose entries may be merged: the protocol and the order, or title and origin."""
        return f"{self.protocol.id} {self.order}" if self.protocol.known else f"{self.title}\n{self.origin}"

    def to_dict(self) -> Row:
        """Return the board as it is in JSON."""
        return self.to_row()

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
        """Read what `to_row` wrote. Raises `DataError` naming `where` and what is wrong."""
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
    """Order a board by the first of these figures that any of its entries has; else it stays as it is.

    Rank intervals and differences are of win rates, and left out in another order.
    """
    name = next((name for name in names if any(entry.figure(name) is not None for entry in board.entries)), None)
    if name is None:
        return board
    order = "" if name == "win_rate" else name
    entries = board.entries if not order else tuple(replace(entry, **NO_COMPARISON) for entry in board.entries)
    return ranked(replace(board, order=order, entries=entries))
