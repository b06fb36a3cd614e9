"""The experiment as an object: the Python API.

    farm = afarm.Farm(recipe="toy")
    policy = farm.train("ppo")        # SFT, samples, preferences and the reward model are made first, or reused
    result = farm.evaluate("ppo")     # result.win_rate, result.evaluations, result.judgements

What is missing is made, what is there is reused, live objects come back.

The command line is a thin face on this class. The stages are laid out in `afarm.experiment.pipeline`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from afarm.core.interfaces import Policy, Progress, RewardModel, no_progress
from afarm.core.plugins import Plugins
from afarm.core.records import Evaluation, JudgedPair, Output, Pair, Preference
from afarm.experiment import pipeline, preflight
from afarm.experiment.annotation import OnlineAnnotator
from afarm.experiment.opening import open_workspace
from afarm.experiment.recipe import parse_overrides
from afarm.experiment.workspace import Workspace
from afarm.storage.artifacts import Artifact
from afarm.storage.rows import preferences_on_disk, read_outputs, read_preferences, read_rows


@dataclass(frozen=True, slots=True)
class Result:
    """A system's evaluations, each with the name of its reference, and the judgements behind them."""

    system: str
    evaluations: tuple[tuple[str, Evaluation], ...]
    judgements: Mapping[str, Sequence[JudgedPair]] = field(default_factory=dict)

    def metric(self, name: str) -> float:
        """Return a number by its name, from the first evaluation that has it. Raises `KeyError`."""
        for _, evaluation in self.evaluations:
            if isinstance(value := evaluation.metrics.get(name), int | float):
                return float(value)
        raise KeyError(name)

    @property
    def win_rate(self) -> float:
        """Percent, against the first reference."""
        return self.metric("win_rate")

    @property
    def standard_error(self) -> float:
        """Of the win rate, in percentage points."""
        return self.metric("standard_error")

    def degraded(self, reference: str) -> dict[str, int]:
        """Count the judgements against `reference` that were made without a parameter, by its name."""
        return dict(Counter(name for row in self.judgements[reference] for name in row.preference.degraded))


class Farm:
    """One experiment: a recipe with its overrides, and a directory where everything it makes is kept.

    `workspace` has what is below these functions: the configuration, data, components, judges and the store.
    """

    def __init__(
        self,
        recipe: str = "toy",
        *,
        settings: str | Mapping[str, Any] | Iterable[str | Mapping[str, Any]] = (),
        output_dir: Path | str = "afarm-runs",
        annotator: str | None = None,
        plugins: Plugins | None = None,
        progress: Progress = no_progress,
        **choices: Any,
    ):
        """Open a workspace for a run.

        Args:
            recipe: A recipe by name, or a YAML file.
            settings: Overrides, one or several, as `"ppo.learning_rate=1e-5"` or as mappings.
            output_dir: Where everything is kept.
            annotator: Short for `annotate.annotator`.
            plugins: The plugins; all that are installed if not given.
            progress: Wraps what takes long.
            **choices: Fields of `RunConfig` (`seed=1, model=…`).

        Raises `ConfigError` with every problem at once, before any model is loaded.
        """
        chosen = as_overrides(settings, annotator=annotator, **choices)
        checks = [*preflight.of_run(), *preflight.access()]
        self.workspace = open_workspace(recipe, chosen, output_dir, checks=checks, plugins=plugins, progress=progress)

    @classmethod
    def over(cls, workspace: Workspace) -> Self:
        """Return the farm of a workspace that is open."""
        farm = cls.__new__(cls)
        farm.workspace = workspace
        return farm

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def sft(self) -> Policy:
        """Return the policy that everything starts from: SFT on demonstrations, or the model (`start: model`)."""
        policy: Policy = self.workspace.load(self.workspace.ensure(pipeline.start(self.workspace)))
        return policy

    def sample(self) -> list[Output]:
        """Return the outputs to be compared, `sample.n` in turn for each preference instruction."""
        return read_outputs(self.workspace.ensure(pipeline.sample(self.workspace)).path / "outputs.jsonl")

    def annotate(self) -> list[JudgedPair]:
        """Return the training preferences."""
        return read_preferences(self.workspace.ensure(pipeline.annotate(self.workspace)).path / "preferences.jsonl")

    def fit_reward(self) -> RewardModel:
        """Return the reward model, fitted if it is one that learns."""
        stage = pipeline.fit_reward(self.workspace)
        return self.workspace.reward_model(self.workspace.ensure(stage) if stage else None)

    def train(self, method: str | None = None) -> Policy:
        """Return the policy learned by `method` (the recipe's, unless named), with all that it needs."""
        stage = pipeline.train(self.workspace, method or self.workspace.config.method)
        policy: Policy = self.workspace.load(self.workspace.ensure(stage))
        return policy

    def outputs(self, method: str | None = None) -> list[Output]:
        """Return the evaluation outputs of a method's policy, or of a judge LLM by its spec."""
        stage = pipeline.outputs(self.workspace, method or self.workspace.config.method)
        return read_outputs(self.workspace.ensure(stage).path / "outputs.jsonl")

    def evaluate(self, method: str | None = None) -> Result:
        """Compare a method's policy, or a judge LLM by its spec, with its reference."""
        name = method or self.workspace.config.method
        stages = pipeline.evaluations(self.workspace, name)
        return read_result(name, [self.workspace.ensure(stage) for stage in stages])

    def annotate_pairs(self, pairs: Sequence[Pair]) -> list[Preference]:
        """Label pairs of one's own with the run's annotator, under the run's budget and without label noise."""
        return OnlineAnnotator(self.workspace)(pairs)

    def close(self) -> None:
        """Stop the judges' thread and close the ledger. The farm can be used again."""
        self.workspace.close()


def as_overrides(
    settings: str | Mapping[str, Any] | Iterable[str | Mapping[str, Any]] = (),
    *,
    annotator: str | None = None,
    **choices: Any,
) -> list[dict[str, Any]]:
    """Return fields of `RunConfig`, the training labels' annotator, and settings as overrides."""
    overrides: list[dict[str, Any]] = [{name: value for name, value in choices.items() if value is not None}]
    if annotator is not None:
        overrides.append({"annotate": {"annotator": annotator}})
    return overrides + parse_overrides(settings)


def read_result(system: str, artifacts: Iterable[Artifact]) -> Result:
    """Read what is stored of the evaluations of `system`."""
    evaluations: list[tuple[str, Evaluation]] = []
    judgements: dict[str, Sequence[JudgedPair]] = {}
    for artifact in artifacts:
        for row in read_rows(artifact.path / "results.jsonl"):
            evaluations.append((row["reference"], Evaluation.from_row(row)))
            judgements[row["reference"]] = preferences_on_disk(artifact.path / "judgements.jsonl")
    return Result(system, tuple(evaluations), judgements)
