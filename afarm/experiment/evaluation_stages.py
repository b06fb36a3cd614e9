"""The stage of evaluation: a system's outputs compared with a reference's (paper, section 3.3)."""

from __future__ import annotations

import importlib.metadata
import math
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from afarm.core.errors import DataError
from afarm.core.interfaces import EvaluationInputs
from afarm.core.records import JudgedPair, Output, Row, Score
from afarm.core.seeding import digest
from afarm.evaluation.drift_log import latest_shift
from afarm.evaluation.judge_flags import UNREAD, Flag, drawn_flags, evaluator_flags, reward_flags
from afarm.evaluation.matching import match_rows
from afarm.evaluation.protocol import USUAL, EvaluationProtocol, instructions_digest, outputs_digest
from afarm.evaluation.red_flags import FEWEST_SHARE, inspect_outputs
from afarm.evaluation.who_judged import who_judged
from afarm.experiment.annotation import annotate_to_file, annotation_identity, find_stand_in, make_up_pairs
from afarm.experiment.stage import Inputs, Labelling, Stage, walk
from afarm.experiment.workspace import Workspace
from afarm.judging.ledger import query_chunks
from afarm.judging.pairwise import SETTLED, PairwiseAnnotator
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
    models = {} if outputs.kind == "answers" else {system: workspace.config.model}
    given = {"outputs": outputs, "reference": reference, "reward_model": reward_model}
    stages = {role: stage for role, stage in given.items() if stage is not None}
    own_outputs = workspace.data.digest(workspace.data.evaluated_on, with_outputs=True) if reference is None else ""
    key_fields = workspace.key_fields(
        "evaluate",
        **annotation_identity(workspace, settings.annotator, settings.label_noise),
        evaluators=[components.evaluator_identity(name) for name in evaluators],
        reward_model=components.unfitted_reward_identity() if scored else "",
        reference={"name": reference_name, "data": own_outputs},
    )

    def read(inputs: Inputs) -> tuple[Sequence[Output], Sequence[Output]]:
        theirs = read_outputs(inputs["reference"].path / "outputs.jsonl") if reference else data_outputs(workspace)
        return read_outputs(inputs["outputs"].path / "outputs.jsonl"), theirs

    def plan_labels(inputs: Inputs) -> Labelling:
        annotator, label_noise = settings.annotator, settings.label_noise
        if stages.keys() - {"reward_model"} <= inputs.keys():
            return Labelling("evaluate", match_rows(*read(inputs)).pairs, annotator, label_noise)
        stored = read_outputs(inputs["reference"].path / "outputs.jsonl") if "reference" in inputs else ()
        stand_in = find_stand_in(workspace, settings.max_new_tokens, stored)
        first = {row.instruction.id: row.output for row in (stored if reference else data_outputs(workspace))}
        tasks = workspace.data.instructions(workspace.data.evaluated_on)
        return Labelling("evaluate", make_up_pairs(stand_in[0], tasks, label_noise, first), annotator, 0.0, *stand_in)

    def write(directory: Path, inputs: Inputs) -> Mapping[str, Any]:
        path, (ours, theirs) = directory / "judgements.jsonl", read(inputs)
        summary = annotate_to_file(workspace, path, plan_labels(inputs))
        scores: tuple[Sequence[Score], Sequence[Score]] = (), ()
        if scored:
            model = workspace.reward_model(inputs.get("reward_model"))
            with components.autocast():
                scores = model.score_outputs(ours), model.score_outputs(theirs)
        evaluated = EvaluationInputs(system, ours, theirs, read_preferences(path), *scores)
        judged = evaluated.judgements
        protocol = build_protocol(workspace, settings.annotator, reference_name, theirs, judged)
        flags = [*label_flags(workspace, outputs), *answer_flags(workspace, settings.annotator, judged)]
        fits = [stage.label for stage in walk(*stages.values()).values() if stage.kind == "fit-reward"]
        flags += [flag for fit in fits for flag in reward_flags(workspace.history[fit].artifact.meta["summary"])]
        degraded = summary["degraded"]
        write_results(workspace, directory, evaluators, evaluated, protocol, degraded, flags, models)
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
    further_flags: Sequence[Flag] = (),
    models: Mapping[str, str] | None = None,
) -> None:
    """Run evaluators, and write a row for each result to `results.jsonl`, and the red flags beside them.

    `degraded` counts the judgements made without a parameter, by its name. `further_flags` come last. `models` are
    those that systems are made from, whose families are flagged. Raises `DataError` if the judgements cannot be
    evaluated.
    """
    formulas = {judge.identity: judge.simulated for judge in workspace.judges.answering([protocol.annotator]).values()}
    judged_by = who_judged((row.to_row() for row in inputs.judgements), formulas)
    compared = {"system": inputs.system, "reference": protocol.reference, "judged_by": judged_by}
    conditions = {"degraded": dict(degraded), "protocol": protocol.to_row()}
    components = workspace.components
    metrics: dict[str, Mapping[str, Any]] = {}

    def results() -> Iterator[Row]:
        for name in evaluators:
            needs, result = sorted(components.evaluator(name).needs), components.evaluate(name, inputs)
            metrics[name] = dict(result.metrics)
            made = {"evaluator": name, "needs": needs, "metrics": metrics[name], "rows": list(result.rows)}
            yield {**compared, **made, **conditions}

    try:
        write_rows(directory / "results.jsonl", results())
    except DataError as error:
        asked = any(row.preference.completion for row in inputs.judgements)
        if not asked or any(row.preference.outcome in SETTLED for row in inputs.judgements):
            raise
        keys = list(dict.fromkeys(filter(None, (row.preference.completion for row in inputs.judgements))))
        answers, spend = workspace.judges.client.ledger.completions(keys).values(), workspace.judges.spend
        cut = sum(answer.finish_reason == "length" for answer in answers)
        limit = f"{cut} of {len(answers)} answers ended at their token limit"
        hint = f"{limit}: does the judge think first (setting effort)?; " if cut else ""
        hint += "".join(f"{flag.sentence}; " for flag in further_flags if flag.name in ("no_logprobs", "unlikely"))
        spent = f"{dollars(spend.dollars)} spent this time; " if spend else ""
        where = f"afarm ledger --export FILE --output-dir {shlex.quote(str(workspace.store.root))}"
        raise DataError(f"{error}; {hint}{spent}what the judge wrote: {where}") from error
    found_flags = inspect_outputs(inputs.judgements, read_choices(workspace, inputs.judgements), models)
    flags = (*found_flags.flags, *evaluator_flags(metrics), *further_flags)
    write_json(directory / RED_FLAGS, replace(found_flags, flags=flags).to_row())


