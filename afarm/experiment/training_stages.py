"""The stages of the experiment. Each function says what a stage is made from and how; nothing runs until `Farm.ensure`.

sft → sample → annotate → fit-reward → train → outputs → evaluate (paper, section 3).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from afarm.core.errors import ConfigError, did_you_mean
from afarm.core.interfaces import Decoding, Method, MethodInputs, Policy, RewardModel
from afarm.core.judge import ChatRequest
from afarm.core.records import Instruction, JudgedPair, Output
from afarm.evaluation.matching import adjacent_pairs
from afarm.experiment.annotation import annotation, judge_pairs
from afarm.experiment.components import Components, is_fitted
from afarm.storage.artifacts import Artifact
from afarm.storage.rows import read_outputs, read_preferences, write_rows

if TYPE_CHECKING:
    from afarm.experiment.farm import Farm

Inputs = Mapping[str, Artifact]


class Write(Protocol):
    """Fills an artifact's directory from its inputs, and returns a summary of what it did."""

    def __call__(self, directory: Path, inputs: Inputs) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of the experiment. `key_fields`: all its result depends on besides its inputs' content. `asks`: what
    it will ask judges, for stages that know it before they run; what annotators will ask, they say themselves.
    `pairs`: the instruction of each pair that training will ask the annotator about. `join`: the part of `write`, with
    the same arguments, that several processes do together: training."""

    kind: str
    label: str
    inputs: Mapping[str, Stage]
    key_fields: Mapping[str, Any]
    write: Write
    asks: Callable[[], Iterable[ChatRequest]] | None = None
    pairs: Callable[[], Sequence[Instruction]] | None = None
    join: Callable[..., object] | None = None


NEEDS: dict[str, tuple[str, ...]] = {
    "preferences": (),
    "reward_model": (),
    "annotator": (),
    "demonstrations": ("sft",),
    "all_demonstrations": ("sft", "preference", "unlabeled", "validation"),
    "unlabeled": ("unlabeled",),
    "validation": ("validation",),
}
"""What a method can need, and the splits of the data set that serve it."""


MODELS = frozenset({"base", "train", "fit-reward"})
"""The kinds of stage that make a policy or a reward model; the others make rows."""


# ------------------------------------------------------------------------------------------------------ policies


def base(farm: Farm) -> Stage:
    """The base model as it is: a pointer, not a copy."""
    from afarm.storage.model_files import model_identity, require_on_hub

    spec, template = farm.config.model, farm.config.prompt_template
    require_on_hub(spec)
    identity = model_identity(spec)
    key_fields = farm.key_fields("base", model=identity, prompt_template=template)

    def write(directory: Path, inputs: Inputs) -> Mapping[str, Any]:
        farm.components.save_pointer(identity, directory)
        return {"model": spec}

    return Stage("base", "base", {}, key_fields, write)


def start(farm: Farm) -> Stage:
    """The policy that everything starts from: the SFT stage, or the base model where the recipe skips SFT."""
    return base(farm) if farm.config.start == "model" else train(farm, "sft")


def train(farm: Farm, name: str) -> Stage:
    """Training by the method `name`, from the policy that it begins with. What `base` would train is there already."""
    if name == "base":
        return base(farm)
    if name == farm.start_name:
        return _train(farm, name, base(farm), "sft")
    begin = base if farm.components.method(name).begins_with == "base" else start
    return _train(farm, name, begin(farm), f"train {name}")


def _train(farm: Farm, name: str, begin: Stage, label: str) -> Stage:
    method = check_method(farm.components, name)
    stages = {"start": begin}
    if "preferences" in method.needs:
        stages["preferences"] = annotate(farm)
    reward = fit_reward(farm) if "reward_model" in method.needs else None
    if reward is not None:
        stages["reward_model"] = reward
    asked = evaluation_decoding(farm)
    key_fields = farm.key_fields(
        "train",
        method=farm.components.identity(farm.components.component("methods", name)),
        reward_model=fixed_reward_identity(farm) if "reward_model" in method.needs and reward is None else "",
        annotator=annotation(farm, farm.config.annotate.annotator, 0.0) if "annotator" in method.needs else "",
        data={need: [farm.data_digest(s) for s in NEEDS[need]] for need in sorted(method.needs) if NEEDS[need]},
        decoding=[asked.temperature, asked.top_p, asked.max_new_tokens] if "validation" in method.needs else [],
    )

    def learn(directory: Path, inputs: Inputs) -> Policy:
        with farm.components.training("methods", name, label, directory, farm.seed(f"train {name}")) as context:
            return method.train(_method_inputs(farm, method, inputs), context)

    def write(directory: Path, inputs: Inputs) -> Mapping[str, Any]:
        farm.components.save(learn(directory, inputs), directory)
        return last_metrics(directory)

    def pairs() -> Sequence[Instruction]:
        splits = [split for need in method.needs for split in NEEDS[need]]
        return method.plan_pairs({split: farm.instructions(split) for split in splits})

    asking = pairs if "annotator" in method.needs else None
    return Stage("train", label, stages, key_fields, write, pairs=asking, join=learn)


def check_method(components: Components, name: str) -> Method:
    """The method. Raises `ConfigError` for what can be seen before a model is loaded: unmet needs, bad settings."""
    method = components.method(name)
    asked = "reward_model" in method.needs
    reward_model = components.reward_model_class(components.settings.run.reward_model) if asked else None
    problems = [f"{name}: {problem}" for problem in method.check(reward_model)]
    problems += [
        f"method {name!r} needs {need!r}, which no stage makes.{did_you_mean(need, NEEDS)}"
        for need in sorted(method.needs - NEEDS.keys())
    ]
    if problems:
        raise ConfigError(problems)
    return method


def _method_inputs(farm: Farm, method: Method, inputs: Inputs) -> MethodInputs:
    needs = method.needs
    splits = next((NEEDS[need] for need in ("all_demonstrations", "demonstrations") if need in needs), ())
    return MethodInputs(
        start=farm.load(inputs["start"]),
        preferences=_training_preferences(farm, inputs["preferences"]) if "preferences" in needs else (),
        reward_model=loaded_reward_model(farm, inputs) if "reward_model" in needs else None,
        unlabeled=farm.instructions("unlabeled") if "unlabeled" in needs else (),
        demonstrations=[row for split in splits for row in farm.rows(split)],
        validation=farm.instructions("validation") if "validation" in needs else (),
        annotate=farm.annotate_pairs if "annotator" in needs else None,
        decoding=evaluation_decoding(farm),
    )


def evaluation_decoding(farm: Farm) -> Decoding:
    """How systems are decoded to be compared, unless they ask for something else."""
    settings = farm.config.evaluate
    return Decoding(settings.temperature, settings.top_p, settings.max_new_tokens, 1, settings.per_device_batch_size)


def last_metrics(directory: Path) -> dict[str, Any]:
    """The last value of each metric that was logged: a training stage's summary."""
    last: dict[str, Any] = {}
    with (directory / "metrics.jsonl").open(encoding="utf-8") as handle:
        for line in handle:
            last |= json.loads(line)
    return last


