"""Rendering of leaderboards: columns, remarks and footnotes as text; boards as JSON.

Names come from anybody's files: nothing in them that moves a cursor, ends a cell or begins a tag is let through.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from afarm.evaluation.boards.board import DIFFERENCE, Entry, Leaderboard, named
from afarm.evaluation.boards.correlation import Agreement
from afarm.evaluation.metrics import WIN_RATE
from afarm.storage.text import one_line

LONGEST_NAME = 24
"""Characters of a name in a heading."""
NO_RANK = "–"
HEADINGS = {
    "": "win rate, %",
    "length_controlled": "LC, %",
    "length_controlled_winrate": "LC, %",
    "length": "characters",
    "avg_length": "characters",
    "prefers_longer": "longer",
    "prefers_lists": "lists",
    "unparsed": "no answer",
}
"""Headings of columns whose figure is called otherwise."""
_SUFFIXES = {1: "st", 2: "nd", 3: "rd"}


@dataclass(frozen=True, slots=True)
class Column:
    """A column by its heading; `cell` gives None if a value is unknown. Numbers are aligned to the right.

    If there is no room, the columns with the highest `spared` are left out first, and those with none never.
    """

    heading: str
    cell: Callable[[Entry], str | None]
    number: bool = True
    spared: int = 0


def rank_text(entry: Entry) -> str:
    """Write the rank with its 95% interval, such as "3rd, 2–5"; without judgements the rank alone."""
    n = entry.rank
    if n is None:
        return NO_RANK
    ordinal = f"{n}{'th' if n % 100 in (11, 12, 13) else _SUFFIXES.get(n % 10, 'th')}"
    if entry.rank_low is None or entry.rank_high is None:
        return ordinal
    return f"{ordinal}, {entry.rank_low}–{entry.rank_high}"


def _figure(
    value: float | None, form: str, error: float | None = None, low: float | None = None, high: float | None = None
) -> str | None:
    """Write a value with its interval, or else its error."""
    if value is None:
        return None
    if low is not None and high is not None:
        return f"{value:{form}} ({low:{form}} to {high:{form}})"
    return f"{value:{form}}" + ("" if error is None else f" ± {error:{form.removeprefix('+')}}")


def _p_value(entry: Entry) -> str | None:
    if entry.p_value is None:
        return None
    return "< 0.001" if entry.p_value < 0.001 else f"{entry.p_value:.3f}"


def _judged_on(entry: Entry) -> str | None:
    if entry.of is None or entry.n_asked is None:
        return None
    part = f"{entry.n_asked:,} of {entry.of:,}" if entry.partial else f"{entry.n_asked:,}"
    return f"{part}, stopped early" if entry.stopped_early else part


def _outcomes(entry: Entry) -> str | None:
    counts = (entry.wins, entry.losses, entry.draws)
    return None if None in counts else "/".join(map(str, counts))


LEGEND = {
    "win rate, %": "± is the standard error over instructions, 95 % the interval.",
    "LC, %": "LC: length-controlled win rate.",
    "longer": "longer: how often the judge chose the longer output, where lengths differed.",
    "lists": "lists: how often it chose the output with a list, where one had one.",
}
"""What columns are, by their headings."""


def legend(boards: Sequence[Leaderboard]) -> str:
    """Explain the columns that these boards have."""
    headings = {column.heading for board in boards for column in columns(board)}
    return " ".join(text for heading, text in LEGEND.items() if heading in headings)


UNADJUSTED = (
    "Δ with an unadjusted 95 % interval, of that comparison by itself; p is adjusted for all {pairs} pairs of the "
    "board (Holm). An interval without 0 beside a large p is no contradiction: by itself the difference is clear, as "
    "one of so many it may be chance."
)


def columns(board: Leaderboard) -> list[Column]:
    """The columns with a value: other evaluators' last, but for the one that orders the board."""
    notes, shared = footnotes(board), shared_flags(board)

    def length_controlled(entry: Entry) -> str | None:
        rate = _figure(entry.length_controlled, ".1f", entry.length_controlled_error)
        return rate and rate + _marks(notes, entry, "length_controlled")

    def of_evaluator(name: str) -> Column:
        # A file of an earlier afarm names no unit: its figures are in that of the others.
        unit = next((e.metrics[name].unit for e in board.entries if name in e.metrics and e.metrics[name].unit), "")

        def cell(entry: Entry) -> str | None:
            metric = entry.metrics.get(name)
            if metric is None:
                return None
            sign, digits = "+" if name.startswith(DIFFERENCE) else "", 1 if unit or abs(metric.value) >= 100 else 3
            text = _figure(metric.value, f"{sign}.{digits}f", metric.error, metric.low, metric.high) or ""
            return text + _marks(notes, entry, name)

        return Column(one_line(f"{name}, {unit}" if unit else name), cell, spared=1)

    to = next((entry.difference_to for entry in board.entries if entry.difference_to), "")
    metrics = {name: of_evaluator(name) for entry in board.entries for name in entry.metrics}
    names = (
        Column("rank", rank_text, number=False),
        Column("system", lambda e: one_line(e.system), number=False),
        Column("flags", lambda e: str(len(own_flags(e, shared)) or "")),
        *([Column("judged on", _judged_on)] if any(e.partial or e.stopped_early for e in board.entries) else []),
    )
    figures = (
        Column("win rate, %", lambda e: _figure(e.win_rate, ".1f", e.standard_error)),
        Column("95 %", lambda e: e.interval and "{:.1f}–{:.1f}".format(*e.interval), spared=2),
        Column(
            f"Δ to {one_line(to, LONGEST_NAME)}",
            lambda e: _figure(e.difference, "+.1f", None, e.difference_low, e.difference_high),
            spared=3,
        ),
        Column("p, adjusted", _p_value, spared=3),
        Column("LC, %", length_controlled),
        Column("n", lambda e: _figure(e.n, "d"), spared=4),
        Column("won/lost/drawn", _outcomes, spared=9),
        Column("no answer", lambda e: _figure(e.unparsed or None, "d"), spared=8),
        Column("characters", lambda e: _figure(e.length, ".0f"), spared=5),
        Column("longer", lambda e: _figure(e.prefers_longer, ".2f"), spared=6),
        Column("lists", lambda e: _figure(e.prefers_lists, ".2f"), spared=7),
        *metrics.values(),
        Column("seconds", lambda e: _figure(e.seconds, ".0f"), spared=11),
        Column("seeds", lambda e: ", ".join(map(str, e.seeds)) or None, spared=10),
    )
    named = {name: column.heading for name, column in metrics.items()}
    order = named.get(board.order) or HEADINGS.get(board.order, one_line(board.order))
    first = [replace(column, spared=0) for column in figures if column.heading == order]
    every = (*names, *first, *(column for column in figures if column.heading != order))
    return [column for column in every if any(column.cell(entry) for entry in board.entries)]


