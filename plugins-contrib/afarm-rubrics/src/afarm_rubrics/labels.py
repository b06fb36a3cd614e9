"""Labels that a rubric is induced from or scored on: pairs with a better output, split by instruction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from afarm import DataError, Pair, in_canonical_order, read_labelled_pairs, seeding, task_key, why_left_out

FEWEST_PAIRS, FEWEST_TASKS = 10, 5
"""Pairs, and their tasks, that each part must have."""


@dataclass(frozen=True)
class Labels:
    """Pairs, as the file shows them first, and whether output 2 is the better one.

    `ties` counts pairs that were left out: people call both equally good, or disagree evenly.
    """

    source: str
    pairs: tuple[Pair, ...]
    second: tuple[bool, ...]
    ties: int = 0

    def of(self, numbers: Sequence[int]) -> Labels:
        """Return the labels with these numbers."""
        return replace(self, pairs=tuple(self.pairs[n] for n in numbers), second=tuple(self.second[n] for n in numbers))

    @property
    def tasks(self) -> list[str]:
        """Each pair's task, equal however it is written, and whatever the system text is."""
        return [seeding.digest("task", task_key(pair.instruction)[1]) for pair in self.pairs]

    @property
    def digest(self) -> str:
        """Changes with every pair and every label."""
        rows = zip(self.pairs, self.second, strict=True)
        return seeding.digest("labels", sorted([pair.id, second == pair.is_canonical] for pair, second in rows))


def draw(labels: Labels, limit: int | None, seed: int) -> Labels:
    """Draw `limit` pairs by seed, a larger limit more."""
    places = [seeding.uniform(seed, "rubric labels", pair.id) for pair in labels.pairs]
    return labels.of(sorted(sorted(range(len(places)), key=places.__getitem__)[:limit]))


def read_labels(source: str, scale: str | None = None) -> Labels:
    """Read the pairs with a better output, each once; of several people, by the mean of their labels.

    Raises `DataError` if no pair has a better output.
    """
    wins: dict[str, list[float]] = {}
    pairs: dict[str, Pair] = {}
    for _, _, people in read_labelled_pairs(source, scale):
        for one in people:
            if not why_left_out(one):
                canonical = in_canonical_order(one)
                pairs.setdefault(canonical.pair.id, one.pair)
                wins.setdefault(canonical.pair.id, []).append(canonical.win or 0.0)
    means = {id: fmean(values) for id, values in wins.items()}
    decided = [id for id, mean in means.items() if mean != 0.5]
    if not decided:
        raise DataError(f"{source}: no pair has a better output: a rubric explains which of two outputs people prefer")
    second = tuple((means[id] > 0.5) == pairs[id].is_canonical for id in decided)
    return Labels(source, tuple(pairs[id] for id in decided), second, len(means) - len(decided))


def divide(labels: Labels, held_out: float, seed: int) -> tuple[Labels, Labels]:
    """Divide labels by task into those to learn from and those held out, each task by itself."""
    kept_back = [seeding.uniform(seed, "rubric held out", task) < held_out for task in labels.tasks]
    train, test = ([n for n, is_held in enumerate(kept_back) if is_held == part] for part in (False, True))
    return labels.of(train), labels.of(test)


def split(labels: Labels, held_out: float, seed: int) -> tuple[Labels, Labels]:
    """Divide labels. Raises `DataError` if a part has fewer than 10 pairs or 5 tasks."""
    parts = divide(labels, held_out, seed)
    counts = [(len(part.pairs), len(set(part.tasks))) for part in parts]
    if min(pairs for pairs, _ in counts) < FEWEST_PAIRS or min(tasks for _, tasks in counts) < FEWEST_TASKS:
        shown = " and ".join(f"{pairs} of {tasks} instructions" for pairs, tasks in counts)
        raise DataError(
            f"{labels.source}: {len(labels.pairs)} pairs with a better output are split into {shown}: each part needs "
            f"{FEWEST_PAIRS} pairs of {FEWEST_TASKS} instructions; give more, or another --held-out"
        )
    return parts
