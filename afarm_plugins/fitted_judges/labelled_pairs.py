"""Labelled pairs for fitting: each pair once, in canonical order, with every label that it has.

All forms of `afarm.own_preferences` are read, and files with a column per person, whose labels stay apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from statistics import fmean

from afarm import (
    DataError,
    JudgedPair,
    LabelReader,
    Pair,
    Row,
    Unusable,
    labels_of_people,
    own_preferences,
    people_columns,
    placed_rows,
    seeding,
)

FEWEST_PAIRS = 50
"""Pairs with a better output below which nothing is fitted: a share of 50 has a standard error of up to 7 points."""
FEWEST_INSTRUCTIONS = 10


@dataclass(frozen=True, slots=True)
class LabelledPair:
    """A pair in canonical order. `votes` are its labels, wins of its second output; a draw is 0.5."""

    pair: Pair
    votes: tuple[float, ...]

    @property
    def p2(self) -> float:
        """The mean of the labels."""
        return fmean(self.votes)

    @property
    def systems(self) -> set[str]:
        """The names of the two systems, those that are known."""
        return {self.pair.generator_1, self.pair.generator_2} - {""}


@dataclass(slots=True)
class LabelCounts:
    """The labels of all files, and the reasons for which some are not learned from."""

    labels: int = 0
    draws: int = 0
    without_label: int = 0
    identical: int = 0
    flipped: int = 0
    by_rule: int = 0
    torn: list[LabelledPair] = field(default_factory=list)
    """Pairs with as many labels for one output as for the other."""
    unusable: Unusable = field(default_factory=Unusable)
    annotators: Counter[str] = field(default_factory=Counter)
    sides: Counter[int] = field(default_factory=Counter)
    """Labels for the first and for the second output as the files have them."""
    winners: Counter[str] = field(default_factory=Counter)

    @property
    def left_out_text(self) -> str:
        """The reasons as a text, without draws: they count in a pair that has other labels."""
        return ", ".join(f"{count:,} {reason}" for reason, count in self.left_out.items() if reason != "draws")

    @property
    def left_out(self) -> dict[str, int]:
        """The reasons that occur, with their numbers."""
        reasons = {
            "draws": self.draws,
            "without a label": self.without_label,
            "of identical outputs": self.identical,
            "left to a coin as label noise": self.flipped,
            "decided by a rule": self.by_rule,
            "rows that cannot be read": self.unusable.rows,
            "pairs with as many labels for one output as for the other": len(self.torn),
        }
        return {reason: count for reason, count in reasons.items() if count}


def read_labelled(sources: Sequence[Path | str], scale: str = "") -> tuple[list[LabelledPair], LabelCounts]:
    """Read the pairs whose labels choose, in an order that does not depend on that of files or rows.

    Labels of the same outputs by the same systems are several labels of one pair. `scale` names the labels of the first
    output, of the second and of a draw, such as "0,1"; empty for 1, 2 and 0.

    Raises `DataError` if there are too few, none, or all labels are for one side.
    """
    counts = LabelCounts()
    votes: dict[tuple[str, str, str], list[float]] = {}
    pairs: dict[tuple[str, str, str], Pair] = {}
    for pair, wins in chain.from_iterable(_rows_of(source, counts, scale) for source in sources):
        canonical = replace(pair if pair.is_canonical else pair.swapped(), occurrence=0)
        # Two systems may have written the same texts: their pairs stay apart.
        key = (canonical.id, canonical.generator_1, canonical.generator_2)
        pairs[key] = canonical
        votes.setdefault(key, []).extend(wins if pair.is_canonical else [1 - win for win in wins])
    labelled = [LabelledPair(pairs[key], tuple(sorted(votes[key]))) for key in sorted(votes)]
    counts.torn = [row for row in labelled if abs(row.p2 - 0.5) < 1e-9 and len(set(row.votes)) > 1]
    chosen = [row for row in labelled if abs(row.p2 - 0.5) >= 1e-9]
    require_enough(chosen, counts, ", ".join(map(str, sources)))
    return chosen, counts


def require_enough(chosen: Sequence[LabelledPair], counts: LabelCounts, where: str) -> None:
    """Raise `DataError` naming what is lacking, and how to get it."""
    left_out = ", ".join(f"{count} {reason}" for reason, count in counts.left_out.items())
    if not chosen:
        raise DataError(
            f"{where}: no label to learn from: {left_out or 'no rows'}; a fitted judge needs labels that choose one "
            "of two outputs: afarm annotate, or people's"
        )
    instructions = len({row.pair.instruction.id for row in chosen})
    if len(chosen) < FEWEST_PAIRS or instructions < FEWEST_INSTRUCTIONS:
        raise DataError(
            f"{where}: {len(chosen)} pairs of {instructions} instructions have a better output"
            f"{f' ({left_out} left out)' if left_out else ''}: too few to fit a judge and to say how good it is; at "
            f"least {FEWEST_PAIRS} pairs of {FEWEST_INSTRUCTIONS} instructions: label more with afarm annotate"
        )
    if counts.sides and len(counts.sides) == 1:
        side = next(iter(counts.sides))
        winner = next(iter(counts.winners)) if len(counts.winners) == 1 else ""
        raise DataError(
            f"{where}: all {counts.sides[side]} labels are for output_{side}{f' ({winner})' if winner else ''}: with "
            "one label only it cannot be told what it follows; add annotations in which the other side wins, or write "
            "the columns 'chosen' and 'rejected' if the better output is always put there on purpose"
        )


def _rows_of(source: Path | str, counts: LabelCounts, scale: str) -> Iterator[tuple[Pair, list[float]]]:
    """Yield the pairs of a file with their labels, and count what is left out."""
    rows = placed_rows(source)
    first = next(rows, None)
    if first is None:
        return
    if people_columns(first[1]) and "preference" not in first[1]:
        labels = LabelReader(source, scale)
        for where, row in chain([first], rows):
            yield from _by_people(row, where, counts, labels)
        labels.require_one_reading()
        return
    has_sides = "chosen" not in first[1]
    for judged in own_preferences(source, counts.unusable, scale=scale):
        yield from _by_one(judged, has_sides, counts)


def _by_one(judged: JudgedPair, has_sides: bool, counts: LabelCounts) -> Iterator[tuple[Pair, list[float]]]:
    preference, pair = judged.preference, judged.pair
    counts.labels += 1
    if pair.identical:
        counts.identical += 1
    elif preference.source == "noise":
        counts.flipped += 1
    elif preference.source == "rule":
        counts.by_rule += 1
    elif preference.win is None:
        counts.without_label += 1
    else:
        counts.annotators[judged.annotator or "unnamed"] += 1
        counts.draws += preference.win == 0.5
        _count_side(pair, preference.win, has_sides, counts)
        yield pair, [preference.win]


def _by_people(row: Row, where: str, counts: LabelCounts, labels: LabelReader) -> Iterator[tuple[Pair, list[float]]]:
    """Yield a pair with the labels of several people, each in a column of their own."""
    pair, wins = labels_of_people(row, where, labels)
    counts.labels += len(wins)
    if pair.identical:
        counts.identical += len(wins)
        return
    counts.without_label += sum(win is None for win in wins.values())
    answered = {person: win for person, win in wins.items() if win is not None}
    for person, win in answered.items():
        counts.annotators[person] += 1
        counts.draws += win == 0.5
        _count_side(pair, win, True, counts)
    if answered:
        yield pair, list(answered.values())


def _count_side(pair: Pair, win: float, has_sides: bool, counts: LabelCounts) -> None:
    if has_sides and win != 0.5:
        counts.sides[1 + (win > 0.5)] += 1
        counts.winners[pair.generator_2 if win > 0.5 else pair.generator_1] += 1


def folds_of(instructions: Iterable[str], count: int, seed: int) -> dict[str, int]:
    """Deal instructions, by their ids, into `count` folds of equal size, drawn under `seed`."""
    drawn = sorted(set(instructions), key=lambda id: seeding.uniform(seed, "fold", id))
    return {id: place % count for place, id in enumerate(drawn)}