PADDING = 3
"""Characters that a column takes beside its text."""


def fitting(board: Leaderboard, shown: Sequence[Column], width: int | None) -> tuple[list[Column], int]:
    """The columns of `shown` that fit `width` characters (None: all), and their total width."""
    needed = {
        column: PADDING + max(len(column.heading), *(len(column.cell(entry) or "") for entry in board.entries))
        for column in shown
    }
    room = math.inf if width is None else width - PADDING
    kept = {column for column in shown if not column.spared}
    for column in sorted((column for column in shown if column.spared), key=lambda column: column.spared):
        if sum(needed[other] for other in kept) + needed[column] <= room:
            kept.add(column)
    return [column for column in shown if column in kept], sum(needed[column] for column in kept) + PADDING


def remarks(board: Leaderboard) -> list[str]:
    """Lines to be read with a board: remarks, differences, length control, footnotes."""
    sources = _sources(board)
    detectable = [entry.detectable for entry in board.entries if entry.detectable is not None]
    to = next((entry.difference_to for entry in board.entries if entry.difference_to), "")
    low, high = (f"{end:.1f}" for end in (min(detectable, default=0), max(detectable, default=0)))
    span = low if low == high else f"{low} (to {high}, by the system)"
    compared = sum(entry.p_value is not None for entry in board.entries)
    lines = [
        board.remarks,
        f"A difference to {to} of under {span} points may go unseen: an unadjusted test finds it less "
        "than four times in five, the adjusted one less often."
        if detectable
        else "",
        UNADJUSTED.format(pairs=f"{compared * (compared + 1) // 2:,}") if compared > 1 else "",
        f"Length control: {next(iter(sources))}." if len(sources) == 1 else "",
        *(f"[{number}] {text}" for text, number in footnotes(board).items()),
    ]
    return [one_line(line, 600) for line in lines if line]


