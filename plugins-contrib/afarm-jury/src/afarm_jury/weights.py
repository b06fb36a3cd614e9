"""Weights of jurors, and when a majority is fixed.

Dawid and Skene (1979) with one error rate a juror: nothing tells the two outputs of a pair apart but their order, so
that errors for one side are errors for the other. A vote is +1 for output 2, -1 for output 1, and 0 for neither. With

    a = (right + 1) / (right + wrong + 2)        weight = log(a / (1 - a))

the sum of weight times vote is the log odds that output 2 is the better one. One right and one wrong vote are added, so
that no juror is beyond doubt. A juror that is wrong more often than right has a negative weight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

EVEN = 1e-9
"""Sums of votes that differ by less are equal."""
ROUNDS, TOLERANCE = 500, 1e-10


@dataclass(frozen=True, slots=True)
class Learned:
    """Learned figures: `accuracies` and `weights` by juror, `truths` by pair (that output 2 is better)."""

    accuracies: tuple[float, ...]
    truths: tuple[float, ...]

    @property
    def weights(self) -> tuple[float, ...]:
        return tuple(math.log(a / (1 - a)) for a in self.accuracies)


def learn_weights(votes: Sequence[Sequence[int]], labels: Sequence[float | None]) -> Learned:
    """Estimate the jurors' accuracies by expectation and maximisation.

    Args:
        votes: [jurors][pairs], each +1, -1 or 0.
        labels: [pairs], the share of people for output 2, None for a pair that nobody labelled: its truth is estimated
            from the votes, beginning with their majority.
    """
    pairs = range(len(labels))
    truths = [_sigmoid(sum(row[i] for row in votes)) if label is None else label for i, label in enumerate(labels)]
    accuracies: list[float] = []
    for _ in range(ROUNDS):
        accuracies = []
        for row in votes:
            cast = [i for i in pairs if row[i]]
            right = sum(truths[i] if row[i] > 0 else 1 - truths[i] for i in cast)
            accuracies.append((right + 1) / (len(cast) + 2))
        weights = [math.log(a / (1 - a)) for a in accuracies]
        before, truths = (
            truths,
            [
                _sigmoid(sum(w * row[i] for w, row in zip(weights, votes, strict=True))) if label is None else label
                for i, label in enumerate(labels)
            ],
        )
        if max((abs(a - b) for a, b in zip(before, truths, strict=True)), default=0.0) < TOLERANCE:
            break
    return Learned(tuple(accuracies), tuple(truths))


def _sigmoid(log_odds: float) -> float:
    return 0.5 * (1 + math.tanh(log_odds / 2))


def is_open(score: float, weights: Sequence[float]) -> bool:
    """Tell if jurors of these weights, who have not voted yet, can still change the verdict of a score."""
    return abs(score) <= sum(map(abs, weights)) + EVEN and any(abs(weight) > EVEN for weight in weights)


def expect_open(weights: Sequence[float], accuracies: Sequence[float]) -> list[float]:
    """Return the share of pairs that are expected to be open for each juror, in the order of asking.

    Jurors are taken to err independently, and to name one side each time.
    """
    states, shares = {0.0: 1.0}, []
    for number, (weight, accuracy) in enumerate(zip(weights, accuracies, strict=True)):
        left = {score: p for score, p in states.items() if is_open(score, weights[number:])}
        shares.append(min(1.0, sum(left.values())))
        states = {}
        for score, p in left.items():
            for after, chance in ((score + weight, accuracy), (score - weight, 1 - accuracy)):
                at = round(after, 1 if len(left) > 5_000 else 9)  # many jurors of uneven weights: in bins
                states[at] = states.get(at, 0.0) + p * chance
    return shares
