"""The stages of evaluation: a system's outputs, and their comparison with a reference's (paper, section 3.3)."""

from __future__ import annotations

import importlib.metadata
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from afarm.core.errors import ConfigError, DataError, attributed_to
from afarm.core.interfaces import EvaluationInputs, Policy, RewardModel
from afarm.core.records import Evaluation, JudgedPair, Output, Score
from afarm.core.seeding import digest
from afarm.evaluation.drift_log import latest_shift
from afarm.evaluation.matching import match_rows
from afarm.evaluation.protocol import EvaluationProtocol, instructions_digest, outputs_digest
from afarm.experiment.annotation import annotation, judge_pairs
from afarm.experiment.llm_baselines import answers, is_answering
from afarm.experiment.training_stages import (
    Inputs,
    Stage,
    evaluation_decoding,
    fit_reward,
    fixed_reward_identity,
    loaded_reward_model,
    train,
    write_outputs,
)
from afarm.judging.pairwise import SETTLED
from afarm.storage.artifacts import Artifact
from afarm.storage.rows import read_outputs, read_preferences, write_rows
from afarm.storage.text import dollars

if TYPE_CHECKING:
    from afarm.experiment.farm import Farm


def outputs(farm: Farm, system: str, temperature: float | None = None) -> Stage:
    """A system's answers to the evaluation instructions, at the recipe's temperature unless another is given.

    A system is a method, or a judge LLM by its spec that answers the instructions itself.
    """
    if is_answering(system):
        return answers(farm, system)
    default = evaluation_decoding(farm)
    asked = default if temperature is None else replace(default, temperature=temperature)
    instructions = farm.instructions("evaluation")
    fields = {"temperature": asked.temperature, "top_p": asked.top_p, "max_new_tokens": asked.max_new_tokens}
    key_fields = farm.key_fields("outputs", decoding=fields, data=farm.data_digest("evaluation"))

    def write(directory: Path, inputs: Inputs) -> Mapping[str, Any]:
        policy: Policy = farm.load(inputs["policy"])
        own = policy.decoding(asked)
        summary = write_outputs(farm, directory, policy, instructions, own, system, "outputs")
        return {**summary, "temperature": own.temperature}

    name = system if temperature is None else f"{system} at T={temperature:g}"
    return Stage("outputs", f"outputs {name}", {"policy": train(farm, system)}, key_fields, write)


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
    if system == farm.start_name or farm.config.evaluate.reference == "data" or is_answering(system):
        return None
    expected = farm.components.method(system).decoding(evaluation_decoding(farm)).temperature
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
    if many := [name for name in settings.evaluators if farm.components.evaluator(name).many]:
        raise ConfigError(
            [f"evaluate.evaluators: {n!r} looks at all systems: afarm leaderboard --evaluator {n}" for n in many]
        )
    names = [n for n in settings.evaluators if scored or "reward_model" not in farm.components.evaluator(n).needs]
    scored = scored and any("reward_model" in farm.components.evaluator(n).needs for n in names)
    reward = fit_reward(farm) if scored else None
    if reward is not None:
        stages["reward_model"] = reward
    key_fields = farm.key_fields(
        "evaluate",
        **annotation(farm, settings.annotator, settings.label_noise),
        evaluators=[farm.components.identity(farm.components.component("evaluators", n)) for n in names],
        reward_model=fixed_reward_identity(farm) if scored and reward is None else "",
        reference={"name": reference_name, "data": farm.data_digest("evaluation") if reference is None else ""},
    )

    def write(directory: Path, inputs: Inputs) -> Mapping[str, Any]:
        mine = read_outputs(inputs["outputs"].path / "outputs.jsonl")
        theirs = read_outputs(inputs["reference"].path / "outputs.jsonl") if reference else references(farm)
        path = directory / "judgements.jsonl"
        summary = judge_pairs(
            farm, path, match_rows(mine, theirs).pairs, settings.annotator, settings.label_noise, "evaluate"
        )
        model = loaded_reward_model(farm, inputs) if scored else None
        given = EvaluationInputs(
            system, mine, theirs, read_preferences(path), scores(farm, model, mine), scores(farm, model, theirs)
        )
        protocol = protocol_of(farm, settings.annotator, settings.label_noise, reference_name, theirs, given.judgements)
        write_results(farm, directory, names, given, protocol, summary["degraded"])
        return {**summary, "temperature": inputs["outputs"].meta["summary"]["temperature"]}

    return Stage("evaluate", f"evaluate {system} against {reference_name}", stages, key_fields, write)


def write_results(
    farm: Farm,
    directory: Path,
    names: Sequence[str],
    given: EvaluationInputs,
    protocol: EvaluationProtocol,
    degraded: Mapping[str, int],
    further: Sequence[Evaluation] = (),
) -> None:
    """What each of the evaluators `names` finds, and what was found `further`, a row to `results.jsonl`; what
    judgements were made without, and what other results must share to be compared."""
    compared = {"system": given.system, "reference": protocol.reference}
    how = {"degraded": dict(degraded), "protocol": protocol.to_row()}
    results = (
        {**compared, "evaluator": name, "metrics": dict(found.metrics), "rows": list(found.rows), **how}
        for name, found in chain(
            ((name, farm.components.evaluate(name, given)) for name in names), ((f.evaluator, f) for f in further)
        )
    )
    try:
        write_rows(directory / "results.jsonl", results)
    except DataError as error:
        asked = any(row.preference.completion for row in given.judgements)
        if not asked or any(row.preference.outcome in SETTLED for row in given.judgements):
            raise
        spent = f"{dollars(farm.spend.dollars)} spent this time; " if farm.spend else ""
        where = f"afarm ledger --export FILE --output-dir {shlex.quote(str(farm.store.root))}"
        raise DataError(f"{error}; {spent}what the judge wrote: {where}") from error


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
    with attributed_to("reward_models", farm.config.reward_model), farm.components.autocast():
        return model.score([o.instruction for o in outputs], [o.output for o in outputs])


def protocol_of(
    farm: Farm, annotator: str, label_noise: float, name: str, reference: Sequence[Output], judged: Iterable[JudgedPair]
) -> EvaluationProtocol:
    """The protocol of a comparison: `reference` are all outputs of the reference, also those without an answer of the
    system's."""
    identity = farm.components.annotator_identity(annotator)
    judges = judges_behind(farm, judged)
    given = {row.instruction.id: row.output for row in reference}
    return EvaluationProtocol(
        annotator=annotator,
        settings=digest({k: v for k, v in identity.items() if k != "source"}),
        source=str(identity["source"])[:12],
        version=importlib.metadata.version("afarm"),
        judges=judges,
        label_noise=label_noise,
        reference=name,
        reference_outputs=outputs_digest(given),
        instructions=instructions_digest(given),
        drift=latest_shift(farm.store.root, judges),
    )


def judges_behind(farm: Farm, judged: Iterable[JudgedPair]) -> dict[str, str]:
    """The judges behind these judgements, by family role: those that they name, or all where one names none."""
    used, unnamed = set(), False
    for row in judged:
        used.add(row.preference.judge)
        unnamed |= bool(row.preference.completion) and not row.preference.judge
    if not used - {""} and not unnamed:
        return {}  # a formula, a reward model or a person
    identities = {role: judge.identity for role, judge in sorted(farm.judges.items())}
    return {role: identity for role, identity in identities.items() if unnamed or identity in used}
