"""afarm's own reward model as a candidate: Bradley and Terry on a small language model."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from afarm import ConfigError, Farm, JudgedPair, Output, Preference, write_rows
from afarm.cli.options import FarmOptions
from afarm_plugins.fitted_judges.labelled_pairs import LabelledPair
from afarm_plugins.fitted_judges.logistic import Array
from afarm_plugins.fitted_judges.utility import REWARD_MODEL

FIXED = ("start=model", 'prompts.shares={"sft": 0.0, "unlabeled": 1.0, "validation": 0.0, "evaluation": 0.0}')
"""The model as it is, and every prompt to learn from: the folds hold out."""
NOTHING_EVALUATED = {"instruction": "(nothing is evaluated here)", "output": "-"}


@dataclass(frozen=True)
class LearnedReward:
    """Fits the recipe's `bradley_terry` to labelled pairs; fits are kept in `output_dir` and used again."""

    model: str
    recipe: str
    settings: tuple[str, ...]
    output_dir: Path
    seed: int
    tell: Callable[[str], None]

    def check(self, pairs: Sequence[LabelledPair]) -> None:
        """Open what it is fitted with. Raises `ConfigError` if model, recipe or settings are wrong."""
        try:
            with TemporaryDirectory() as scratch, self._farm(pairs, Path(scratch)):
                pass
        except ConfigError as error:  # of a run, the option of which has another name here
            raise ConfigError([text.replace("--model", "--reward-model") for text in error.problems]) from error

    def differences(self, learned: Sequence[LabelledPair], held: Sequence[LabelledPair]) -> Array:
        """Fit to `learned`, and return the reward of each second output of `held` less that of its first."""
        with TemporaryDirectory() as scratch, self._farm(learned, Path(scratch)) as farm:
            self.tell(f"reward model on {len(learned)} pairs")
            outputs = [Output(row.pair.instruction, text) for row in held for text in row.pair.canonical]
            values = np.array([score.value for score in farm.fit_reward().score_outputs(outputs)])
            return values[1::2] - values[::2]

    def fit(self, learned: Sequence[LabelledPair], directory: Path) -> None:
        """Fit to `learned`, and copy the reward model into `directory`."""
        with TemporaryDirectory() as scratch, self._farm(learned, Path(scratch)) as farm:
            self.tell(f"reward model on all {len(learned)} pairs")
            farm.fit_reward()
            made = farm.workspace.history["fit-reward"].artifact.path
            target = directory / REWARD_MODEL
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(made / "model", target / "model")
            shutil.copy(made / "class.json", target / "class.json")

    def _farm(self, learned: Sequence[LabelledPair], scratch: Path) -> Farm:
        preferences, evaluated = scratch / "preferences.jsonl", scratch / "evaluated.jsonl"
        rows = (JudgedPair(replace(row.pair, occurrence=0), Preference(row.pair.id, row.p2)) for row in learned)
        write_rows(preferences, [row.to_row() for row in rows])
        write_rows(evaluated, [NOTHING_EVALUATED])
        options = FarmOptions(
            recipe=self.recipe,
            settings=["bradley_terry.eval_fraction=0", *self.settings, *FIXED],
            output_dir=self.output_dir,
            seed=self.seed,
            model=self.model,
            preferences=[str(preferences)],
            eval_set=str(evaluated),
            reward_model="bradley_terry",
        )
        return options.farm(stage="fit-reward")
