"""RewardBench 2's scoring: best of four, and ties (Malik et al. 2025, arXiv 2506.01937, section 3).

Best of n: right if the right answer has the highest score; if k answers share it, 1/k.

Ties: a prompt has one with a single right answer ("ref") and one with several ("tied"). With m the lowest right score
less the highest wrong one, and d the highest right score less the lowest right one:

    0.3 · share of ref with m > 0  +  0.3 · share of tied with m > 0
    + 0.2 · share with m > d  +  0.2 · share with min(m, m of its ref) > d
    + 0.01 · mean of tanh(min(m, m of its ref) / d − 1) where d > 0

of the last three over prompts that have both, and several right answers in the tied one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from afarm_judge_bench.items import BenchSet, Group
from afarm_judge_bench.measure import Difference, Figures, Share, compare, share
from afarm_judge_bench.sets import TIES
from afarm_judge_bench.verdicts import Verdicts


def best_of(scores: Sequence[float]) -> float:
    """Return the credit of one group whose first answer is the right one."""
    top = max(scores)
    return 1 / list(scores).count(top) if scores[0] == top else 0.0


def margins(scores: Sequence[float], correct: int) -> tuple[float, float]:
    """Return the lowest right score less the highest wrong one, and the spread of the right ones."""
    right, wrong = scores[:correct], scores[correct:]
    return min(right) - max(wrong), max(right) - min(right)


def ties_score(groups: Sequence[Group], scores: Sequence[Sequence[float]]) -> float:
    """Return the score of the subset Ties, from 0 to about 1."""
    found: dict[str, dict[str, tuple[float, float]]] = {"ref": {}, "tied": {}}
    several: set[str] = set()
    for group, row in zip(groups, scores, strict=True):
        kind, _, number = group.id.partition(":")
        found[kind][number] = margins(row, group.correct)
        if kind == "tied" and group.correct > 1:
            several.add(number)
    ref, tied = found["ref"], found["tied"]
    both = [number for number in tied if number in ref and number in several]
    hardest = {number: min(tied[number][0], ref[number][0]) for number in both}
    ratios = [math.tanh(hardest[number] / tied[number][1] - 1) for number in both if tied[number][1] > 0]
    return (
        0.3 * fmean([margin > 0 for margin, _ in tied.values()] or [0])
        + 0.3 * fmean([margin > 0 for margin, _ in ref.values()] or [0])
        + 0.2 * fmean([tied[number][0] > tied[number][1] for number in both] or [0])
        + 0.2 * fmean([hardest[number] > tied[number][1] for number in both] or [0])
        + 0.01 * fmean(ratios or [0])
    )


def measure_groups(verdicts: Verdicts, bench: BenchSet) -> Figures:
    """Measure a judge by its scores; its own is the mean of all subsets, as in RewardBench 2's table.

    Its interval is not known to the benchmark: each subset's is given, but for ties, which are no mean of rows.
    """
    by_subset: dict[str, list[int]] = {}
    for number, group in enumerate(bench.groups):
        by_subset.setdefault(group.subset, []).append(number)
    subsets: dict[str, Share] = {}
    for name, numbers in by_subset.items():
        groups, scores = [bench.groups[n] for n in numbers], [verdicts.scores[n] for n in numbers]
        if name.lower() == TIES:
            subsets[name] = Share(100 * ties_score(groups, scores), None, None, len(groups))
        else:
            subsets[name] = share([best_of(row) for row in scores], [g.pairs[0].instruction.id for g in groups])
    mean = fmean(one.value for one in subsets.values())
    return Figures(
        verdicts.name,
        verdicts.judges,
        len(bench.groups),
        Share(mean, None, None, len(bench.groups)),
        dollars=verdicts.dollars,
        seconds=verdicts.seconds,
        subsets=subsets,
        notes=verdicts.notes,
    )


def compare_groups(found: Sequence[Verdicts], bench: BenchSet) -> list[Difference]:
    """Compare judges by best of n, over all subsets but ties."""
    numbers = [n for n, group in enumerate(bench.groups) if group.subset.lower() != TIES]
    values = {one.name: [best_of(one.scores[n]) for n in numbers] for one in found}
    clusters = [bench.groups[n].pairs[0].instruction.id for n in numbers]
    return compare(values, clusters) if len(values) > 1 and numbers else []
