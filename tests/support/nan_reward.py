"""A reward model that reads tokens and breaks: its third batch of scores is NaN."""

from __future__ import annotations

import math
from collections.abc import Sequence

from afarm.backend import CheckpointPolicy, TorchRewardModel
from afarm.core.records import Sample
from afarm.testing import tiny_reward_model


class TurnsNan(TorchRewardModel):
    """Scores by length until its third batch."""

    calls = 0

    def score_samples(self, samples: Sequence[Sample]) -> list[float]:
        self.calls += 1
        return [math.nan if self.calls == 3 else float(len(sample.token_ids)) for sample in samples]


def turns_nan(policy: CheckpointPolicy) -> TurnsNan:
    """Make one that reads the tokens of `policy`."""
    model = tiny_reward_model(policy)
    return TurnsNan(model.model, model.tokenizer, model.template, model.backend)
