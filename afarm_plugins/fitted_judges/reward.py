"""The fitted utility as a reward: `--reward-model fitted:DIR`."""

from __future__ import annotations

from collections.abc import Sequence

from afarm import Instruction, Output, RewardModel, Score
from afarm_plugins.fitted_judges.utility import FittedPart


class FittedReward(FittedPart, RewardModel):
    """Scores in log-odds: a difference of 1 is a preference of 73%."""

    def score(self, instructions: Sequence[Instruction], outputs: Sequence[str]) -> list[Score]:
        """Return one score per output."""
        rows = [Output(instruction, output) for instruction, output in zip(instructions, outputs, strict=True)]
        return self.score_outputs(rows)

    def score_outputs(self, outputs: Sequence[Output]) -> list[Score]:
        """Return one score per output; a fitted reward model inside also reads finish reasons."""
        return [Score(value) for value in self.utility.of_outputs(outputs)]
