"""Labelled pairs for fitting: each pair once, in canonical order, with every label that it has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from afarm import (
    DataError,
    JudgedPair,
    Pair,
    Unusable,
    in_canonical_order,
    read_labelled_pairs,
    seeding,
    stem,
    why_left_out,
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
    reasons: Counter[str] = field(default_factory=Counter)
    torn: list[LabelledPair] = field(default_factory=list)
    """Pairs with as many labels for one output as for the other."""
    unusable: Unusable = field(default_factory=Unusable)
    annotators: Counter[str] = field(default_factory=Counter)
    sides: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Labels by the side that won, as the files have it, and its system."""

    def add(self, label: JudgedPair, has_sides: bool) -> bool:
        """Count a label. Returns False for one that is left out."""
        self.labels += 1
        if reason := why_left_out(label):
            self.reasons[reason] += 1
            return False
        self.annotators[label.annotator or "unnamed"] += 1
        self.draws += label.win == 0.5
        if has_sides and label.win is not None and label.win != 0.5:
            second, pair = label.win > 0.5, label.pair
            self.sides["output_2" if second else "output_1", pair.generator_2 if second else pair.generator_1] += 1
        return True

    @property
    def describe_left_out(self) -> str:
        """The reasons as text, without draws, which count in pairs that have other labels."""
        return ", ".join(f"{count:,} {reason}" for reason, count in self.exclusions.items() if reason != "draws")

    @property
    def exclusions(self) -> dict[str, int]:
        """The reasons that occur, with their numbers."""
        reasons = {
            "draws": self.draws,
            **dict(sorted(self.reasons.items(), reverse=True)),  # whatever the order of rows
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
    for source in sources:
        name = stem(str(source))
        for _, row, judged in read_labelled_pairs(source, scale, None, name, as_text=True, unusable=counts.unusable):
            for label in judged:
                pair, win = (turned := in_canonical_order(label)).pair, turned.win
                if counts.add(label, has_sides="chosen" not in row) and win is not None:
                    # Two systems may have written the same texts: their pairs stay apart.
                    key = (pair.id, pair.generator_1, pair.generator_2)
                    pairs[key] = pair
                    votes.setdefault(key, []).append(win)
    labelled = [LabelledPair(pairs[key], tuple(sorted(votes[key]))) for key in sorted(votes)]
    counts.torn = [row for row in labelled if abs(row.p2 - 0.5) < 1e-9 and len(set(row.votes)) > 1]
    chosen = [row for row in labelled if abs(row.p2 - 0.5) >= 1e-9]
    require_enough(chosen, counts, ", ".join(map(str, sources)))
    return chosen, counts


def require_enough(chosen: Sequence[LabelledPair], counts: LabelCounts, where: str) -> None:
    """Raise `DataError` naming what is lacking, and how to get it."""
    left_out = ", ".join(f"{count} {reason}" for reason, count in counts.exclusions.items())
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
    if len({side for side, _ in counts.sides}) == 1:
        [(side, winner), *others] = counts.sides
        of = f" ({winner})" if winner and not others else ""
        raise DataError(
            f"{where}: all {counts.sides.total()} labels are for {side}{of}: with one label only it cannot be told "
            "what it follows; add annotations in which the other side wins, or write the columns 'chosen' and "
            "'rejected' if the better output is always put there on purpose"
        )


def deal_folds(instructions: Iterable[str], count: int, seed: int) -> dict[str, int]:
    """Deal instructions, by their ids, into `count` folds of equal size, drawn under `seed`."""
    drawn = sorted(set(instructions), key=lambda id: seeding.uniform(seed, "fold", id))
    return {id: place % count for place, id in enumerate(drawn)}
