"""Items of a benchmark: pairs with a known better output, and answers of which some are right."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from afarm import Pair

FIRST, TIE, SECOND = 0.0, 0.5, 1.0
"""Labels of a pair: the win that goes to its second output."""

Verdict = float | None
"""The probability that the pair's second output is better, 0.5 for a draw; None if an answer says nothing."""

Scoring = Callable[[Verdict, Verdict, float], float]
"""From the verdicts in both orders, in the pair's own terms, and its label, to a credit from 0 to 1."""


@dataclass(frozen=True, slots=True)
class Item:
    """A pair with its label. `people` are the labels of single people, if the set has several of them.

    `place` is the file and the row that it was read from, `subset` a part of the set that has figures of its own.
    """

    id: str
    pair: Pair
    label: float
    place: str
    subset: str = ""
    people: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Group:
    """Answers to one instruction, of which the first `correct` are right, as in RewardBench 2."""

    id: str
    pairs: tuple[Pair, ...]
    """The first answer beside each of the others."""
    correct: int
    subset: str
    place: str

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.pairs[0].output_1, *(pair.output_2 for pair in self.pairs))


@dataclass(frozen=True, slots=True)
class BenchSet:
    """A set to measure judges on: `items`, or `groups` of answers to be scored one by one.

    `name` is the benchmark's. `score` names its own scoring, which `scoring` computes; `published` are figures of
    others in percent, by judge, if the set is the whole one that these were measured on. `notes` say what to know.
    """

    name: str
    score: str
    scoring: Scoring | None
    items: tuple[Item, ...] = ()
    groups: tuple[Group, ...] = ()
    published: Mapping[str, float] | None = None
    published_in: str = ""
    notes: tuple[str, ...] = ()


def decide(verdict: Verdict) -> Verdict:
    """Return the label that a verdict stands for: `FIRST`, `SECOND`, or `TIE` if it is even."""
    return verdict if verdict is None or verdict == TIE else float(verdict > TIE)


def sum_of_orders(one: Verdict, other: Verdict, label: float) -> float:
    """Score as JudgeBench does: +1 for an order that is right, −1 if it contradicts; right above 0."""
    signs = [0 if v in (None, TIE) else 1 if v == label else -1 for v in map(decide, (one, other))]
    return float(sum(signs) > 0)


def mean_of_orders(one: Verdict, other: Verdict, label: float) -> float:
    """Score as LLMBar does: the share of both orders that name the better output; a draw is half."""
    return (credit(one, label) + credit(other, label)) / 2


def both_orders(one: Verdict, other: Verdict, label: float) -> float:
    """Score as Auto-J does: right if the verdict is the label in both orders, ties included."""
    return float(decide(one) == label and decide(other) == label)


def as_given(one: Verdict, other: Verdict, label: float) -> float:
    """Score as PandaLM does: the verdict must be the label, in the file's order; unread is a tie."""
    return float(decide(TIE if one is None else one) == label)


def credit(verdict: Verdict, label: float) -> float:
    """The share of a verdict that is right: half of a draw if one output is better, and nothing if unread.

    Of a tie, only a draw is right.
    """
    decided = decide(verdict)
    return 0.5 if decided == TIE != label else float(decided == label)
