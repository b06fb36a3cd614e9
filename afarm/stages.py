"""The stages of the experiment. Each function says what a stage is made from and how; nothing runs until `Farm.ensure`.

sft → sample → annotate → fit-reward → train → outputs → evaluate (paper, section 3).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from afarm.blame import blame
from afarm.building import Builder, is_fitted
from afarm.errors import ConfigError, DataError, did_you_mean
from afarm.files import read_outputs, read_preferences, write_rows
from afarm.interfaces import AnnotateContext, Decoding, EvaluationInputs, Method, MethodInputs, Policy, RewardModel
from afarm.labelling import CHUNK, label
from afarm.pairing import neighbours, paired
from afarm.records import Instruction, JudgedPair, Output, Pair, Score
from afarm.sending import LARGEST_BATCH
from afarm.store import Artifact

if TYPE_CHECKING:
    from afarm.pipeline import Farm

Inputs = Mapping[str, Artifact]


class Write(Protocol):
    """Fills an artifact's directory from its inputs, and returns a summary of what it did."""

    def __call__(self, directory: Path, inputs: Inputs) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of the experiment. `made_from`: all that its result depends on besides its inputs' content."""

    kind: str
    label: str
    inputs: Mapping[str, Stage]
    made_from: Mapping[str, Any]
    write: Write


NEEDS: dict[str, str] = {
    "preferences": "",
    "reward_model": "",
    "annotator": "",
    "demonstrations": "sft",
    "unlabeled": "unlabeled",
    "validation": "validation",
}
"""What a method can need, and the split of the data set that serves it."""


MODELS = frozenset({"base", "train", "fit-reward"})
"""The kinds of stage that make a policy or a reward model; the others make rows."""


# ------------------------------------------------------------------------------------------------------ policies


def base(farm: Farm) -> Stage:
    """The base model as it is: a pointer, not a copy."""
    from afarm.backend.availability import require_on_hub
    from afarm.backend.identity import model_identity

    spec, template = farm.config.model, farm.config.prompt_template
    require_on_hub(spec)
    identity = model_identity(spec)
    made_from = farm.made_from("base", model=identity, prompt_template=template)

    def write(directory: Path, inputs: Inputs) -> Mapping[str, Any]:
        farm.builder.save_pointer(identity, directory)
        return {"model": spec}

    return Stage("base", "base", {}, made_from, write)


def start(farm: Farm) -> Stage:
    """The policy that everything starts from: the SFT stage, or the base model where the recipe skips SFT."""
    return base(farm) if farm.config.start == "model" else train(farm, "sft")


def train(farm: Farm, name: str) -> Stage:
    """Training by the method `name`. SFT is the method that starts from the base model; the others start from it."""
    if name == farm.start_name:
        return base(farm) if name == "base" else _train(farm, name, base(farm), "sft")
    return _train(farm, name, start(farm), f"train {name}")


def _train(farm: Farm, name: str, begin: Stage, label: str) -> Stage:
    method = check_method(farm.builder, name)
    stages = {"start": begin}
    if "preferences" in method.needs:
        stages["preferences"] = annotate(farm)
    reward = fit_reward(farm) if "reward_model" in method.needs else None
    if reward is not None:
        stages["reward_model"] = reward
    made_from = farm.made_from(
        "train",
        method=farm.builder.identity(farm.builder.component("methods", name)),
        reward_model=_fixed_reward_identity(farm) if "reward_model" in method.needs and reward is None else "",
        annotator=_annotation(farm, farm.config.annotate.annotator, 0.0) if "annotator" in method.needs else "",
        data={need: farm.data_digest(NEEDS[need]) for need in sorted(method.needs) if NEEDS[need]},
    )

    def write(directory: Path, inputs: Inputs) -> Mapping[str, Any]:
        with farm.builder.training("methods", name, label, directory, farm.seed(f"train {name}")) as context:
            policy = method.train(_method_inputs(farm, method, inputs), context)
        farm.builder.save(policy, directory)
        return last_metrics(directory)

    return Stage("train", label, stages, made_from, write)


