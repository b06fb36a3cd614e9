"""Evaluations of a run as logs of Inspect: a log for each system and reference.

A sample is a judgement: its input is the instruction, its output the system's, its target the reference's, its score
`win` 1 for a win of the system, 0.5 for a draw, 0 for a loss, or a probability if the judge gave one. A judgement that
cannot be read is unscored. Inspect computes the mean of `win`, and its standard error clustered by instruction.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from afarm import Completion, DataError, Instruction, JudgedPair, read_rows, seeding
from afarm.results import StoredRun, flag_sentences, is_simulated, open_ledger, read_preferences
from afarm_inspect.library import describe_library, load_part

TASK = "win_rate"
SCORER = "win"
CLUSTER = "instruction"
"""The metadata of a sample that says which instruction it is of."""
GRADER = "grader"
"""Inspect's name for the role of a model that scores."""

FIRST_SHOWN = {"12": "the reference", "21": "the system", "both": "each in turn"}
STOP_REASONS = {"stop": "stop", "length": "max_tokens"}


@dataclass(frozen=True)
class RunEvaluation:
    """An evaluation of a run: `key` is its artifact's, `figures` are metrics by evaluator."""

    key: str
    system: str
    reference: str
    judgements: Sequence[JudgedPair]
    figures: Mapping[str, Mapping[str, Any]]
    flags: Sequence[str]


def read_evaluations(run: StoredRun) -> Iterator[RunEvaluation]:
    """Read the evaluations of a run, the main one first.

    Raises `DataError` if the run has none, or if an artifact was deleted.
    """
    stages = [stage for stage in run.record.stages if stage.get("kind") == "evaluate"]
    if not stages:
        raise DataError(
            f"{run.directory}: the run evaluated nothing, so there is no log to write; name one of `afarm evaluate` or "
            "`afarm run`"
        )
    for stage in stages:
        directory = run.artifact(str(stage["stage"]))
        compared = next(read_rows(directory / "results.jsonl"))
        named = str(compared["system"]), str(compared["reference"])
        found = [result for result in run.record.results if (result.system, result.reference) == named]
        yield RunEvaluation(
            str(stage["key"]),
            *named,
            read_preferences(directory / "judgements.jsonl"),
            {result.evaluator: result.metrics for result in found},
            flag_sentences(found[0].red_flags) if found else (),
        )


def read_answers(run: StoredRun, judgements: Sequence[JudgedPair]) -> dict[str, Completion]:
    """Read the judges' answers behind judgements, by key; empty without a ledger."""
    keys = list(dict.fromkeys(key for judged in judgements for key in answer_keys(judged)))
    with open_ledger(run.ledger) as ledger:
        return ledger.completions(keys) if ledger else {}


def answer_keys(judged: JudgedPair) -> list[str]:
    return [key for key in judged.preference.completion.split(",") if key]


def to_log(run: StoredRun, evaluation: RunEvaluation, answers: Mapping[str, Completion]) -> Any:
    """Return the `EvalLog` of an evaluation, with figures computed by Inspect and afarm's own beside them."""
    log, model = load_part("log"), load_part("model")
    record, judged = run.record, evaluation.judgements
    samples = list(_to_samples(evaluation, answers))
    identities = sorted({one.preference.judge for one in judged if one.preference.judge})
    annotators = sorted({one.annotator for one in judged})
    datasets = sorted({one.pair.instruction.dataset for one in judged if one.pair.instruction.dataset})
    created = _time(record.get("created"))
    asked = {"reference": evaluation.reference, "annotator": ", ".join(annotators), "judge": ", ".join(identities)}
    header = log.EvalSpec(
        eval_id=seeding.digest(run.name, evaluation.key),
        run_id=seeding.digest(run.name),
        created=created,
        task=TASK,
        task_id=seeding.digest(run.name, evaluation.key, TASK),  # two runs that share an artifact are no retries
        task_display_name=f"win rate against {evaluation.reference}",
        task_args=asked,
        tags=["afarm", *(["simulated judge"] if is_simulated(record) else [])],
        dataset=log.EvalDataset(
            name=", ".join(datasets) or None, samples=len(samples), sample_ids=[sample.id for sample in samples]
        ),
        model=evaluation.system,
        model_roles={GRADER: [model.ModelConfig(model=name) for name in identities]} if identities else None,
        config=log.EvalConfig(epochs=1),
        packages={"afarm": str(record.get("afarm_version", ""))},
        metadata={
            "run": run.name,
            "command": record.get("command"),
            "judged by": record.get("judged_by"),
            "seed": record.get("seed"),
            "red flags": list(evaluation.flags),
            "written by": f"afarm-inspect with {describe_library()}",
        },
        scorers=[{"name": SCORER, "metrics": _metrics(evaluation)}],
    )
    usage: dict[str, Any] = {}
    for sample in samples:
        for name, used in sample.model_usage.items():
            usage[name] = usage[name] + used if name in usage else used
    made = log.EvalLog(
        status="success",
        eval=header,
        samples=samples,
        results=log.EvalResults(metadata={name: dict(metrics) for name, metrics in evaluation.figures.items()}),
        stats=log.EvalStats(
            started_at=created,
            completed_at=_time(record.get("finished")),
            model_usage=usage,
            role_usage={GRADER: sum(usage.values(), model.ModelUsage())} if usage else {},
        ),
    )
    log.recompute_metrics(made)
    return made


