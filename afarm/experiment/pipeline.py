"""The experiment as a chain of stages: which one is made from which (paper, section 3).

    base → sft → sample → annotate → fit-reward → train → outputs → evaluate

Each function lays out a stage with all that come before it. Nothing runs until `Workspace.ensure`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from afarm.core.errors import ConfigError, DataError
from afarm.core.interfaces import AnnotateContext
from afarm.core.records import Pair
from afarm.experiment.annotation import OnlineAnnotator, OnlineJudge, annotation_stage
from afarm.experiment.evaluation_stages import data_outputs, evaluation_stage
from afarm.experiment.llm_baselines import answers_stage, is_llm_system
from afarm.experiment.preferences import lacks_reward_model, preferences_stage, require_pairs
from afarm.experiment.return_checks import requests_planned
from afarm.experiment.sampling_stages import outputs_stage, samples_stage
from afarm.experiment.stage import Stage
from afarm.experiment.training_stages import base_stage, require_method, reward_fit_stage, training_stage
from afarm.experiment.workspace import Workspace
from afarm.judging.client import JudgeClient
from afarm.judging.ledger import Ledger
from afarm.storage.artifacts import Artifact


def start(workspace: Workspace) -> Stage:
    """The policy that everything starts from: the SFT stage, or the base model if the recipe skips SFT."""
    return base_stage(workspace) if workspace.config.start == "model" else train(workspace, "sft")


def sample(workspace: Workspace) -> Stage:
    """The outputs of the starting policy that will be compared."""
    return samples_stage(workspace, start(workspace))


def annotate(workspace: Workspace) -> Stage:
    """The training preferences: one's own, or labelled samples.

    Raises `ConfigError` for an annotator that does not know the instructions.
    """
    if workspace.config.preferences:
        return preferences_stage(workspace)
    require_known_instructions(workspace, workspace.config.annotate.annotator, "preference")
    return annotation_stage(workspace, sample(workspace))


def fit_reward(workspace: Workspace) -> Stage | None:
    """The reward model's training, or None without any. Raises `ConfigError` as `require_pairs`."""
    if not (name := workspace.components.learned_part(workspace.config.reward_model)):
        return None
    require_pairs(workspace, f"the reward model {name}")
    return reward_fit_stage(workspace, start(workspace), annotate(workspace))


def train(workspace: Workspace, name: str) -> Stage:
    """Training by a method, from the policy that it begins with. `base` trains nothing.

    Raises `ConfigError` as `require_method` and `require_pairs` do.
    """
    if name == "base":
        return base_stage(workspace)
    method = require_method(workspace.components, name)
    if "preferences" in method.needs:
        require_pairs(workspace, f"method {name}")
    is_start = name == workspace.start_name
    begins_with_base = is_start or method.begins_with == "base"
    return training_stage(
        workspace,
        name,
        method,
        label="sft" if is_start else f"train {name}",
        begin=base_stage(workspace) if begins_with_base else start(workspace),
        preferences=annotate(workspace) if {"preferences", "feedback"} & method.needs else None,
        reward_model=fit_reward(workspace) if "reward_model" in method.needs else None,
        annotator=OnlineAnnotator(workspace) if "annotator" in method.needs else None,
        judge=OnlineJudge(workspace, name, method) if "judge" in method.needs else None,
    )


def outputs(workspace: Workspace, system: str, temperature: float | None = None) -> Stage:
    """A system's evaluation outputs, at the recipe's temperature unless another is given.

    A system is a method, or a judge LLM by its spec that answers the instructions itself.
    """
    if is_llm_system(system):
        return answers_stage(workspace, system)
    return outputs_stage(workspace, system, train(workspace, system), temperature)


def evaluations(workspace: Workspace, system: str) -> Iterator[Stage]:
    """The comparisons of a system, the second after its outputs are made: see `second_evaluation`."""
    main = plan_evaluations(workspace, system)
    yield main
    if second := second_evaluation(workspace, system, workspace.ensure(outputs(workspace, system))):
        yield second