def answer(board: Leaderboard) -> str:
    """Say which system is first by whom, and which are not clearly apart from it; empty without a ranking.

    Apart are those that the adjusted test tells apart, or without tests those whose 95% intervals do not meet, as long
    as missing verdicts could not put them first.
    """
    entries = [entry for entry in board.entries if entry.rank is not None]
    if not entries:
        return ""
    first, *others = entries
    is_rate = board.order in ("", WIN_RATE)
    reference = one_line(first.source.reference or board.protocol.reference) if is_rate else ""
    name, judges = one_line(first.system), one_line(board.protocol.who_judged) if board.protocol.known else ""
    text = f"{name}{' first' if others else ''}: {'win rate' if is_rate else one_line(board.order)}"
    text += f" {first.figure(board.order) or 0.0:.1f}{' %' * is_rate}{f' against {reference}' * bool(reference)}"

    def ends(entry: Entry) -> tuple[float, float]:
        metric = entry.metrics.get(board.order)
        of_metric = (metric.low, metric.high) if metric else (None, None)
        low, high = entry.interval or (None, None) if is_rate else of_metric
        return (-math.inf, math.inf) if low is None or high is None else (low, high)

    low, high = ends(first)
    text += f" (95 % {low:.1f} to {high:.1f})" if math.isfinite(low) else ""
    text += f", judged by {judges}" if judges else ""
    if not math.isfinite(low):
        return f"{text}; how clearly is not known."
    close = [
        e
        for e in others
        if (ends(e)[1] >= low if e.p_value is None else e.p_value >= 0.05) or (first.rank_high or 1) >= (e.rank or 0)
    ]
    near = [e.system for e in close] + ([f"{reference} (50 %)"] if reference and low <= 50 <= high else [])
    text += f"; {reference} is clearly ahead" if reference and high < 50 else "" if near else "; clearly ahead"
    untested = " by intervals alone" * any(is_rate and e.p_value is None for e in close)
    return text + (f"; not clearly apart from {name}{untested}: {named(list(map(one_line, near)))}." if near else ".")


def footnotes(board: Leaderboard) -> dict[str, int]:
    """Number the footnotes that cells of a board refer to."""
    sources = _sources(board)
    of_all = {OF_SOURCE.format(source) for source in sources} if len(sources) == 1 else set()  # is no footnote
    notes = dict.fromkeys(
        text for entry in board.entries for texts in _cautions(entry).values() for text in texts if text not in of_all
    )
    return {text: number for number, text in enumerate(notes, start=1)}


def _sources(board: Leaderboard) -> dict[str, None]:
    """The distinct sources that length-controlled win rates of a board were computed from."""
    known = (e.length_controlled_source for e in board.entries if e.length_controlled is not None)
    return dict.fromkeys(filter(None, known))


OF_SOURCE = "length control: {}; figures of different kinds cannot be compared"


def _cautions(entry: Entry) -> dict[str, list[str]]:
    """Cautions about the figures of an entry, by their names."""
    source, warning = entry.length_controlled_source, entry.length_controlled_warning
    on_length = [OF_SOURCE.format(source)] if source else []
    on_length += [f"length control: {warning}"] if warning else []
    on_metrics = {name: [f"{name}: {metric.flag}"] for name, metric in entry.metrics.items() if metric.flag}
    return {**({} if entry.length_controlled is None else {"length_controlled": on_length}), **on_metrics}


def _marks(notes: Mapping[str, int], entry: Entry, name: str) -> str:
    numbers = [str(notes[text]) for text in _cautions(entry).get(name, ()) if text in notes]
    return f" [{', '.join(numbers)}]" if numbers else ""


def shared_flags(board: Leaderboard) -> list[str]:
    """The red flags that all of several systems raise: a row need not repeat them."""
    first, *others = board.entries or (None,)
    if first is None or not others:
        return []
    return [flag for flag in dict.fromkeys(first.flags) if all(flag in entry.flags for entry in others)]


def own_flags(entry: Entry, shared: Sequence[str]) -> list[str]:
    """The red flags of an entry that are not shared by all systems."""
    return [flag for flag in dict.fromkeys(entry.flags) if flag not in shared]


def flags(board: Leaderboard) -> list[str]:
    """List the red flags in the order of the board, each once with its systems; flags of all systems last."""
    systems: dict[str, list[str]] = {}
    shared = shared_flags(board)
    for entry in board.entries:
        for flag in own_flags(entry, shared):
            systems.setdefault(flag, []).append(one_line(entry.system))
    lines = [f"{', '.join(names)}: {one_line(flag, 400)}" for flag, names in systems.items()]
    return lines + [f"all: {one_line(flag, 400)}" for flag in shared]


def as_json(boards: Sequence[Leaderboard], left_out: Sequence[str] = (), agreements: Sequence[Agreement] = ()) -> str:
    """Write what `afarm leaderboard FILE` reads again."""
    shared = {"boards": [board.to_dict() for board in boards], "left_out": list(left_out)}
    if agreements:
        shared["correlations"] = [agreement.to_row() for agreement in agreements]
    return json.dumps(shared, ensure_ascii=False, indent=1) + "\n"