def check_method(builder: Builder, name: str) -> Method:
    """The method. Raises `ConfigError` for what can be seen before a model is loaded: unmet needs, bad settings."""
    method = builder.method(name)
    problems = [f"{name}: {problem}" for problem in method.check()]
    problems += [
        f"method {name!r} needs {need!r}, which no stage makes.{did_you_mean(need, NEEDS)}"
        for need in sorted(method.needs - NEEDS.keys())
    ]
    if problems:
        raise ConfigError(problems)
    return method


def _method_inputs(farm: Farm, method: Method, inputs: Inputs) -> MethodInputs:
    needs = method.needs
    return MethodInputs(
        start=farm.load(inputs["start"]),
        preferences=_training_preferences(farm, inputs["preferences"]) if "preferences" in needs else (),
        reward_model=_reward_model(farm, inputs) if "reward_model" in needs else None,
        unlabeled=farm.instructions("unlabeled") if "unlabeled" in needs else (),
        demonstrations=farm.rows("sft") if "demonstrations" in needs else (),
        validation=farm.instructions("validation") if "validation" in needs else (),
        annotate=farm.annotate_pairs if "annotator" in needs else None,
    )


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
    made_from = farm.made_from("sample", settings=settings.result_fields(), data=farm.data_digest("preference"))

    def write(directory: Path, inputs: Inputs) -> Mapping[str, Any]:
        decoding = Decoding(**settings.model_dump())
        policy: Policy = farm.load(inputs["policy"])
        return write_outputs(farm, directory, policy, instructions, decoding, farm.start_name, "sample")

    return Stage("sample", "sample", {"policy": start(farm)}, made_from, write)


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
            details = {"finish_reason": made.finish_reason, "tokens": len(made.token_ids)}
            if made.score is not None:
                details["score"] = made.score
            yield Output(instruction, made.text, generator, details).to_row()

    with farm.builder.autocast():
        count = write_rows(directory / "outputs.jsonl", rows())
    return {"rows": count, "mean_characters": round(characters / max(count, 1), 1), "cut_off": cut_off}


def annotate(farm: Farm) -> Stage:
    """The training preferences, with the recipe's label noise."""
    settings = farm.config.annotate
    made_from = farm.made_from("annotate", **_annotation(farm, settings.annotator, settings.label_noise))

    def write(directory: Path, inputs: Inputs) -> Mapping[str, Any]:
        pairs = neighbours(read_outputs(inputs["outputs"].path / "outputs.jsonl"), farm.config.sample.n)
        path = directory / "preferences.jsonl"
        return _judge(farm, path, pairs, settings.annotator, settings.label_noise, "annotate")

    return Stage("annotate", "annotate", {"outputs": sample(farm)}, made_from, write)


def _judge(
    farm: Farm, path: Path, pairs: Sequence[Pair], annotator: str, label_noise: float, purpose: str
) -> Mapping[str, Any]:
    """Judge `pairs` into the file at `path`, and count who decided what."""
    context = AnnotateContext(farm.seed(purpose), farm.ask, farm.progress)
    chunk_size = LARGEST_BATCH if farm.config.batch_api else CHUNK  # a batch takes hours, however small it is
    many = len(pairs) > chunk_size  # where one chunk is all, the annotator's own bar says all
    shown = farm.progress(pairs, f"{annotator}: pairs", len(pairs)) if many else pairs
    members: dict[str, int] = {}
    outcomes: dict[str, int] = {}

    def rows() -> Iterator[Mapping[str, Any]]:
        for judged in label(shown, farm.builder.annotator(annotator), annotator, context, label_noise, chunk_size):
            preference = judged.preference
            who = "(noise)" if preference.source == "noise" else preference.member or annotator
            who = "(identical)" if judged.pair.identical else who
            members[who] = members.get(who, 0) + 1
            outcomes[preference.outcome] = outcomes.get(preference.outcome, 0) + 1
            yield judged.to_row()

    count = write_rows(path, rows())
    return {"rows": count, "outcomes": outcomes, "members": dict(sorted(members.items()))}