def plan_evaluations(workspace: Workspace, system: str) -> Stage:
    """Note every stage that the comparisons of a system will want. Returns the main one."""
    expected = expected_evaluations(workspace, system)
    for stage in expected:
        workspace.plan(stage)
    return expected[0]


def expected_evaluations(workspace: Workspace, system: str) -> list[Stage]:
    """Lay out the comparisons of a system that are expected before it has answered."""
    main, second = main_evaluation(workspace, system), second_evaluation(workspace, system, None)
    return [main, second] if second else [main]


def main_evaluation(workspace: Workspace, system: str) -> Stage:
    """The comparison of a system with its reference: the data's outputs for the starting policy itself."""
    start_name = workspace.start_name
    if system == start_name or workspace.config.evaluate.reference == "data":
        return _evaluate(workspace, system, None, "data")
    return _evaluate(workspace, system, outputs(workspace, start_name), start_name)


def second_evaluation(workspace: Workspace, system: str, answered: Artifact | None) -> Stage | None:
    """The comparison with the starting policy at the system's own temperature; None if it has none.

    Best-of-n samples at 1.0, and the temperature alone moves the win rate. It is read from the outputs that the system
    has `answered` with or, before there are any, from its method.
    """
    config, start_name = workspace.config.evaluate, workspace.start_name
    if system == start_name or config.reference == "data" or is_llm_system(system):
        return None
    expected = workspace.components.method(system).decoding(config.decoding).temperature
    temperature = answered.meta["summary"]["temperature"] if answered else expected
    if temperature == config.temperature:
        return None
    reference = outputs(workspace, start_name, temperature)
    return _evaluate(workspace, system, reference, f"{start_name} at T={temperature:g}")


def _evaluate(workspace: Workspace, system: str, reference: Stage | None, reference_name: str) -> Stage:
    """The comparison of a system with the outputs of a reference, or with the data set's own (None)."""
    require_known_instructions(workspace, workspace.config.evaluate.annotator, workspace.data.evaluated_on)
    answered = outputs(workspace, system)
    if reference is None:
        data_outputs(workspace)  # raises if there are none, before anything runs
    built = {name: workspace.components.evaluator(name) for name in workspace.config.evaluate.evaluators}
    if many := [name for name, evaluator in built.items() if evaluator.many]:
        raise ConfigError(
            [f"evaluate.evaluators: {n!r} looks at all systems: afarm leaderboard --evaluator {n}" for n in many]
        )
    # The baseline alone needs no reward model, and should not have one fitted just to be scored.
    is_scored = system != workspace.start_name and not lacks_reward_model(workspace)
    scored = is_scored and any("reward_model" in evaluator.needs for evaluator in built.values())
    return evaluation_stage(
        workspace,
        system,
        [name for name, evaluator in built.items() if scored or "reward_model" not in evaluator.needs],
        outputs=answered,
        reference=reference,
        reference_name=reference_name,
        scored=scored,
        reward_model=fit_reward(workspace) if scored else None,
    )


def require_known_instructions(workspace: Workspace, name: str, split: str) -> None:
    """Raise `ConfigError` if an annotator cannot plan how to label the first instruction of a split.

    Some annotators know the instructions of one data set only, as the toy crowd does.
    """
    try:
        first = workspace.data.instructions(split)[0]
    except (DataError, IndexError):  # which the stage that reads them reports
        return
    with Ledger(Path(":memory:")) as empty:
        client = JudgeClient(workspace.judges.by_role, empty, allow_degraded=True)
        annotator, pair = workspace.components.annotator(name), Pair(first, "an output", "another one")
        try:
            requests_planned(annotator, name, [pair], AnnotateContext(workspace.config.seed, client))
        except DataError as error:
            raise ConfigError(
                f"annotator {name!r} does not know the instructions of split {split!r}: name another, with "
                "--annotator and --set evaluate.annotator=NAME, in a study with the option that names it "
                f"(--people, --labelled-by, --annotators). {error}"
            ) from error
