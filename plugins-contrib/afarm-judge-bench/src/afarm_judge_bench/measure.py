"""Figures of a judge from verdicts in both orders, with intervals, and of judges compared.

Intervals are of 95%. Values are clustered by instruction: several pairs of one question are not independent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from statistics import fmean

from afarm import NORMAL_95, standard_error
from afarm.results import holm
from afarm_judge_bench.items import FIRST, SECOND, TIE, BenchSet, Item, Verdict, credit, decide
from afarm_judge_bench.verdicts import Verdicts

BINS = 10
"""Bins of equal width of the expected calibration error (Guo et al. 2017, section 2)."""


@dataclass(frozen=True)
class Share:
    """A share in percent with its interval, None if unknown, from `n` values."""

    value: float
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True)
class Figures:
    """Figures of a judge on a set. Shares are in percent; None where there is nothing to measure.

    `score` is by the benchmark's own scoring, `accuracy` the mean over all verdicts, half for a draw where one output
    is better, and nothing for an unread one. `consistent`: both orders have the same verdict. `first`: of
    the verdicts for one side, those for the output shown first. `agreement`: of labels of single people, those that a
    verdict equals; `between_people` is how often these equal each other. `brier` and `ece` are of verdicts with a
    probability, on pairs that have a better output. `right_per_dollar` counts verdicts.
    """

    name: str
    judges: tuple[str, ...]
    n: int
    score: Share | None
    accuracy: Share | None = None
    consistent: float | None = None
    first: float | None = None
    draws: float | None = None
    unparsed: float | None = None
    agreement: float | None = None
    between_people: float | None = None
    brier: float | None = None
    ece: float | None = None
    dollars: float | None = None
    seconds: float | None = None
    right_per_dollar: float | None = None
    subsets: Mapping[str, Share] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Difference:
    """A judge's lead over `against` in points, on the same rows; `p` is corrected for all (Holm 1979).

    `low` and `high` are None if all rows differ alike: there is no spread to make an interval of.
    """

    name: str
    against: str
    value: float
    low: float | None
    high: float | None
    p: float


def share(values: Sequence[float], clusters: Sequence[str]) -> Share:
    """Return the mean of values from 0 to 1 in percent, with Wilson's interval for independent values."""
    mean, count = fmean(values), len(set(clusters))
    error = standard_error(values, clusters)
    spread = mean * (1 - mean)
    n = spread / error**2 if error and spread else count  # as many independent ones have this error
    z2 = NORMAL_95**2
    middle = (mean + z2 / (2 * n)) / (1 + z2 / n)
    half = NORMAL_95 * math.sqrt(spread / n + z2 / (4 * n * n)) / (1 + z2 / n)
    low, high = min(mean, max(0.0, middle - half)), max(mean, min(1.0, middle + half))
    return Share(100 * mean, 100 * low, 100 * high, len(values))


def score_values(verdicts: Verdicts, bench: BenchSet) -> list[float]:
    """Return each item's credit by the benchmark's own scoring."""
    assert bench.scoring is not None
    alone = verdicts.orders == 1  # then the verdict in the file's order counts for both
    rows = zip(verdicts.pairs, bench.items, strict=True)
    return [bench.scoring(one, one if alone else other, item.label) for (one, other), item in rows]


def measure(verdicts: Verdicts, bench: BenchSet) -> Figures:
    """Measure a judge by its verdicts on a set of pairs."""
    items, clusters = bench.items, _clusters(bench.items)
    values = score_values(verdicts, bench)
    seen = [pair[: max(verdicts.orders, 1)] for pair in verdicts.pairs]  # each verdict once
    flat = [(verdict, item) for pair, item in zip(seen, items, strict=True) for verdict in pair]
    credits = [fmean(credit(v, item.label) for v in pair) for pair, item in zip(seen, items, strict=True)]
    read = [v for v, _ in flat if v is not None]
    decided = [(decide(one), decide(other)) for one, other in verdicts.pairs if one is not None and other is not None]
    right = sum(credit(v, item.label) for v, item in flat)
    by_subset: dict[str, list[int]] = {}
    for number, item in enumerate(items):
        by_subset.setdefault(item.subset, []).append(number)
    agreement, between = people_figures(flat, items)
    brier, ece = calibration(flat)
    return Figures(
        verdicts.name,
        verdicts.judges,
        len(items),
        share(values, clusters),
        share(credits, clusters),
        100 * fmean(one == other for one, other in decided) if verdicts.orders == 2 and decided else None,
        first_shown(verdicts),
        100 * fmean(v == TIE for v in read) if read else None,
        100 * fmean(v is None for v, _ in flat),
        agreement,
        between,
        brier,
        ece,
        verdicts.dollars,
        verdicts.seconds,
        right / verdicts.dollars if verdicts.dollars else None,
        {
            name: share([values[n] for n in numbers], [clusters[n] for n in numbers])
            for name, numbers in by_subset.items()
            if len(by_subset) > 1
        },
        verdicts.notes,
    )


