"""Likely flipped labels: pairs that a model which has not seen them would label the other way.

The model is a logistic regression without an intercept on what the chosen output has and the rejected one lacks: its
words, and the logarithm of the ratio of lengths (Bradley and Terry's model, linear in the words). It is fitted to four
fifths of the prompts and asked about the fifth, five times (out-of-fold probabilities, as in confident learning:
Northcutt, Jiang and Chuang 2021). A label is likely flipped if its probability is `UNLIKELY` or less.

How often that is right is measured on the data itself: labels that are flipped on purpose are looked for. Flips that
the data has of its own count as false alarms there, so what is said is too low rather than too high. A model that
cannot tell which output is better cannot tell which label is flipped either, and the figures then say so.
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

FOLDS = 5
EPOCHS = 3
RATE, SMALLEST = 0.6, 1.0
"""Of AdaGrad (Duchi, Hazan and Singer 2011): the rate, and the squares of slopes before any was seen."""
L2 = 1e-3
UNLIKELY = 0.2
PLANTED = 0.05
"""The share of labels that are flipped on purpose, to see how many of them are found."""
FEWEST = 50
"""Pairs below which no model is fitted."""

Vector = list[tuple[int, float]]
"""Features that are not 0: their numbers and values."""


@dataclass(frozen=True, slots=True)
class Flips:
    """`probability` of each label, out of fold, and how well it finds labels that were flipped on purpose.

    `accuracy` is the share of labels that are likelier than their opposite. Of the planted flips the share `recall` is
    suspected, and of labels that were left alone `false_alarms`.
    """

    probability: list[float]
    accuracy: float
    planted: int
    recall: float
    false_alarms: float

    @property
    def suspects(self) -> list[int]:
        """The places of labels that are likely flipped, the least likely label first."""
        order = sorted(range(len(self.probability)), key=self.probability.__getitem__)
        return [place for place in order if self.probability[place] <= UNLIKELY]

    @property
    def precision(self) -> float:
        """The share of suspects that are planted, of labels of which the share `PLANTED` is."""
        found, wrong = PLANTED * self.recall, (1 - PLANTED) * self.false_alarms
        return found / (found + wrong) if found else 0.0


def differences(pairs: Sequence[tuple[str, str, str]]) -> list[Vector]:
    """Make a vector of each pair: above 0 for words of the chosen output alone, below 0 for the other's.

    The vectors have length 1 beside feature 0, the logarithm of the ratio of lengths. Words of a single pair say
    nothing about others and are left out.
    """
    words = [[set(re.findall(r"\w+|[^\w\s]", text.casefold())) for text in outputs] for _, *outputs in pairs]
    counts = Counter(word for chosen, rejected in words for word in chosen ^ rejected)
    number = {word: place for place, word in enumerate((w for w in sorted(counts) if counts[w] > 1), start=1)}
    vectors = []
    for (_, one, other), (chosen, rejected) in zip(pairs, words, strict=True):
        found = [(number[w], 1.0 if w in chosen else -1.0) for w in sorted(chosen ^ rejected) if w in number]
        scale = 1 / math.sqrt(len(found) or 1)
        length = math.log((len(one) + 1) / (len(other) + 1))
        vectors.append([(0, length), *((place, sign * scale) for place, sign in found)])
    return vectors


def find_flips(pairs: Sequence[tuple[str, str, str]], seed: int = 0) -> Flips:
    """Fit the model to pairs of (prompt, chosen, rejected), and again with planted flips.

    Takes some 2 ms a pair.
    """
    vectors = differences(pairs)
    prompts = list(dict.fromkeys(prompt for prompt, _, _ in pairs))
    draw = random.Random(seed)
    draw.shuffle(prompts)
    fold = {prompt: place % FOLDS for place, prompt in enumerate(prompts)}
    folds = [fold[prompt] for prompt, _, _ in pairs]
    planted = {*draw.sample(range(len(pairs)), max(1, round(PLANTED * len(pairs))))}
    probability = _out_of_fold(vectors, folds, [1] * len(pairs), seed)
    signs = [-1 if place in planted else 1 for place in range(len(pairs))]
    with_planted = _out_of_fold(vectors, folds, signs, seed)
    found = sum(with_planted[place] <= UNLIKELY for place in planted)
    alarms = sum(one <= UNLIKELY for place, one in enumerate(with_planted) if place not in planted)
    return Flips(
        probability,
        sum(one > 0.5 for one in probability) / len(pairs),
        len(planted),
        found / len(planted),
        alarms / max(1, len(pairs) - len(planted)),
    )


def _out_of_fold(vectors: Sequence[Vector], folds: Sequence[int], signs: Sequence[int], seed: int) -> list[float]:
    """Return the probability of each label by a model of the other folds; `signs` of -1 flip one."""
    made = [0.5] * len(vectors)
    for fold in range(FOLDS):
        weights = _fit([(v, sign) for v, f, sign in zip(vectors, folds, signs, strict=True) if f != fold], seed)
        for place, (vector, sign) in enumerate(zip(vectors, signs, strict=True)):
            if folds[place] == fold:
                made[place] = _sigmoid(sign * sum(weights.get(name, 0.0) * value for name, value in vector))
    return made


def _fit(rows: list[tuple[Vector, int]], seed: int) -> dict[int, float]:
    """Fit by AdaGrad, one pair a step, in an order that `seed` draws."""
    weights, squares = defaultdict[int, float](float), defaultdict[int, float](lambda: SMALLEST)
    draw = random.Random(seed)
    for _ in range(EPOCHS):
        draw.shuffle(rows)
        for vector, sign in rows:
            error = sign * (1 - _sigmoid(sign * sum(weights[name] * value for name, value in vector)))
            for name, value in vector:
                slope = error * value - L2 * weights[name]
                squares[name] += slope * slope
                weights[name] += RATE * slope / math.sqrt(squares[name])
    return weights


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -500 else 0.0