# ------------------------------------------------------------------------------------------- samples and preferences


def sample(farm: Farm) -> Stage:
    """Outputs of the starting policy to the preference instructions, to be compared."""
    settings = farm.config.sample
    instructions = farm.instructions("preference")
    key_fields = farm.key_fields("sample", settings=settings.result_fields(), data=farm.data_digest("preference"))

    def write(directory: Path, inputs: Inputs) -> Mapping[str, Any]:
        decoding = Decoding(**settings.model_dump())
        policy: Policy = farm.load(inputs["policy"])
        return write_outputs(farm, directory, policy, instructions, decoding, farm.start_name, "sample")

    return Stage("sample", "sample", {"policy": start(farm)}, key_fields, write)


def write_outputs(
    farm: Farm,
    directory: Path,
    policy: Policy,
    instructions: Sequence[Instruction],
    decoding: Decoding,
    generator: str,
    purpose: str,
) -> Mapping[str, Any]:
    """Sample, a row to the file as each is ready, so that memory does not grow with their number."""
    repeated = (instruction for instruction in instructions for _ in range(decoding.n))
    # A seed for each system: with one for all, best-of-n would be compared with one of its own candidates.
    samples = policy.sample(instructions, decoding, seed=farm.seed(f"{purpose} {generator}"))
    shown = farm.progress(samples, f"{generator}: sampling", len(instructions) * decoding.n)
    characters = cut_off = 0

    def rows() -> Iterator[Mapping[str, Any]]:
        nonlocal characters, cut_off
        for instruction, made in zip(repeated, shown, strict=True):
            characters += len(made.text)
            cut_off += made.finish_reason == "length"
            details = {"finish_reason": made.finish_reason, "tokens": len(made.token_ids), **made.details}
            if made.score is not None:
                details["score"] = made.score
            yield Output(instruction, made.text, generator, details).to_row()

    with farm.components.autocast():
        count = write_rows(directory / "outputs.jsonl", rows())
    return {"rows": count, "mean_characters": round(characters / max(count, 1), 1), "cut_off": cut_off}


