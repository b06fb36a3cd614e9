"""Agreement of raters, people and judges alike: coefficients, abilities, difficulty of pairs.

Votes are an array [raters, pairs] of answers 0 … K-1 (first, tie, second, say), −1 where a rater did not answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TruthOfVotes:
    """Dawid and Skene's model of votes.

    `answers` [pairs, K] are the probabilities of each pair's true answer, `shares` [K] of the answers altogether,
    `confusion` [raters, K, K] those of a rater's vote (last axis) given the truth. `ability` [raters] is the chance
    that a vote is the truth, `difficulty` [pairs] the chance that the likeliest answer is not.
    """

    answers: Array
    shares: Array
    confusion: Array

    @property
    def ability(self) -> Array:
        return np.einsum("k,rkk->r", self.shares, self.confusion)

    def rate(self, votes: ArrayLike) -> float:
        """Estimate the ability of a rater whose `votes` [pairs] had no part in the estimate."""
        given, kinds = np.asarray(votes)[:, None], np.arange(len(self.shares))
        right, seen = (np.where(marked, self.answers, 0).sum(0) for marked in (given == kinds, given >= 0))
        return float(self.shares @ np.where(seen > 0, right / np.where(seen > 0, seen, 1), 1 / len(kinds)))

    @property
    def difficulty(self) -> Array:
        return np.asarray(1 - self.answers.max(1))


def estimate_truth(votes: ArrayLike, kinds: int = 3, rounds: int = 500, tolerance: float = 1e-10) -> TruthOfVotes:
    """Estimate true answers and raters' errors by expectation and maximisation (Dawid and Skene 1979).

    It begins from the shares of votes, and ends after `rounds` or when the likelihood rises by less than `tolerance`,
    relative. A rater who never voted has confusions of 1/K. Raises `ValueError` if a pair has no vote.
    """
    given = np.asarray(votes)
    marks = (given[:, :, None] == np.arange(kinds)).astype(np.float64)  # [raters, pairs, K]
    counts = marks.sum(0)
    if (counts.sum(1) == 0).any():
        raise ValueError("a pair without any vote has no estimated answer")
    answers, before = counts / counts.sum(1, keepdims=True), -np.inf
    for _ in range(rounds):
        shares = answers.mean(0)
        confusion = np.einsum("pk,rpv->rkv", answers, marks)
        seen = confusion.sum(2, keepdims=True)
        confusion = np.where(seen > 0, confusion / np.where(seen > 0, seen, 1), 1 / kinds)
        log_joint = np.log(np.clip(shares, 1e-300, None)) + np.einsum(
            "rpv,rkv->pk", marks, np.log(np.clip(confusion, 1e-300, None))
        )
        of_votes = np.logaddexp.reduce(log_joint, axis=1, keepdims=True)
        answers, likelihood = np.exp(log_joint - of_votes), float(of_votes.sum())
        if likelihood - before < tolerance * max(1, abs(likelihood)):
            break
        before = likelihood
    return TruthOfVotes(answers, shares, confusion)


def cohens_kappa(one: ArrayLike, other: ArrayLike) -> float:
    """Compute Cohen's kappa of two raters over the pairs that both answered; NaN if there are none.

    It is NaN too if both always give the same one answer.
    """
    first, second = np.asarray(one), np.asarray(other)
    both = (first >= 0) & (second >= 0)
    first, second = first[both], second[both]
    from sklearn.metrics import cohen_kappa_score

    if np.union1d(first, second).size < 2:
        return float("nan")
    return float(cohen_kappa_score(first, second))


def krippendorffs_alpha(votes: ArrayLike, level: Literal["nominal", "ordinal"] = "ordinal") -> float:
    """Compute Krippendorff's alpha of all raters; NaN if all answers are the same, or no pair has two."""
    import krippendorff

    given = np.where(np.asarray(votes) < 0, np.nan, np.asarray(votes, dtype=np.float64))
    pairable = given[:, (~np.isnan(given)).sum(0) > 1]
    if np.unique(pairable[~np.isnan(pairable)]).size < 2:
        return float("nan")
    return float(krippendorff.alpha(reliability_data=given, level_of_measurement=level))


def mean_kappa(votes: ArrayLike) -> Array:
    """Compute each rater's mean kappa with the others, [raters]; NaN for who shares no pair with anyone."""
    given = np.asarray(votes)
    table = np.full((len(given), len(given)), np.nan)
    for one, other in combinations(range(len(given)), 2):
        table[one, other] = table[other, one] = cohens_kappa(given[one], given[other])
    known = ~np.isnan(table)
    return np.where(known.any(1), np.where(known, table, 0).sum(1) / np.maximum(known.sum(1), 1), np.nan)