def _clusters(items: Sequence[Item]) -> list[str]:
    return [item.pair.instruction.id for item in items]


def first_shown(verdicts: Verdicts) -> float | None:
    """Share in percent of one-sided verdicts for the output shown first; None without both orders."""
    if verdicts.orders < 2:
        return None
    shown = [(decide(v), first) for pair in verdicts.pairs for v, first in zip(pair, (FIRST, SECOND), strict=True)]
    sides = [side == first for side, first in shown if side in (FIRST, SECOND)]
    return 100 * fmean(sides) if sides else None


def people_figures(flat: Sequence[tuple[Verdict, Item]], items: Sequence[Item]) -> tuple[float | None, float | None]:
    """Return in percent how often verdicts equal single people's labels, and these each other."""
    equal = [float(decide(v) == label) for v, item in flat for label in item.people]
    among = [float(one == other) for item in items for one, other in combinations(item.people, 2)]
    return (100 * fmean(equal) if equal else None), (100 * fmean(among) if among else None)


def calibration(flat: Sequence[tuple[Verdict, Item]]) -> tuple[float | None, float | None]:
    """Return the Brier score and the expected calibration error of the verdicts with a probability.

    None if no verdict has one: all are plain. The error is of the favoured side's probability, in `BINS` bins.
    """
    known = [(v, item.label) for v, item in flat if v is not None and item.label != TIE]
    if all(v in (FIRST, TIE, SECOND) for v, _ in known):
        return None, None
    bins: dict[int, list[tuple[float, float]]] = {}
    for v, label in known:
        confidence = max(v, 1 - v)
        place = min(int(BINS * confidence), BINS - 1)
        bins.setdefault(place, []).append((confidence, credit(v, label)))
    gaps = [len(rows) * abs(fmean(c for c, _ in rows) - fmean(r for _, r in rows)) for rows in bins.values()]
    return fmean((v - label) ** 2 for v, label in known), sum(gaps) / len(known)


def compare(values: Mapping[str, Sequence[float]], clusters: Sequence[str]) -> list[Difference]:
    """Compare each judge with the one that scores highest, row by row.

    The best was chosen by these values, so that p is corrected for every pair that might have been compared. Where all
    rows differ alike there is no error to go by: p is of as many coins that fall on one side.
    """
    means = {name: fmean(row) for name, row in values.items()}
    best = max(means, key=lambda name: means[name])
    found = []
    for name, row in values.items():
        if name != best:
            gaps = [one - other for one, other in zip(row, values[best], strict=True)]
            error, gap = standard_error(gaps, clusters) or 0.0, fmean(gaps)
            alike = 2.0 ** (1 - len({*clusters})) if gap else 1.0
            p = math.erfc(abs(gap) / error / math.sqrt(2)) if error else alike
            found.append((name, gap, error, p))
    corrected = holm([p for *_, p in found], len(values) * (len(values) - 1) // 2)

    def end(gap: float, error: float, side: int) -> float | None:
        return 100 * (gap + side * NORMAL_95 * error) if error else None

    return [
        Difference(name, best, 100 * gap, end(gap, error, -1), end(gap, error, 1), p)
        for (name, gap, error, _), p in zip(found, corrected, strict=True)
    ]


def compare_judges(found: Sequence[Verdicts], bench: BenchSet) -> list[Difference]:
    """Compare judges by the benchmark's own scoring of their verdicts on the same items."""
    values = {one.name: score_values(one, bench) for one in found}
    return compare(values, _clusters(bench.items)) if len(values) > 1 else []
