"""The stage of evaluation: a system's outputs compared with a reference's (paper, section 3.3)."""

from __future__ import annotations

import importlib.metadata
import shlex
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from afarm.core.errors import DataError
from afarm.core.interfaces import EvaluationInputs
from afarm.core.records import Evaluation, JudgedPair, Output, Score
from afarm.core.seeding import digest
from afarm.evaluation.drift_log import latest_shift
from afarm.evaluation.matching import match_rows
from afarm.evaluation.protocol import EvaluationProtocol, instructions_digest, outputs_digest
from afarm.evaluation.red_flags import inspect_outputs
from afarm.evaluation.who_judged import who_judged
from afarm.experiment.annotation import annotate_to_file, annotation_identity, make_placeholders
from afarm.experiment.stage import Inputs, Labelling, Stage
from afarm.experiment.workspace import Workspace
from afarm.judging.pairwise import SETTLED
from afarm.storage.disk import write_json
from afarm.storage.rows import read_outputs, read_preferences, write_rows
from afarm.storage.text import dollars

RED_FLAGS = "red_flags.json"
"""The file of an evaluation that holds what its outputs and its judge raise: see `afarm.evaluation.red_flags`."""


def evaluation_stage(
    workspace: Workspace,
    system: str,
    evaluators: Sequence[str],
    *,
    outputs: Stage,
    reference: Stage | None,
    reference_name: str,
    scored: bool,
    reward_model: Stage | None,
) -> Stage:
    """The judgements of a system's outputs against a reference's, and what evaluators make of them.

    `reference` is None for the data set's own outputs. If they are `scored` the run's reward model scores both, whose
    fit is None if it needs no fitting.
    """
    settings, components = workspace.config.evaluate, workspace.components
    given = {"outputs": outputs, "reference": reference, "reward_model": reward_model}
    stages = {role: stage for role, stage in given.items() if stage is not None}
    takes_fixed_reward = scored and reward_model is None
    own_outputs = workspace.data.digest(workspace.data.evaluated_on, with_outputs=True) if reference is None else ""
    key_fields = workspace.key_fields(
        "evaluate",
        **annotation_identity(workspace, settings.annotator, settings.label_noise),
        evaluators=[components.evaluator_identity(name) for name in evaluators],
        reward_model=components.fixed_reward_identity(workspace.config.reward_model) if takes_fixed_reward else "",
        reference={"name": reference_name, "data": own_outputs},
    )

    def read(inputs: Inputs) -> tuple[Sequence[Output], Sequence[Output]]:
        theirs = read_outputs(inputs["reference"].path / "outputs.jsonl") if reference else data_outputs(workspace)
        return read_outputs(inputs["outputs"].path / "outputs.jsonl"), theirs

    def plan_labels(inputs: Inputs) -> Labelling:
        if stages.keys() - {"reward_model"} <= inputs.keys():
            pairs = match_rows(*read(inputs)).pairs
        else:
            instructions = workspace.data.instructions(workspace.data.evaluated_on)
            pairs = make_placeholders(instructions, settings.max_new_tokens)
        return Labelling("evaluate", pairs, settings.annotator, settings.label_noise)

    def write(directory: Path, inputs: Inputs) -> Mapping[str, Any]:
        path, (ours, theirs) = directory / "judgements.jsonl", read(inputs)
        summary = annotate_to_file(workspace, path, plan_labels(inputs))
        scores: list[Sequence[Score]] = []
        if scored:
            model = workspace.reward_model(inputs.get("reward_model"))
            with components.autocast():
                scores = [model.score_outputs(ours), model.score_outputs(theirs)]
        evaluated = EvaluationInputs(system, ours, theirs, read_preferences(path), *scores)
        judged = evaluated.judgements
        protocol = build_protocol(workspace, settings.annotator, reference_name, theirs, judged)
        write_results(workspace, directory, evaluators, evaluated, protocol, summary["degraded"])
        return {**summary, "temperature": inputs["outputs"].meta["summary"]["temperature"]}

    label = f"evaluate {system} against {reference_name}"
    return Stage("evaluate", label, stages, key_fields, write, plan_labels=plan_labels)


