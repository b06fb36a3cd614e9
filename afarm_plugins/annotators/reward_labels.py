"""`reward:MODEL`: a reward model as annotator. No judge is asked.

The higher score is preferred, and equal ones are a draw; with `soft` the label is

    p2 = sigmoid(score of output 2 - score of output 1)

the preference that the reward model itself gives under Bradley and Terry (even scores: 0.5, not a draw).
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from afarm import AnnotateContext, Annotator, BuildContext, ConfigError, Output, Pair, Preference, RewardModel
from afarm_plugins.annotators.settings import RewardAnnotatorConfig


class RewardAnnotator(Annotator):
    """Labels by a reward model: a registered one that needs no fitting, or the artifact of a fitted one."""

    def __init__(self, config: RewardAnnotatorConfig, spec: str, context: BuildContext):
        """Open a formula now, a fitted model with the first pairs. Raises `ConfigError` and `PluginError`."""
        if not spec:
            raise ConfigError(["name the reward model after a colon: reward:gold, or the directory of a fitted one"])
        self.config = config
        self.spec = os.path.expanduser(spec)
        self._context = context
        if Path(self.spec).is_dir():
            context.identify(self.spec)  # refuses a directory that holds no fitted reward model
        else:
            self.model  # noqa: B018  (loads it)

    @property
    def identity(self) -> str:
        """Changes with the reward model: its source and settings, or its files."""
        return self._context.identify(self.spec)

    @cached_property
    def model(self) -> RewardModel:
        return self._context.reward_model(self.spec)

    def annotate(self, pairs: Sequence[Pair], context: AnnotateContext) -> list[Preference]:
        rows: dict[tuple[str, str], Output] = {}
        for pair in pairs:
            texts, reasons = (pair.output_1, pair.output_2), (pair.finish_reason_1, pair.finish_reason_2)
            for text, reason in zip(texts, reasons, strict=True):
                output = Output(pair.instruction, text, details={"finish_reason": reason})
                rows.setdefault((pair.instruction.id, text), output)
        if not rows:
            return []
        scores = self.model.score_outputs([*rows.values()])
        values = {row: score.value for row, score in zip(rows, scores, strict=True)}
        return [
            self._label(pair, values[pair.instruction.id, pair.output_2] - values[pair.instruction.id, pair.output_1])
            for pair in pairs
        ]

    def _label(self, pair: Pair, gap: float) -> Preference:
        if self.config.soft:
            return Preference(pair.id, 0.5 * (1 + math.tanh(gap / 2)))
        return Preference(pair.id, float(gap > 0)) if gap else Preference(pair.id, None, "draw")
