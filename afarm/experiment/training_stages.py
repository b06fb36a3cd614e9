"""The stages that make models: the base model, a method's training, the reward model's fit."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from afarm.core.config import CheckpointChoice, OnPolicyConfig
from afarm.core.errors import AfarmError, ConfigError, attribute_failures, did_you_mean
from afarm.core.interfaces import Method, MethodInputs, Policy, RewardModel
from afarm.core.records import Feedback, Instruction
from afarm.experiment.components import Components
from afarm.experiment.return_checks import problems_seen, require_returned
from afarm.experiment.stage import Inputs, Labelling, Stage
from afarm.experiment.workspace import Workspace
from afarm.storage.model_files import model_identity, require_on_hub
from afarm.storage.prompt_templates import read_prompt_template
from afarm.storage.rows import read_placed_rows, read_preferences

if TYPE_CHECKING:
    from afarm.experiment.annotation import OnlineAnnotator, OnlineJudge  # which few methods are given

NEEDS: dict[str, tuple[str, ...]] = {
    "preferences": (),
    "feedback": (),
    "reward_model": (),
    "annotator": (),
    "judge": (),
    "demonstrations": ("sft",),
    "all_demonstrations": ("sft", "preference", "unlabeled", "validation"),
    "unlabeled": ("unlabeled",),
    "validation": ("validation",),
}
"""The needs that a method can have, and the splits of the data set that serve each."""

PREFERENCES, FEEDBACK = "preferences.jsonl", "feedback.jsonl"

CANDIDATES = 5
"""Checkpoints that a method compares that trains for epochs."""


def base_stage(workspace: Workspace) -> Stage:
    """The base model unchanged: a pointer, not a copy.

    Raises `ModelError` if the Hub does not have it, `ConfigError` if its prompt template cannot be read.
    """
    spec, template = workspace.config.model, read_prompt_template(workspace.config.prompt_template)
    require_on_hub(spec)
    identity = model_identity(spec)
    key_fields = workspace.key_fields("base", model=identity, prompt_template=template)

    def write(directory: Path, inputs: Inputs) -> Mapping[str, Any]:
        workspace.components.save_pointer(identity, template, directory)
        return {"model": spec}

    return Stage("base", "base", {}, key_fields, write)


def training_stage(
    workspace: Workspace,
    name: str,
    method: Method,
    *,
    label: str,
    begin: Stage,
    preferences: Stage | None,
    reward_model: Stage | None,
    annotator: OnlineAnnotator | None,
    judge: OnlineJudge | None,
) -> Stage:
    """Training by a method from the policy of `begin`, with what it needs of the others.

    `reward_model` is None if the run's reward model needs no fitting.
    """
    components = workspace.components
    component = components.component("methods", name)
    given = {"start": begin, "preferences": preferences, "reward_model": reward_model}
    stages = {role: stage for role, stage in given.items() if stage is not None}
    decoding = workspace.config.evaluate.decoding
    key_fields = workspace.key_fields(
        "train",
        method=components.identity(component),
        reward_model=components.unfitted_reward_identity() if "reward_model" in method.needs else "",
        annotator=annotator.identity if annotator else "",
        data={
            need: [workspace.data.digest(split, with_outputs="demonstrations" in need) for split in NEEDS[need]]
            for need in sorted(method.needs)
            if NEEDS[need]
        },
        decoding=[decoding.temperature, decoding.top_p, decoding.max_new_tokens]
        if "validation" in method.needs
        else [],
        sampler=components.sampler_identity() if may_sample(method) else "",
        **({"judge": judge.identity} if judge else {}),
    )

    def learn(directory: Path, inputs: Inputs) -> Policy:
        seed = workspace.seed(f"train {name}")
        given = _method_inputs(workspace, method, inputs, annotator and replace(annotator, directory=directory))
        training = components.training("methods", name, label, directory, seed)
        with training as context:
            policy = method.train(replace(given, judge=judge and judge.within(directory)), context)
        require_returned(Policy, policy, "methods", name, "train", method)
        return policy

    def write(directory: Path, inputs: Inputs) -> Mapping[str, Any]:
        components.save(learn(directory, inputs), directory, "methods", name)
        asked = judge.within(directory).counts() if judge else {}
        return last_metrics(directory) | asked | (replace(annotator, directory=directory).counts() if annotator else {})

    splits = [split for need in method.needs for split in NEEDS[need]]

    def read_splits() -> dict[str, Sequence[Instruction]]:
        return {split: workspace.data.instructions(split) for split in splits}

    def plan_labels(inputs: Inputs) -> Labelling:
        assert annotator is not None
        config: Any = workspace.settings.of(component)
        planned = _plan_pairs(name, method, config, read_splits())
        return annotator.plan(*planned, steps(config), candidates(config))

    def count_asked(method: Method, config: Any, rows: Mapping[str, Sequence[Instruction]]) -> int:
        pairs = sum(map(len, _plan_pairs(name, method, config, rows))) if annotator else 0
        return pairs + (len(judge.plan(rows, method).questions) if judge else 0)

    def asks_less_by() -> list[str]:
        return name_what_halves(count_asked, name, method, workspace.settings.of(component), read_splits())

    requests = (lambda: judge.plan_requests(read_splits())) if judge else None
    plan = requests, plan_labels if annotator else None, asks_less_by if judge or annotator else None
    return Stage("train", label, stages, key_fields, write, learn, *plan)


def _plan_pairs(
    name: str, method: Method, config: Any, rows: Mapping[str, Sequence[Instruction]]
) -> tuple[list[Any], list[Any]]:
    """Return the instructions of the pairs to learn from, and of those to compare checkpoints by."""
    with attribute_failures("methods", name, method):
        return list(method.plan_pairs(rows)), [*rows.get("validation", ())] * candidates(config)


def name_what_halves(
    count: Callable[..., int], name: str, method: Method, config: Any, rows: Mapping[str, Sequence[Instruction]]
) -> list[str]:
    """Name the splits and the method's settings of which a half makes `count(method, config, rows)` less."""
    found = {f"rows.{split}": count(method, config, {**rows, split: rows[split][::2]}) for split in rows}
    for setting, value in config or ():
        with suppress(TypeError, ValueError, AfarmError):  # no number, or a half that does not fit the others
            half = type(config).model_validate({**dict(config), setting: type(value)(value / 2)})
            found[f"{name}.{setting}"] = count(type(method)(half), half, rows)
    every = count(method, config, rows)
    return [setting for setting, counted in found.items() if counted < every]