def write_results(
    workspace: Workspace,
    directory: Path,
    evaluators: Sequence[str],
    inputs: EvaluationInputs,
    protocol: EvaluationProtocol,
    degraded: Mapping[str, int],
    further: Sequence[Evaluation] = (),
) -> None:
    """Run evaluators, and write a row for each result to `results.jsonl`, and the red flags beside them.

    `degraded` counts the judgements made without a parameter, by its name. Results that no evaluator makes (`further`)
    come last. Raises `DataError` if the judgements cannot be evaluated.
    """
    formulas = {judge.identity: judge.simulated for judge in workspace.judges.answering([protocol.annotator]).values()}
    judged_by = who_judged((row.to_row() for row in inputs.judgements), formulas)
    compared = {"system": inputs.system, "reference": protocol.reference, "judged_by": judged_by}
    conditions = {"degraded": dict(degraded), "protocol": protocol.to_row()}
    components = workspace.components
    found = ((name, sorted(components.evaluator(name).needs), components.evaluate(name, inputs)) for name in evaluators)
    results = (
        {
            **compared,
            "evaluator": name,
            "needs": needs,
            "metrics": dict(result.metrics),
            "rows": list(result.rows),
            **conditions,
        }
        for name, needs, result in chain(found, ((result.evaluator, ["judgements"], result) for result in further))
    )
    try:
        write_rows(directory / "results.jsonl", results)
    except DataError as error:
        asked = any(row.preference.completion for row in inputs.judgements)
        if not asked or any(row.preference.outcome in SETTLED for row in inputs.judgements):
            raise
        keys = list(dict.fromkeys(filter(None, (row.preference.completion for row in inputs.judgements))))
        answers, spend = workspace.judges.client.ledger.completions(keys).values(), workspace.judges.spend
        cut = sum(answer.finish_reason == "length" for answer in answers)
        limit = f"{cut} of {len(answers)} answers ended at their token limit"
        hint = f"{limit}: does the judge think first (setting effort)?; " if cut else ""
        spent = f"{dollars(spend.dollars)} spent this time; " if spend else ""
        where = f"afarm ledger --export FILE --output-dir {shlex.quote(str(workspace.store.root))}"
        raise DataError(f"{error}; {hint}{spent}what the judge wrote: {where}") from error
    write_json(directory / RED_FLAGS, inspect_outputs(inputs.judgements).to_row())


def data_outputs(workspace: Workspace) -> Sequence[Output]:
    """Return the data set's own outputs. Raises `DataError` if it has none to compare with."""
    split = workspace.data.evaluated_on
    rows = workspace.data.rows(split)
    if not any(row.output.strip() for row in rows):
        raise DataError(
            f"split {split!r} of data set {workspace.config.dataset!r} has instructions only, no outputs to compare "
            f"with: add them, or compare another method with {workspace.start_name!r} (--method ppo --set "
            "evaluate.reference=sft)"
        )
    return rows


def build_protocol(
    workspace: Workspace,
    annotator: str,
    reference_name: str,
    reference: Sequence[Output],
    judged: Iterable[JudgedPair],
) -> EvaluationProtocol:
    """Return the protocol of a comparison.

    `reference` are all of the reference's outputs, including those that the system has no answer to.
    """
    identity = workspace.components.annotator_identity(annotator)
    judges = judges_behind(workspace, judged)
    answers = {row.instruction.id: row.output for row in reference}
    return EvaluationProtocol(
        annotator=annotator,
        settings=digest({k: v for k, v in identity.items() if k != "source"}),
        source=str(identity["source"])[:12],
        version=importlib.metadata.version("afarm"),
        judges=judges,
        label_noise=workspace.config.evaluate.label_noise,
        reference=reference_name,
        reference_outputs=outputs_digest(answers),
        instructions=instructions_digest(answers),
        drift=latest_shift(workspace.store.root, judges),
    )


def judges_behind(workspace: Workspace, judged: Iterable[JudgedPair]) -> dict[str, str]:
    """Return the judges that these judgements name, by family role; all that are asked if one names none."""
    used, unnamed = set(), False
    for row in judged:
        used.add(row.preference.judge)
        unnamed |= bool(row.preference.completion) and not row.preference.judge
    if not used - {""} and not unnamed:
        return {}  # a formula, a reward model or a person
    identities, answering = workspace.judges.identities, workspace.judges.answering()
    return {role: name for role, name in identities.items() if (role in answering if unnamed else name in used)}