def _metrics(evaluation: RunEvaluation) -> list[dict[str, Any]]:
    """List the metrics that Inspect computes: no error if afarm has none, as under --until decided."""
    figures = evaluation.figures.get("win_rate")
    mean = {"name": "inspect_ai/mean", "options": {}}
    if figures and figures.get("standard_error") is None:
        return [mean]
    return [mean, {"name": "inspect_ai/stderr", "options": {"cluster": CLUSTER}}]


def _time(seconds: Any) -> str:
    return datetime.fromtimestamp(float(seconds or 0), UTC).isoformat(timespec="seconds")


def _to_samples(evaluation: RunEvaluation, answers: Mapping[str, Completion]) -> Iterator[Any]:
    log, model = load_part("log"), load_part("model")
    sharing = Counter(key for judged in evaluation.judgements for key in answer_keys(judged))
    met: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    for judged in evaluation.judgements:
        pair, label = judged.pair, judged.preference
        task = pair.instruction
        seen[task.id] += 1
        usage: dict[str, Any] = {}
        seconds = 0.0
        for key in answer_keys(judged):
            if key in answers:
                name = answers[key].model or label.judge
                used = _share(answers[key], met[key], sharing[key])
                usage[name] = usage[name] + used if name in usage else used
                seconds += answers[key].seconds / sharing[key]
                met[key] += 1
        chat = _to_messages(task)
        output = model.ModelOutput(model=evaluation.system)
        if not judged.unanswered:
            stopped = STOP_REASONS.get(pair.finish_reason_2, "unknown")
            output = model.ModelOutput.from_content(evaluation.system, pair.output_2, stopped)
        yield log.EvalSample(
            id=task.id if seen[task.id] == 1 else f"{task.id}-{seen[task.id]}",
            epoch=1,
            input=chat[0].content if len(chat) == 1 else chat,
            target=pair.output_1,
            messages=[*chat, *(choice.message for choice in output.choices)],
            output=output,
            scores={SCORER: _to_score(evaluation, judged, answers)},
            metadata={CLUSTER: task.id, **({"dataset": task.dataset} if task.dataset else {})},
            model_usage=usage,
            role_usage={GRADER: sum(usage.values(), model.ModelUsage())} if usage else {},
            working_time=seconds,
            total_time=seconds,
        )


def _to_messages(task: Instruction) -> list[Any]:
    model = load_part("model")
    kinds = {
        "system": model.ChatMessageSystem,
        "user": model.ChatMessageUser,
        "assistant": model.ChatMessageAssistant,
    }
    asked = "\n\n".join(filter(None, (task.instruction, task.input)))
    turns = [(turn.role, turn.content) for turn in task.messages] + [("user", asked)]
    return [kinds[role](content=content, source="input") for role, content in turns]


def _share(answer: Completion, number: int, shared_by: int) -> Any:
    """Return the tokens and dollars of an answer for one of its judgements; they add up to all."""

    def part(tokens: int) -> int:
        return tokens * (number + 1) // shared_by - tokens * number // shared_by

    read, cached, written = map(part, (answer.input_tokens, answer.cached_input_tokens, answer.output_tokens))
    usage: Any = load_part("model").ModelUsage(
        input_tokens=read - cached,  # Inspect counts what came from a cache apart
        input_tokens_cache_read=cached,
        output_tokens=written,
        total_tokens=read + written,
        total_cost=None if answer.price is None else answer.price / shared_by,
    )
    return usage


def _to_score(evaluation: RunEvaluation, judged: JudgedPair, answers: Mapping[str, Completion]) -> Any:
    scorer, label = load_part("scorer"), judged.preference
    win = judged.win
    given = [answers[key] for key in answer_keys(judged) if key in answers]
    prices = [answer.price for answer in given if answer.price is not None]
    metadata = {
        "reference": evaluation.reference,
        "shown first": FIRST_SHOWN.get(label.order),
        "annotator": judged.annotator,
        "member": label.member,
        "judge": label.judge,
        "source": label.source,
        "outcome": label.outcome,
        "strength": label.strength,
        "price": sum(prices) if prices else None,
        "scores": label.scores and list(label.scores),
        "attributes": {name: list(both) for name, *both in label.attributes},
        "votes": dict(label.votes),
        "degraded": list(label.degraded),
    }
    fields = {
        "explanation": "\n\n".join(answer.text for answer in given) or None,
        "metadata": {name: value for name, value in metadata.items() if value not in (None, "", {}, [])},
    }
    if judged.unanswered:
        fields["explanation"] = "No output: counted as lost."
    if win is None:
        return scorer.Score.unscored(reason="grader_failed", **fields)
    better = "draw" if win == 0.5 else evaluation.system if win > 0.5 else evaluation.reference
    return scorer.Score(value=win, answer=better, **fields)


def read_figures(made: Any) -> dict[str, float]:
    """Return the metrics of `win` that Inspect computed, by name: shares of 1, where afarm has percent."""
    [score] = [score for score in made.results.scores if score.name == SCORER]
    return {name: metric.value for name, metric in score.metrics.items()}


def write_log(made: Any, folder: Path) -> Path:
    """Write a log under the name that Inspect gives such. Raises `DataError` if it is taken."""
    created = made.eval.created.replace(":", "-").replace("+", "-")
    path = folder / f"{created}_{made.eval.task.replace('_', '-')}_{made.eval.task_id}.eval"
    if path.exists():
        raise DataError(f"{path}: is there already; delete it, or name another folder with --log-dir")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".") as beside:
        whole = Path(beside) / path.name
        load_part("log").write_eval_log(made, whole)
        os.replace(whole, path)
    return path