def _annotation(farm: Farm, annotator: str, label_noise: float) -> dict[str, Any]:
    """What labels depend on: the annotator and the judges behind it, their source and settings, and the noise."""
    return {
        "annotator": farm.builder.annotator_identity(annotator),
        "judges": {role: judge.identity for role, judge in sorted(farm.judges.items())},
        "label_noise": label_noise,
    }


def _training_preferences(farm: Farm, artifact: Artifact) -> list[JudgedPair]:
    return read_preferences(artifact.path / "preferences.jsonl")


# -------------------------------------------------------------------------------------------------- reward model


def fit_reward(farm: Farm) -> Stage | None:
    """The reward model's training; None where it is one that needs no fitting."""
    name = farm.config.reward_model
    cls = farm.builder.reward_model_class(name)
    if not is_fitted(cls):
        return None
    component = farm.builder.component("reward_models", name)
    made_from = farm.made_from("fit-reward", reward_model=farm.builder.identity(component))

    def write(directory: Path, inputs: Inputs) -> Mapping[str, Any]:
        preferences = _training_preferences(farm, inputs["preferences"])
        seed = farm.seed("fit-reward")
        with farm.builder.training("reward_models", name, "fit-reward", directory, seed) as context:
            fitted = cls.fit(preferences, farm.load(inputs["policy"]), farm.settings.of(component), context)
        farm.builder.save(fitted, directory)
        return last_metrics(directory)

    return Stage("fit-reward", "fit-reward", {"policy": start(farm), "preferences": annotate(farm)}, made_from, write)


def _reward_model(farm: Farm, inputs: Inputs) -> RewardModel:
    stored = inputs.get("reward_model")
    loaded: RewardModel = farm.load(stored) if stored else farm.builder.fixed_reward_model(farm.config.reward_model)
    return loaded


def _fixed_reward_identity(farm: Farm) -> Mapping[str, Any]:
    return farm.builder.identity(farm.builder.component("reward_models", farm.config.reward_model))


# ---------------------------------------------------------------------------------------------------- evaluation


def evaluation_decoding(farm: Farm) -> Decoding:
    settings = farm.config.evaluate
    return Decoding(settings.temperature, settings.top_p, settings.max_new_tokens, 1, settings.per_device_batch_size)


def outputs(farm: Farm, system: str, temperature: float | None = None) -> Stage:
    """A system's answers to the evaluation instructions, at the recipe's temperature unless another is given."""
    default = evaluation_decoding(farm)
    asked = default if temperature is None else replace(default, temperature=temperature)
    instructions = farm.instructions("evaluation")
    fields = {"temperature": asked.temperature, "top_p": asked.top_p, "max_new_tokens": asked.max_new_tokens}
    made_from = farm.made_from("outputs", decoding=fields, data=farm.data_digest("evaluation"))

    def write(directory: Path, inputs: Inputs) -> Mapping[str, Any]:
        policy: Policy = farm.load(inputs["policy"])
        own = policy.decoding(asked)
        summary = write_outputs(farm, directory, policy, instructions, own, system, "outputs")
        return {**summary, "temperature": own.temperature}

    name = system if temperature is None else f"{system} at T={temperature:g}"
    return Stage("outputs", f"outputs {name}", {"policy": train(farm, system)}, made_from, write)


def evaluations(farm: Farm, system: str) -> Iterator[Stage]:
    """The comparisons of a system: with its reference and, where it samples at a temperature of its own, also with the
    starting policy at that temperature (best-of-n samples at 1.0, and the temperature alone moves the win rate)."""
    yield main_evaluation(farm, system)
    if second := second_evaluation(farm, system, farm.ensure(outputs(farm, system))):
        yield second


def main_evaluation(farm: Farm, system: str) -> Stage:
    """The comparison of a system with its reference: the data's outputs for the starting policy itself."""
    if system == farm.start_name or farm.config.evaluate.reference == "data":
        return evaluate(farm, system, None, "data")
    return evaluate(farm, system, outputs(farm, farm.start_name), farm.start_name)