def annotate(farm: Farm) -> Stage:
    """The training preferences, with the recipe's label noise."""
    settings = farm.config.annotate
    key_fields = farm.key_fields("annotate", **annotation(farm, settings.annotator, settings.label_noise))

    def write(directory: Path, inputs: Inputs) -> Mapping[str, Any]:
        pairs = adjacent_pairs(read_outputs(inputs["outputs"].path / "outputs.jsonl"), farm.config.sample.n)
        path = directory / "preferences.jsonl"
        return judge_pairs(farm, path, pairs, settings.annotator, settings.label_noise, "annotate")

    return Stage("annotate", "annotate", {"outputs": sample(farm)}, key_fields, write)


def _training_preferences(farm: Farm, artifact: Artifact) -> list[JudgedPair]:
    return read_preferences(artifact.path / "preferences.jsonl")


# -------------------------------------------------------------------------------------------------- reward model


def fit_reward(farm: Farm) -> Stage | None:
    """The reward model's training; None where it is one that needs no fitting."""
    name = farm.config.reward_model
    cls = farm.components.reward_model_class(name)
    if not is_fitted(cls):
        return None
    component = farm.components.component("reward_models", name)
    key_fields = farm.key_fields("fit-reward", reward_model=farm.components.identity(component))

    def learn(directory: Path, inputs: Inputs) -> RewardModel:
        preferences = _training_preferences(farm, inputs["preferences"])
        seed = farm.seed("fit-reward")
        with farm.components.training("reward_models", name, "fit-reward", directory, seed) as context:
            return cls.fit(preferences, farm.load(inputs["policy"]), farm.settings.of(component), context)

    def write(directory: Path, inputs: Inputs) -> Mapping[str, Any]:
        farm.components.save(learn(directory, inputs), directory)
        return last_metrics(directory)

    stages = {"policy": start(farm), "preferences": annotate(farm)}
    return Stage("fit-reward", "fit-reward", stages, key_fields, write, join=learn)


def loaded_reward_model(farm: Farm, inputs: Inputs) -> RewardModel:
    stored = inputs.get("reward_model")
    loaded: RewardModel = farm.load(stored) if stored else farm.components.fixed_reward_model(farm.config.reward_model)
    return loaded


def fixed_reward_identity(farm: Farm) -> Mapping[str, Any]:
    return farm.components.fixed_reward_identity(farm.config.reward_model)
