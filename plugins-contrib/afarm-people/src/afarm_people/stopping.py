"""The stop once it is clear: a confidence sequence over instructions, in the order of the draw.

It looks at instructions up to the first that somebody still works on: in the order of the labels, those that take long
would come late, and they differ from the others. One that was skipped counts against what is to be decided.

Systems are compared with one reference. Of one system it is decided if its win rate is above or below one half; of
several, which of each two is better. An instruction that was drawn from its stratum with another probability than the
stratum's share of all counts so much more or less, within bounds, so that the mean stays that of all instructions.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import combinations, takewhile
from statistics import fmean
from typing import Any

from afarm import DataError, Pair, decided_side
from afarm_people.draw import ALSO
from afarm_people.store import EQUAL, PAIR, Labelled, ProjectStore

ALPHA = 0.05
"""The probability that anything is decided wrongly, over all comparisons together."""


def find_systems(store: ProjectStore) -> tuple[str, list[str]]:
    """The reference and the systems of a project's pairs. Raises `DataError` if there is no one reference."""
    rows = store.rows(
        "SELECT DISTINCT json_extract(row, '$.generator_1') AS one, json_extract(row, '$.generator_2') AS two "
        "FROM pairs WHERE kind = 'pair'"
    )
    references = {row["one"] for row in rows}
    systems = sorted({row["two"] for row in rows})
    if len(references) != 1 or references & set(systems) or not all([*references, *systems]):
        raise DataError(
            "--until decided needs pairs of systems with one reference: name it in 'generator_1' of every row, and the "
            "system in 'generator_2' (as --from-run writes them)"
        )
    return references.pop(), systems


def decision(store: ProjectStore, each: int) -> str:
    """Say what is decided, in a sentence per comparison; empty while anything is open."""
    reference, systems = find_systems(store)
    of_pair = defaultdict[str, list[Labelled]](list)
    for one in store.labels():
        of_pair[one.pair.id].append(one)
    wins: dict[str, dict[str, float]] = {}  # of each instruction's systems; equal responses are a draw
    for _, pair, extra in store.pairs_in_order(EQUAL):
        wins.setdefault(pair.instruction.id, {}).update(dict.fromkeys(systems_of(pair, extra), 0.5))
    skipped, open_tasks, last, weights = store.skipped_pairs(), set[str](), dict[str, int](), dict[str, float]()
    for number, (id, pair, extra) in enumerate(store.pairs_in_order(PAIR)):
        task, labels = pair.instruction.id, of_pair.get(id, [])
        weights[task], last[task] = weight_of(extra), number
        is_done = len(labels) >= each
        win = fmean(one.win for one in labels) if is_done else math.nan
        wins.setdefault(task, {}).update(dict.fromkeys(systems_of(pair, extra), win))
        if not is_done and id not in skipped:
            open_tasks.add(task)
    order = list(takewhile(lambda task: task not in open_tasks, sorted(last, key=lambda task: last[task])))
    several: list[tuple[str, str]] = list(combinations(systems, 2)) or [(systems[0], "")]
    level, bound, sentences = 1 - ALPHA / len(several), max(weights.values()), []
    for first, second in several:
        whole = [task for task in order if first in wins[task] and (not second or second in wins[task])]
        gains = [wins[task][first] - wins[task][second] if second else 2 * wins[task][first] - 1 for task in whole]
        values = [(1 + weights[task] * gain / bound) / 2 for task, gain in zip(whole, gains, strict=True)]
        side = decide(values, level)
        if side is None:
            return ""
        sentences.append(_sentence(first, second, reference, side == "higher", len(values)))
    return " ".join(sentences)


def systems_of(pair: Pair, extra: Mapping[str, Any]) -> list[str]:
    """The systems whose response a label is of: all that gave the same."""
    return [pair.generator_2, *extra.get(ALSO, ())]


def decide(values: Sequence[float], level: float) -> str | None:
    """Decide which side of 0.5 the mean is on, whatever the values are that are not known, NaN."""
    for side, worst in (("higher", 0.0), ("lower", 1.0)):
        if decided_side([worst if math.isnan(value) else value for value in values], level=level) == side:
            return side
    return None


def weight_of(extra: Mapping[str, Any]) -> float:
    """The share of an instruction's stratum over that of its draws: 1 where all are alike."""
    return float(extra.get("stratum_share", 1.0) / extra.get("draw_probability", 1.0))


def _sentence(first: str, second: str, reference: str, higher: bool, n: int) -> str:
    if second:
        better, worse = (first, second) if higher else (second, first)
        return f"{better} is better than {worse}, after {n} instructions."
    return f"{first} is {'better' if higher else 'worse'} than {reference}, after {n} instructions."
