"""Measures of a pool's probabilities on people's labels, and of what people's own agreement allows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from afarm import Bounded, JudgedPair, mean_interval
from afarm_plugins.calibration.fit import Array, Indices
from afarm_plugins.calibration.people import is_for_second

EDGES = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Edges of the bins of a reliability plot: the probability of the likelier output."""

LIKELIEST = 1 - 1e-3
"""The surest that a pool's share of verdicts is taken for: a member more could have said the other."""


def loss_per_label(p: Array, second: Array) -> Array:
    """Return the log loss of each label in nats, of probabilities that are at most `LIKELIEST` sure."""
    kept = np.clip(p, 1 - LIKELIEST, LIKELIEST)
    return -(second * np.log(kept) + (1 - second) * np.log(1 - kept))


def expected_agreement(p: Array, second: Array) -> Array:
    """Return the probability [labels] that a label drawn with `p` equals the person's."""
    return p * second + (1 - p) * (1 - second)


def likelier_agreement(p: Array, second: Array) -> Array:
    """Return 1 where the likelier output is the person's, one half where neither is likelier, [labels]."""
    return 0.5 * (1 + np.sign(p - 0.5) * (2 * second - 1))


def over_instructions(values: Array, cluster: Indices, scale: float = 1.0) -> Bounded:
    """Estimate the mean of `values` [labels] with a 95% interval over instructions (cluster-robust)."""
    mean = float(values.mean())
    sums = np.bincount(cluster, weights=values - mean)
    there = np.bincount(cluster) > 0
    spread = mean_interval((sums[there] * there.sum() / len(values)).tolist())
    if spread.low is None or spread.high is None:
        return Bounded(scale * mean)
    return Bounded(scale * mean, scale * (mean + spread.low), scale * (mean + spread.high))


@dataclass(frozen=True, slots=True)
class SureBin:
    """Labels whose likelier output is about as sure: its mean, and the share of people who chose it."""

    predicted: float
    observed: Bounded
    labels: int


def sure_bins(p: Array, second: Array, cluster: Indices) -> list[SureBin]:
    """Group labels by the probability of the likelier output; empty bins are left out."""
    sure, right = np.maximum(p, 1 - p), np.where(p >= 0.5, second, 1 - second)
    places = np.clip(np.searchsorted(EDGES, sure, side="right") - 1, 0, len(EDGES) - 2)
    return [
        SureBin(float(sure[inside].mean()), over_instructions(right[inside], cluster[inside]), int(inside.sum()))
        for place in range(len(EDGES) - 1)
        if (inside := places == place).any()
    ]


def mean_gap(bins: Sequence[SureBin]) -> float:
    """Return the expected calibration error: the bins' distances from what was observed, mean over labels."""
    return sum(b.labels * abs(b.predicted - b.observed.value) for b in bins) / sum(b.labels for b in bins)


def agreement_of_people(labels: Sequence[JudgedPair]) -> Bounded | None:
    """Count how often two people agree, each pair counting once; None if no pair has two labels."""
    votes: dict[str, list[bool]] = {}
    for label in labels:
        votes.setdefault(label.pair.id, []).append(is_for_second(label))
    agreed = [
        sum(one == other for one, other in combinations(some, 2)) / math.comb(len(some), 2)
        for some in votes.values()
        if len(some) > 1
    ]
    return mean_interval(agreed) if agreed else None


def ceiling(agreement: float) -> float:
    """Return the most that any annotator can agree with one person, if two people agree so often.

    Of pairs whose output is chosen with probability p, two people agree on p² + (1 − p)² and the best guess is right on
    max(p, 1 − p), which by Jensen is at most ½ + √((agreement − ½) / 2) in the mean.
    """
    return 0.5 + math.sqrt(max(0.0, agreement - 0.5) / 2)
