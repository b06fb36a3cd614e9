"""A reward model of stated features, learned from a run's own preferences: `--reward-model features`.

    P(output 2 is better) = σ(reward 2 − reward 1),  reward = Σ weight · feature

Thirteen weights learn from hundreds of noisy labels, where a language model needs many thousands. They read the surface
of a text and no meaning (`features.py`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from afarm import Config, DataError, Instruction, JudgedPair, Policy, RewardModel, Score, TrainContext
from afarm_plugins.fitted_judges.candidates import FEATURES_ALONE, LinearCandidate, feature_array
from afarm_plugins.fitted_judges.features import FEATURES
from afarm_plugins.fitted_judges.labelled_pairs import FEWEST_INSTRUCTIONS, deal_folds
from afarm_plugins.fitted_judges.logistic import log_losses, out_of_fold, require_scikit_learn, sigmoid
from afarm_plugins.fitted_judges.measures import calibration_error, reliability
from afarm_plugins.fitted_judges.utility import FILE, FittedWeights, utility_of_features

FOLDS = 5
"""Folds of instructions: over them the ridge is chosen, and accuracy and loss are measured on pairs never seen."""

CALIBRATION = "calibration.json"

require_scikit_learn()  # the plan of a run imports this: said before anything is sampled or paid for


class FeaturesRewardModel(RewardModel):
    """Scores in log-odds, with mean 0 over the outputs that it learned from."""

    fewest_instructions = FEWEST_INSTRUCTIONS

    def __init__(self, weights: FittedWeights):
        self.weights = weights

    def __repr__(self) -> str:
        return "<the reward model features>"

    @classmethod
    def fit(
        cls, preferences: Sequence[JudgedPair], start: Policy, config: Config | None, context: TrainContext
    ) -> FeaturesRewardModel:
        """Fit to the pairs with a label, soft ones included; `start` is not used.

        Draws, unparsed and refused judgements are dropped and counted in the metrics. Leaves `calibration.json` in the
        context's directory, for the report. Raises `DataError` if nothing is
        left to learn from, or too few instructions.
        """
        from afarm.backend import pairwise_accuracy, usable_pairs  # with torch

        pairs, counts = usable_pairs(preferences, lambda judged: judged.p2 is not None, "the reward model")
        if len({judged.pair.instruction.id for judged in pairs}) < FEWEST_INSTRUCTIONS:
            raise DataError(
                f"the reward model features needs preferences on {FEWEST_INSTRUCTIONS} instructions or more: its "
                "penalty is chosen on instructions held out. Give more with --set rows.preference=N or --preferences"
            )
        p2 = np.array([judged.p2 for judged in pairs], dtype=np.float64)
        dealt = deal_folds((judged.pair.instruction.id for judged in pairs), FOLDS, context.seed)
        folds = np.array([dealt[judged.pair.instruction.id] for judged in pairs])
        values = feature_array((j.pair.instruction, (j.pair.output_1, j.pair.output_2)) for j in pairs)
        candidate = LinearCandidate(FEATURES_ALONE, list(FEATURES), values)
        model = cls(candidate.weights(p2, folds))
        asked = [judged.pair.instruction for judged in pairs]
        first, second = (
            [score.value for score in model.score(asked, outputs)]
            for outputs in ([j.pair.output_1 for j in pairs], [j.pair.output_2 for j in pairs])
        )
        metrics = {**counts, "train_accuracy": pairwise_accuracy(pairs, first, second)}
        logits = out_of_fold(candidate.differences, p2, folds)
        p = sigmoid(logits)
        bins = reliability(p, p2)
        measures: dict[str, Any] = {
            "pairs": len(p2),
            "loss": float(log_losses(p, p2).mean()),
            "brier": float(((p - p2) ** 2).mean()),
            "ece": calibration_error(bins),
            "reliability": [
                {"from": b.low, "to": b.high, "pairs": b.pairs, "confidence": b.predicted, "observed": b.observed}
                for b in bins
            ],
        }
        metrics["eval_accuracy"] = pairwise_accuracy(pairs, [0.0] * len(pairs), logits.tolist())
        metrics |= {f"eval_{name}": float(measures[name]) for name in ("loss", "brier", "ece", "pairs")}
        (context.directory / CALIBRATION).write_text(json.dumps(measures, indent=1) + "\n", encoding="utf-8")
        context.log_metrics(0, {name: value for name, value in metrics.items() if not math.isnan(value)})
        return model

    def score(self, instructions: Sequence[Instruction], outputs: Sequence[str]) -> list[Score]:
        """Return one score per output."""
        rows = zip(instructions, outputs, strict=True)
        return [Score(utility_of_features(self.weights, instruction, output)) for instruction, output in rows]

    def save(self, directory: Path) -> None:
        """Write `judge.json`: the directory is also a fitted judge, for `--judge fitted:DIRECTORY`."""
        (directory / FILE).write_text(json.dumps(self.weights.to_json(), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, directory: Path, context: TrainContext) -> FeaturesRewardModel:
        """Read what `save` wrote. Raises `DataError` if it cannot be used."""
        return cls(FittedWeights.read(directory))
