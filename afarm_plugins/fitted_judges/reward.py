"""The fitted utility as a reward: `--reward-model fitted:DIR`."""

from __future__ import annotations

from collections.abc import Sequence

from afarm import BuildContext, Instruction, Output, RewardModel, Score
from afarm_plugins.fitted_judges.settings import FittedConfig
from afarm_plugins.fitted_judges.utility import FittedUtility


class FittedReward(RewardModel):
    """Scores in log-odds: a difference of 1 is a preference of 73%."""

    def __init__(self, config: FittedConfig, spec: str, context: BuildContext):
        """Open the judge in the directory `spec`, or the shipped one. Raises as `FittedUtility` does."""
        self.config = config
        self.utility = FittedUtility(spec, context, config.encoder)

    @property
    def identity(self) -> str:
        """A digest of all that its scores depend on."""
        return self.utility.digest

    def score(self, instructions: Sequence[Instruction], outputs: Sequence[str]) -> list[Score]:
        """Return one score per output."""
        rows = [Output(instruction, output) for instruction, output in zip(instructions, outputs, strict=True)]
        return [Score(value) for value in self.utility.of_outputs(rows)]

    def score_outputs(self, outputs: Sequence[Output]) -> list[Score]:
        """Return one score per output; a fitted reward model inside also reads finish reasons."""
        return [Score(value) for value in self.utility.of_outputs(outputs)]
