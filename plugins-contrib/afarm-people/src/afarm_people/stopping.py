"""The stop once it is clear: a confidence sequence over instructions, as they are finished.

Systems are compared with one reference. Of one system it is decided if its win rate is above or below one half; of
several, which of each two is better. An instruction that was drawn from its stratum with another probability than the
stratum's share of all counts so much more or less, within bounds, so that the mean stays that of all instructions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import combinations
from statistics import fmean
from typing import Any

from afarm import DataError, decided_side
from afarm_people.store import EQUAL, Labelled, ProjectStore

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
    for task, system in store.systems_by_task(EQUAL):
        wins.setdefault(task, {})[system] = 0.5
    finished, weights = dict[str, float](), {}
    for labels in of_pair.values():
        if len(labels) >= each:
            pair, task = labels[0].pair, labels[0].pair.instruction.id
            wins.setdefault(task, {})[pair.generator_2] = fmean(one.win for one in labels)
            finished[task] = max(finished.get(task, 0.0), *(one.labelled for one in labels))
            weights[task] = weight_of(labels[0].extra)
    order = sorted(finished, key=lambda task: finished[task])
    several: list[tuple[str, str]] = list(combinations(systems, 2)) or [(systems[0], "")]
    level, bound, found = 1 - ALPHA / len(several), max(map(weight_of, store.extras())), []
    for first, second in several:
        whole = [task for task in order if first in wins[task] and (not second or second in wins[task])]
        gains = [wins[task][first] - wins[task][second] if second else 2 * wins[task][first] - 1 for task in whole]
        values = [(1 + weights[task] * gain / bound) / 2 for task, gain in zip(whole, gains, strict=True)]
        side = decided_side(values, level=level)
        if side is None:
            return ""
        found.append(_sentence(first, second, reference, side == "higher", len(values)))
    return " ".join(found)


def weight_of(extra: Mapping[str, Any]) -> float:
    """The share of an instruction's stratum over that of its draws: 1 where all are alike."""
    return float(extra.get("stratum_share", 1.0) / extra.get("draw_probability", 1.0))


def _sentence(first: str, second: str, reference: str, higher: bool, n: int) -> str:
    if second:
        better, worse = (first, second) if higher else (second, first)
        return f"{better} is better than {worse}, after {n} instructions."
    return f"{first} is {'better' if higher else 'worse'} than {reference}, after {n} instructions."
