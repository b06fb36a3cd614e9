"""Measures of a judge on labels that it never saw, with bootstrap intervals over instructions.

Credit for a pair is 1 for the output that its labels prefer, 0 for the other and one half for no choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from afarm_plugins.fitted_judges.labelled_pairs import LabelledPair
from afarm_plugins.fitted_judges.logistic import Array, log_losses

RESAMPLES = 2000
LEVEL = 0.95
BINS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Edges of the reliability table: the probability given to the output that was preferred by the judge."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its bootstrap interval."""

    value: float
    low: float
    high: float

    def text(self) -> str:
        """Write the figure with its interval, as percent."""
        return f"{self.value * 100:.1f} [{self.low * 100:.1f}, {self.high * 100:.1f}]"

    def signed(self) -> str:
        """Write a difference with its sign and interval, in points."""
        return f"{100 * self.value:+.1f} [{100 * self.low:+.1f}, {100 * self.high:+.1f}]"


@dataclass(frozen=True, slots=True)
class ReliabilityBin:
    """Pairs whose choice had a probability from `low` to `high`: its mean, and the labels' share for it."""

    low: float
    high: float
    pairs: int
    predicted: float
    observed: float


@dataclass(frozen=True, slots=True)
class Measured:
    """One judge on pairs held out. Shares are in [0, 1], losses in nats.

    `longer` is the rule that the longer output wins; `gain` is over it, or over the shorter one if that is right on
    more of these pairs.
    """

    pairs: int
    instructions: int
    agreement: Interval
    longer: Interval
    gain: Interval
    log_loss: float
    brier: float
    ece: float
    reliability: tuple[ReliabilityBin, ...]


def credits(rows: Sequence[LabelledPair], leaning: Array) -> Array:
    """Credit a judge whose `leaning` [pairs] is above 0 for second outputs, below for first ones."""
    better = np.sign([row.p2 - 0.5 for row in rows])
    return 0.5 * (1 + np.sign(leaning) * better)


def longer_leaning(rows: Sequence[LabelledPair]) -> Array:
    """Difference of the lengths in characters: the rule that the longer output wins."""
    return np.array([len(row.pair.output_2) - len(row.pair.output_1) for row in rows], dtype=np.float64)


def measure(rows: Sequence[LabelledPair], p: Array, seed: int = 0) -> Measured:
    """Measure probabilities `p` [pairs], in canonical order, that the second output is better."""
    ours, longer = credits(rows, p - 0.5), credits(rows, longer_leaning(rows))
    by_rule = longer if longer.mean() >= 0.5 else 1 - longer
    agreement, by_length, gain = bootstrap_intervals(rows, [ours, longer, ours - by_rule], seed)
    p2 = np.array([row.p2 for row in rows])
    squared = [np.mean([(q - vote) ** 2 for vote in row.votes]) for q, row in zip(p, rows, strict=True)]
    table = reliability(p, p2)
    return Measured(
        pairs=len(rows),
        instructions=len({row.pair.instruction.id for row in rows}),
        agreement=agreement,
        longer=by_length,
        gain=gain,
        log_loss=float(log_losses(p, p2).mean()),
        brier=float(np.mean(squared)),
        ece=calibration_error(table),
        reliability=table,
    )


def reliability(p: Array, p2: Array) -> tuple[ReliabilityBin, ...]:
    """Group pairs by the probability of the output that `p` prefers; empty bins are left out."""
    sure, right = np.maximum(p, 1 - p), np.where(p >= 0.5, p2, 1 - p2)
    places = np.clip(np.searchsorted(BINS, sure, side="right") - 1, 0, len(BINS) - 2)
    return tuple(
        ReliabilityBin(BINS[n], BINS[n + 1], int(inside.sum()), float(sure[inside].mean()), float(right[inside].mean()))
        for n in range(len(BINS) - 1)
        if (inside := places == n).any()
    )


def calibration_error(bins: Sequence[ReliabilityBin]) -> float:
    """Return the expected calibration error: a bin's distance from what was observed, mean over pairs."""
    return sum(b.pairs * abs(b.predicted - b.observed) for b in bins) / sum(b.pairs for b in bins)


def bootstrap_intervals(rows: Sequence[LabelledPair], credit: Sequence[Array], seed: int = 0) -> list[Interval]:
    """Intervals of the means of several credits, over the same resamples of instructions."""
    ids = [row.pair.instruction.id for row in rows]
    names = {id: place for place, id in enumerate(sorted(set(ids)))}
    groups = np.array([names[id] for id in ids])
    counts = np.bincount(groups, minlength=len(names)).astype(np.float64)
    draws = np.random.default_rng(seed).multinomial(len(names), np.full(len(names), 1 / len(names)), RESAMPLES)
    intervals = []
    for one in credit:
        sums = np.bincount(groups, weights=one, minlength=len(names))
        means = (draws @ sums) / np.maximum(draws @ counts, 1)
        low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        intervals.append(Interval(float(one.mean()), float(low), float(high)))
    return intervals


@dataclass(frozen=True, slots=True)
class PeopleAgreement:
    """Credit of one label against the mean of its pair's others, over so many `pairs` that have several."""

    share: Interval
    pairs: int

    def text(self) -> str:
        """Write it as percent of its pairs."""
        return f"{self.share.text()} % of {self.pairs:,} {'pairs' if self.pairs > 1 else 'pair'} with several"


def people_agreement(rows: Sequence[LabelledPair], seed: int = 0) -> PeopleAgreement | None:
    """Measure labels against the others of their pair; None if no pair has two.

    `rows` should hold pairs whose labels contradict each other evenly too: without them two people always agree.
    """
    several = [row for row in rows if len(row.votes) > 1]
    if not several:
        return None
    credit = [np.mean([_against_others(row.votes, n) for n in range(len(row.votes))]) for row in several]
    return PeopleAgreement(bootstrap_intervals(several, [np.array(credit)], seed)[0], len(several))


def _against_others(votes: Sequence[float], own: int) -> float:
    others = (sum(votes) - votes[own]) / (len(votes) - 1)
    return float(0.5 * (1 + np.sign(round(votes[own] - 0.5, 9)) * np.sign(round(others - 0.5, 9))))


def by_system(rows: Sequence[LabelledPair], p: Array, seed: int = 0) -> dict[str, Measured]:
    """Measure the pairs of each system that is named in some of them, but not in all."""
    names = sorted(set().union(*(row.systems for row in rows)))
    inside: Mapping[str, Array] = {name: np.array([name in row.systems for row in rows]) for name in names}
    return {
        name: measure([row for row, taken in zip(rows, inside[name], strict=True) if taken], p[inside[name]], seed)
        for name in names
        if not inside[name].all()
    }
