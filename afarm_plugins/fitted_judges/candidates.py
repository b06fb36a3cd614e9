"""Candidates for a fitted judge, each predicting pairs of instructions that it never saw."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from afarm import Instruction
from afarm_plugins.fitted_judges.encoder import SentenceEncoder
from afarm_plugins.fitted_judges.features import FEATURES, feature_values, request_text
from afarm_plugins.fitted_judges.labelled_pairs import LabelledPair
from afarm_plugins.fitted_judges.logistic import Array, Labels, fit_ridged, fit_temperature, out_of_fold
from afarm_plugins.fitted_judges.utility import FORMAT, Embeddings, FittedWeights, RewardTerm

if TYPE_CHECKING:
    from afarm_plugins.fitted_judges.learned_reward import LearnedReward  # which opens farms, as no reward model does

LENGTH = "length"
FEATURES_ALONE = "features"
EMBEDDINGS = "embeddings"
BOTH = "features + embeddings"
REWARD_MODEL = "reward model"


@dataclass
class LabelledRows:
    """The labelled pairs with their folds: `p2` and `folds` are [pairs]."""

    pairs: Sequence[LabelledPair]
    p2: Array
    folds: Labels


class LinearCandidate:
    """A logistic model of differences: of stated features, of embeddings, or of both.

    `name` is its row in the table.
    """

    def __init__(self, name: str, features: Sequence[str], values: Array, encoder: SentenceEncoder | None = None):
        """`values` [pairs, 2, columns] are those of both outputs: features, embeddings, relatedness."""
        self.name = name
        self._features, self._values, self._encoder = features, values, encoder
        self.differences: Array = values[:, 1] - values[:, 0]

    def predict_held_out(self, rows: LabelledRows) -> Array:
        """Predict the logit [pairs] of each pair's second output by a fit to the other folds."""
        return out_of_fold(self.differences, rows.p2, rows.folds)

    def predict_unseen(self, rows: LabelledRows, system: str) -> Array:
        """Predict as `predict_held_out`, by fits without any pair of `system`."""
        without = [system not in row.systems for row in rows.pairs]
        return out_of_fold(self.differences, rows.p2, rows.folds, without)

    def fit(self, rows: LabelledRows, directory: Path) -> FittedWeights:
        """Fit to all pairs."""
        return self.weights(rows.p2, rows.folds)

    def weights(self, p2: Array, folds: Labels) -> FittedWeights:
        """Fit to all pairs, with the ridge that is best over `folds`; utilities have mean 0 over the outputs."""
        fitted = fit_ridged(self.differences, p2, folds).weights
        weights = [float(weight) for weight in fitted]
        named = dict(zip(self._features, weights, strict=False))
        offset = float(self._values.mean(axis=(0, 1)) @ fitted)
        embeddings = None
        if encoder := self._encoder:
            own, relatedness = weights[len(named) : -1], weights[-1]
            embeddings = Embeddings(
                model=encoder.model, identity=encoder.identity, weights=own, relatedness=relatedness
            )
        return FittedWeights(format=FORMAT, features=named, offset=offset, embeddings=embeddings)


class LearnedCandidate:
    """afarm's reward model, its differences made log-odds by one factor."""

    name = REWARD_MODEL

    def __init__(self, learned: LearnedReward):
        self._learned = learned
        self._gaps: Array = np.zeros(0)

    def predict_held_out(self, rows: LabelledRows) -> Array:
        """Predict as `LinearCandidate.predict_held_out`, by a reward model for each fold."""
        gaps, folds = np.zeros(len(rows.p2)), rows.folds
        for fold in np.unique(folds):
            inside = [row for row, own in zip(rows.pairs, folds, strict=True) if own != fold]
            held = [row for row, own in zip(rows.pairs, folds, strict=True) if own == fold]
            gaps[folds == fold] = self._learned.differences(inside, held)
        self._gaps, logits = gaps, np.zeros(len(gaps))
        for fold in np.unique(folds):
            others = folds != fold
            logits[~others] = gaps[~others] * fit_temperature(gaps[others], rows.p2[others])
        return logits

    def fit(self, rows: LabelledRows, directory: Path) -> FittedWeights:
        """Fit to all pairs, into `directory`; the factor is that of the differences held out."""
        self._learned.fit(rows.pairs, directory)
        term = RewardTerm(temperature=fit_temperature(self._gaps, rows.p2))
        return FittedWeights(format=FORMAT, features={}, reward_model=term)


JudgeCandidate = LinearCandidate | LearnedCandidate


def linear_candidates(pairs: Sequence[LabelledPair], encoder: SentenceEncoder | None) -> list[LinearCandidate]:
    """Return the candidates of features and, with an `encoder`, those of embeddings."""
    features = feature_array((row.pair.instruction, row.pair.canonical) for row in pairs)
    names = list(FEATURES)
    candidates = [
        LinearCandidate(LENGTH, [LENGTH], features[..., [names.index(LENGTH)]]),
        LinearCandidate(FEATURES_ALONE, names, features),
    ]
    if encoder is not None:
        texts = [text for row in pairs for text in (request_text(row.pair.instruction), *row.pair.canonical)]
        vectors = np.array(encoder.embed(texts), dtype=np.float64).reshape(len(pairs), 3, -1)
        asked, answers = vectors[:, :1], vectors[:, 1:]
        related = (asked * answers).sum(axis=2, keepdims=True)
        embedded = np.concatenate([answers, related], axis=2)
        candidates += [
            LinearCandidate(EMBEDDINGS, [], embedded, encoder),
            LinearCandidate(BOTH, names, np.concatenate([features, embedded], axis=2), encoder),
        ]
    return candidates


def feature_array(pairs: Iterable[tuple[Instruction, tuple[str, str]]]) -> Array:
    """Compute the features [pairs, 2, features] of both outputs of each pair."""
    rows = [[list(feature_values(asked, output).values()) for output in outputs] for asked, outputs in pairs]
    return np.array(rows, dtype=np.float64)