def label_flags(workspace: Workspace, outputs: Stage) -> list[Flag]:
    """Flag coin flips among the labels behind `outputs`, and verdicts that are missing or draws there."""
    labels = [stage.label for stage in walk(outputs).values() if stage.kind in ("annotate", "preferences", "train")]
    summaries = [workspace.history[label].artifact.meta["summary"] for label in labels]
    of = sum(summary.get("labels", summary.get("rows", 0)) for summary in summaries)
    noise = sum(summary.get("members", {}).get("(noise)", 0) for summary in summaries)
    outcomes = [summary.get("outcomes", {}) for summary in summaries]
    unread = sum(counts.get(name, 0) for counts in outcomes for name in ("unparsed", "refused"))
    drawn, decided = (sum(counts.get(name, 0) for counts in outcomes) for name in ("draw", "decided"))
    flags = [Flag("learned_noise", noise, of)] if noise else []
    flags += drawn_flags("learned_drawn", drawn, drawn + decided - noise)
    return flags + ([Flag("learned_unread", unread, of)] if 100 * unread > UNREAD * of else [])


def read_choices(workspace: Workspace, judged: Iterable[JudgedPair]) -> dict[str, dict[str, float]]:
    """Read the judge's mean choice of the output shown first, by pair judged in both orders, and order."""
    labels = [row.preference for row in judged if row.preference.order == "both"]
    found: dict[str, dict[str, list[float]]] = {label.pair_id: {} for label in labels}
    answers = list(dict.fromkeys(key for label in labels for key in label.completion.split(",")))
    for chunk, marks in query_chunks(answers, size=10_000):
        statement = f"SELECT pair_id, shown, first, outcome FROM judgements WHERE completion IN ({marks})"
        for pair_id, shown, first, outcome in workspace.judges.client.ledger.read(statement, chunk):
            if pair_id in found and outcome in SETTLED:
                found[pair_id].setdefault(shown, []).append(0.5 if first is None else first)
    return {pair_id: {shown: fmean(each) for shown, each in orders.items()} for pair_id, orders in found.items()}


def answer_flags(workspace: Workspace, annotator: str, judged: Iterable[JudgedPair]) -> list[Flag]:
    """Flag answers whose verdicts are read from log-probabilities, and have none or few."""
    made = workspace.components.annotator(annotator)
    if not isinstance(made, PairwiseAnnotator) or type(made).verdict_mass is PairwiseAnnotator.verdict_mass:
        return []
    members = {key: row.preference.member for row in judged for key in row.preference.completion.split(",") if key}
    answers = workspace.judges.client.ledger.completions(list(members))
    found = (made.verdict_mass(members[key], answer) for key, answer in answers.items())
    masses = [mass for mass in found if mass is not None]
    missing, low = sum(map(math.isnan, masses)), sum(mass < 0.5 for mass in masses)
    flags = {"no_logprobs": missing, "unlikely": low}
    return [Flag(name, n, len(masses)) for name, n in flags.items() if n and n >= FEWEST_SHARE * len(masses)]


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
        asked=describe_settings(workspace, annotator),
        source=str(identity["source"])[:12],
        version=importlib.metadata.version("afarm"),
        judges=judges,
        label_noise=workspace.config.evaluate.label_noise,
        reference=reference_name,
        reference_outputs=outputs_digest(answers),
        instructions=instructions_digest(answers),
        drift=latest_shift(workspace.store.root, judges),
    )


def describe_settings(workspace: Workspace, annotator: str) -> str:
    """Write the settings of an annotator that are not as they come; empty if that is not known."""
    component = workspace.components.component("annotators", annotator)
    with suppress(ValueError):  # one of its settings has no default
        usual, own = (s.result_fields() if s else {} for s in (component.settings(), workspace.settings.of(component)))
        changed = {name.replace("_", " "): value for name, value in own.items() if value != usual.get(name)}
        return ", ".join(name if value is True else f"{name} {value}" for name, value in changed.items()) or USUAL
    return ""


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