def second_evaluation(farm: Farm, system: str, answered: Artifact | None) -> Stage | None:
    """The comparison at a temperature of the system's own: its outputs', or, before there are any, its method's."""
    if system == farm.start_name or farm.config.evaluate.reference == "data":
        return None
    expected = farm.builder.method(system).decoding(evaluation_decoding(farm)).temperature
    own = answered.meta["summary"]["temperature"] if answered else expected
    if own == farm.config.evaluate.temperature:
        return None
    return evaluate(farm, system, outputs(farm, farm.start_name, own), f"{farm.start_name} at T={own:g}")


def evaluate(farm: Farm, system: str, reference: Stage | None, reference_name: str) -> Stage:
    """Judge a system's outputs against a reference's (None: the data set's own), and run the evaluators."""
    settings = farm.config.evaluate
    stages = {"outputs": outputs(farm, system)}
    if reference is not None:
        stages["reference"] = reference
    elif not any(row.output for row in farm.rows("evaluation")):
        raise DataError(
            f"data set {farm.config.dataset!r} has instructions only for evaluation, no outputs to compare with: add "
            f"them, or compare another method with {farm.start_name!r} (--set evaluate.reference=sft)"
        )
    # The baseline alone needs no reward model, and should not have one fitted just to be scored.
    scored = system != farm.start_name
    names = [n for n in settings.evaluators if scored or "reward_model" not in farm.builder.evaluator(n).needs]
    scored = scored and any("reward_model" in farm.builder.evaluator(n).needs for n in names)
    reward = fit_reward(farm) if scored else None
    if reward is not None:
        stages["reward_model"] = reward
    made_from = farm.made_from(
        "evaluate",
        **_annotation(farm, settings.annotator, settings.label_noise),
        evaluators=[farm.builder.identity(farm.builder.component("evaluators", n)) for n in names],
        reward_model=_fixed_reward_identity(farm) if scored and reward is None else "",
        reference={"name": reference_name, "data": farm.data_digest("evaluation") if reference is None else ""},
    )

    def write(directory: Path, inputs: Inputs) -> Mapping[str, Any]:
        mine = read_outputs(inputs["outputs"].path / "outputs.jsonl")
        theirs = read_outputs(inputs["reference"].path / "outputs.jsonl") if reference else references(farm)
        path = directory / "judgements.jsonl"
        summary = _judge(farm, path, paired(theirs, mine), settings.annotator, settings.label_noise, "evaluate")
        model = _reward_model(farm, inputs) if scored else None
        given = EvaluationInputs(
            system, mine, theirs, read_preferences(path), scores(farm, model, mine), scores(farm, model, theirs)
        )
        results = [
            {"system": system, "reference": reference_name, "evaluator": name, "metrics": dict(found.metrics)}
            for name in names
            for found in [farm.builder.evaluate(name, given)]
        ]
        write_rows(directory / "results.jsonl", results)
        return {**summary, "temperature": inputs["outputs"].meta["summary"]["temperature"]}

    return Stage("evaluate", f"evaluate {system} against {reference_name}", stages, made_from, write)


def references(farm: Farm) -> Sequence[Output]:
    """The data set's own outputs. Raises `DataError` where it has none to be compared with."""
    rows = farm.rows("evaluation")
    if not any(row.output.strip() for row in rows):
        raise DataError(
            f"split 'evaluation' of data set {farm.config.dataset!r} has no outputs to be compared with; "
            "compare a trained method with the starting policy (--method ppo --set evaluate.reference=sft)"
        )
    return rows


def scores(farm: Farm, model: RewardModel | None, outputs: Sequence[Output]) -> Sequence[Score]:
    """The reward model's scores of outputs, in their order; none without a model."""
    if model is None:
        return ()
    with blame("reward_models", farm.config.reward_model), farm.builder.autocast():
        return model.score([o.instruction for o in outputs], [o.output for o in outputs])