def may_sample(method: Method) -> bool:
    """Tell if a method may sample while it trains: to learn, or to compare checkpoints."""
    return method.samples or "validation" in method.needs


def steps(config: Any) -> int:
    """Count the steps in each of which a method asks about pairs to learn from."""
    return config.total_steps if isinstance(config, OnPolicyConfig) else 1


def candidates(config: Any) -> int:
    """Count the checkpoints of a method's training that are compared on the validation split."""
    if not isinstance(config, CheckpointChoice) or config.checkpoint == "last":
        return 0
    return -(-config.total_steps // config.save_steps) if isinstance(config, OnPolicyConfig) else CANDIDATES


def require_method(components: Components, name: str) -> Method:
    """Return the method. Raises `ConfigError` if its needs are not met, or its settings do not fit."""
    method = components.method(name)
    needs_reward = "reward_model" in method.needs
    reward_model = components.reward_model_class(components.settings.run.reward_model) if needs_reward else None
    problems = [
        f"{name}: {problem}" for problem in problems_seen(partial(method.check, reward_model), "methods", name, method)
    ]
    problems += _weights_not_taken(components, name, method)
    problems += components.uneven_sizes(components.component("methods", name))
    problems += [
        f"method {name!r} needs {need!r}, which no stage makes.{did_you_mean(need, NEEDS)}"
        for need in sorted(method.needs - NEEDS.keys())
    ]
    if problems:
        raise ConfigError(problems)
    return method


def _weights_not_taken(components: Components, name: str, method: Method) -> list[str]:
    """Say if a method samples with weights that it trains whole, and the engine takes adapters only."""
    engine = components.engine_class()
    settings: Any = components.settings.of(components.component("methods", name))
    trains_all = settings is not None and "lora" in type(settings).model_fields and settings.lora is None
    if engine is None or engine.takes_whole_weights or not trains_all or not may_sample(method):
        return []
    sampler = components.settings.run.backend.sampler
    return [
        f"{name} trains every weight and samples with them while it trains, and the sampler {sampler} takes adapters "
        f"only: train adapters (--set {name}.lora.r=16), or sample by torch (--set backend.sampler=torch)"
    ]


def _method_inputs(
    workspace: Workspace, method: Method, inputs: Inputs, annotator: OnlineAnnotator | None
) -> MethodInputs:
    """Return what the method needs, and nothing else."""
    needs, data = method.needs, workspace.data
    splits = next((NEEDS[need] for need in ("all_demonstrations", "demonstrations") if need in needs), ())
    return MethodInputs(
        start=workspace.load(inputs["start"]),
        preferences=read_preferences(inputs["preferences"].path / PREFERENCES) if "preferences" in needs else (),
        reward_model=workspace.reward_model(inputs.get("reward_model")) if "reward_model" in needs else None,
        unlabeled=data.instructions("unlabeled") if "unlabeled" in needs else (),
        demonstrations=[row for split in splits for row in data.rows(split)],
        validation=data.instructions("validation") if "validation" in needs else (),
        annotate=annotator,
        decoding=workspace.config.evaluate.decoding,
        feedback=_read_feedback(inputs["preferences"].path) if "feedback" in needs else (),
    )


def _read_feedback(directory: Path) -> list[Feedback]:
    """Read the thumbs of unpaired feedback, or those that each pair gives to its two outputs."""
    if (directory / FEEDBACK).is_file():
        return [Feedback.from_row(row, where) for where, row in read_placed_rows(directory / FEEDBACK)]
    return [thumb for judged in read_preferences(directory / PREFERENCES) for thumb in judged.feedback]


def reward_fit_stage(workspace: Workspace, policy: Stage, preferences: Stage) -> Stage:
    """The fit of the reward model, or of its part that learns, from the starting policy.

    Raises `ConfigError` as `require_enough_to_fit` does, and for a batch that does not divide among processes.
    """
    name = workspace.components.learned_part(workspace.config.reward_model)
    cls = workspace.components.reward_model_class(name)
    require_enough_to_fit(workspace)
    component = workspace.components.component("reward_models", name)
    if uneven := workspace.components.uneven_sizes(component):
        raise ConfigError(uneven)
    key_fields = workspace.key_fields("fit-reward", reward_model=workspace.components.identity(component))

    def learn(directory: Path, inputs: Inputs) -> RewardModel:
        seed, config = workspace.seed("fit-reward"), workspace.settings.of(component)
        judged = read_preferences(inputs["preferences"].path / PREFERENCES)
        training = workspace.components.training("reward_models", name, "fit-reward", directory, seed)
        with training as context:
            fitted = cls.fit(judged, workspace.load(inputs["policy"]), config, context)
        require_returned(RewardModel, fitted, "reward_models", name, "fit", cls)
        return fitted

    def write(directory: Path, inputs: Inputs) -> Mapping[str, Any]:
        workspace.components.save(learn(directory, inputs), directory, "reward_models", name)
        return last_metrics(directory)

    stages = {"policy": policy, "preferences": preferences}
    return Stage("fit-reward", "fit-reward", stages, key_fields, write, run_collective=learn)


def require_enough_to_fit(workspace: Workspace) -> None:
    """Raise `ConfigError` if pairs of too few instructions for the reward model will be labelled."""
    name, is_own = workspace.components.learned_part(workspace.config.reward_model), bool(workspace.config.preferences)
    fewest = workspace.components.reward_model_class(name).fewest_instructions
    if not is_own and (count := len(workspace.data.instructions("preference"))) < fewest:
        raise ConfigError(
            f"the reward model {name} needs preferences on {fewest} instructions or more, and the run labels "
            f"those of {count}: --set rows.preference={fewest}, more rows in the data set's split 'preference', or "
            "another --reward-model"
        )


def last_metrics(directory: Path) -> dict[str, Any]:
    """Return the last value of each metric that was logged: a training stage's summary."""
    last: dict[str, Any] = {}
    with (directory / "metrics.jsonl").open(encoding="utf-8") as handle:
        for line in handle:
            last |= json.loads(line)
    return last
