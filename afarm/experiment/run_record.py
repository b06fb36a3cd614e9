"""Writing a run's record: `run.json`, and the rows that the report shows."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from afarm.core.errors import DataError
from afarm.core.records import Row
from afarm.evaluation.metrics import finite_number
from afarm.experiment.comparison.outputs import SystemComparison
from afarm.experiment.evaluation_stages import RED_FLAGS
from afarm.experiment.result import Result
from afarm.experiment.stage import StageRun
from afarm.experiment.workspace import Workspace, versions
from afarm.judging.ledger import STAGE_SPEND
from afarm.storage.disk import json_text, write_json
from afarm.storage.rows import read_rows, write_rows
from afarm.storage.runs import RunRecord, read_run, simulated_judges

JUDGING = ("judge", "budget", "price", "prices", "max_concurrency", "allow_degraded", "batch_api")
"""The settings of a run that say how judges are asked."""

HISTORY = ("command", "created", "finished", "afarm_version", "versions", "machine", "spend")
"""The fields of a record that say when, how and by what its stages were made."""


def record(workspace: Workspace, method: str, result: Result, command: str, started: float) -> RunRecord:
    """Write a method's run (`run.json`, `metrics.jsonl`, `outputs.jsonl`) and return its record."""
    history = list(workspace.history.values())
    main = next((run for run in history if run.label.startswith(f"evaluate {method} ")), None)
    training = workspace.history.get(f"train {method}")
    trained = training.artifact.meta["summary"] if training else {}
    fit = workspace.history.get("fit-reward")
    held_out = fit.artifact.path / "calibration.json" if fit else None  # absent if the fit measured nothing
    about = {
        **describe_new_run(workspace, method, command, started),
        "machine": machine(workspace),
        "headline": headline(result, trained),
        "reward_model": json.loads(held_out.read_text("utf-8")) if held_out and held_out.is_file() else {},
        "checkpoint": {
            name: value
            for name, value in trained.items()
            if name.startswith(("best/", "last/", "stopped/", "data/", "judge/"))
        },
    }
    return write_record(workspace, about, history, main, result)


def describe_new_run(workspace: Workspace, method: str, command: str, started: float) -> dict[str, Any]:
    """Return what is known of a run before its first stage, for its record and its live record."""
    config = workspace.config
    return {
        "name": workspace.run_name(method),
        "command": command,
        "recipe": workspace.settings.recipe,
        "method": method,
        "annotator": config.evaluate.annotator if config.preferences else config.annotate.annotator,
        "preferences": config.preferences or None,
        "judges": judges(workspace),
        "created": started,
        "config": {**config.model_dump(mode="json"), "method": method, **workspace.settings.sections},
    }


def record_comparison(
    comparison: SystemComparison,
    made: StageRun,
    result: Result,
    files: Mapping[str, str],
    command: str,
    started: float,
) -> RunRecord:
    """Write the directory of a comparison and return its record: nothing else of the recipe is in it.

    `made` is its stage, `files` names the files that were compared; `command` asked for it at `started`, in Unix
    seconds.
    """
    workspace = comparison.workspace
    config, sections = workspace.config.model_dump(mode="json"), workspace.settings.sections
    stored = bool(comparison.about.get("stored"))  # nobody is asked, and who was is not for the settings to say
    noise = {} if stored else {"label_noise": config["evaluate"]["label_noise"]}
    names = {workspace.components.component(kind, name).full_name for kind, name in comparison.components}
    about = {
        "name": comparison.name,
        "command": command,
        "files": dict(files),
        "annotator": comparison.annotator,
        **comparison.about,
        "created": started,
        "config": {
            "seed": config["seed"],
            **{name: config[name] for name in (() if stored else JUDGING)},
            "evaluate": {**noise, "evaluators": comparison.evaluators},
            **{name: section for name, section in sections.items() if name in names},
        },
        "machine": {"platform": platform.platform(terse=True), "cpus": os.cpu_count()},
        "judges": [] if stored else judges(workspace, [comparison.annotator]),
        "headline": headline(result, {}),
    }
    return write_record(workspace, about, [*comparison.before, made], made, result)


def write_record(
    workspace: Workspace, about: Mapping[str, Any], history: Sequence[StageRun], main: StageRun | None, result: Result
) -> RunRecord:
    """Write a run's directory and return the record of this command.

    It is not read back: another process may have written the same run by then. `main` is the comparison whose pairs
    the report shows side by side. A stage that was reused stays in the file as it was when it was made, and a command
    that made none leaves the begin, the command and the rest of the `HISTORY` as they are there.
    """
    directory = workspace.store.run_dir(about["name"])
    earlier = RunRecord(directory, {})
    with suppress(DataError):  # there is no record, or it was damaged
        earlier = read_run(directory)
    write_rows(directory / "metrics.jsonl", _metrics(history))
    # output_1 is the reference's, output_2 the system's.
    write_rows(directory / "outputs.jsonl", read_rows(main.artifact.path / "judgements.jsonl") if main else [])
    results = _results(history, result)
    summary = {
        "afarm_version": importlib.metadata.version("afarm"),
        **about,
        "judged_by": next((row["judged_by"] for row in results if row.get("judged_by")), ""),
        "seed": workspace.config.seed,
        "finished": time.time(),
        "status": "finished",
        "versions": versions(),
        "stages": [stage_row(workspace, run) for run in history],
        "spend": spend(workspace, history),
        "annotators": _annotators(history),
        "results": results,
    }
    summary = _without_errors(summary) if about.get("until") else summary
    made_before = {stage.get("key"): stage for stage in earlier.stages}
    stages = [made_before.get(row["key"], row) if row["reused"] else row for row in summary["stages"]]
    is_known = all(row["reused"] and row["key"] in made_before for row in summary["stages"])
    history_before = {name: earlier[name] for name in HISTORY if name in earlier} if is_known else {}
    if not workspace.components.device_in_use and "device" in earlier.section("machine"):
        history_before["machine"] = earlier["machine"]
    write_json(directory / "run.json", {**summary, "stages": stages, **history_before})
    return RunRecord(directory, json.loads(json_text(summary)))


def _without_errors(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The record of a run that stopped when it was clear, where a standard error would say too much."""
    results = [
        {**row, "metrics": _nulled(row["metrics"]), "rows": [_nulled(found) for found in row.get("rows", ())]}
        for row in summary["results"]
    ]
    return {**summary, "headline": _nulled(summary["headline"]), "results": results}


def _nulled(figures: Mapping[str, Any]) -> dict[str, Any]:
    return {name: None if name.endswith(("_error", "_se")) else value for name, value in figures.items()}


def _results(history: Sequence[StageRun], result: Result) -> list[Row]:
    """List the evaluators' results, each with its protocol and the red flags on it."""
    rows: list[Row] = []
    for evaluation in (run.artifact.path for run in history if run.kind == "evaluate"):
        own = [row for row in read_rows(evaluation / "results.jsonl") if row["system"] == result.system]
        if own:
            flags = json.loads((evaluation / RED_FLAGS).read_text(encoding="utf-8"))
            rows += [{**row, "red_flags": flags} for row in own]
    return rows


def judges(workspace: Workspace, annotators: Collection[str] = ()) -> list[dict[str, Any]]:
    """List the judge of each family role that these annotators, or the run's, ask.

    An annotator that asks nobody stands for itself if it is known how often it agrees with people.
    """
    names, asked = annotators or [*workspace.judges.asked], workspace.judges.asked
    alone = {name: workspace.components.annotator(name).agreement for name in names if asked.get(name) == set()}
    return [
        {"role": role, "identity": judge.identity, "simulated": judge.simulated, "agreement": judge.agreement}
        for role, judge in sorted(workspace.judges.answering(annotators).items())
    ] + [
        {"role": "", "identity": name, "simulated": True, "agreement": known} for name, known in alone.items() if known
    ]


def formula_judges(workspace: Workspace) -> list[str]:
    """Return the names of a workspace's judges that are formulas."""
    return simulated_judges({"judges": judges(workspace)})


def headline(result: Result, trained: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the numbers of the result screen, from a result and what training logged last.

    None if a run has none (no reward for the baseline alone).
    """

    def metric(name: str) -> float | None:
        try:
            return result.metric(name)
        except KeyError:
            return None

    return {
        "win_rate": metric("win_rate"),
        "standard_error": metric("standard_error"),
        "reward": metric("reward"),
        "reward_reference": metric("reward_reference"),
        "kl": finite_number(final_kl(trained)),
        "length": metric("avg_length"),
        "length_reference": metric("avg_length_reference"),
    }


def final_kl(trained: Mapping[str, Any]) -> Any:
    """Return the KL that training logged: the chosen checkpoint's, else the last; None without one."""
    return trained.get("best/kl", trained.get("last/kl", trained.get("objective/kl")))


def spend(workspace: Workspace, history: Iterable[StageRun]) -> dict[str, Any]:
    """Add up what judges cost to make all stages of the run, whenever and by whichever run they were made.

    Beside it `this_time`: what was bought, and what was not bought again, by the command that wrote this record.
    """
    bought = workspace.judges.client.spend
    this_time = {name: getattr(bought, name) for name in STAGE_SPEND}
    made = [run.artifact.meta["spend"] for run in history]
    return {
        **_rounded({name: sum(spent.get(name, 0) for spent in made) for name in STAGE_SPEND}),
        "this_time": {**_rounded(this_time), "answers_reused": bought.answers_reused},
    }


def _rounded(spent: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 6) if name == "dollars" else value for name, value in spent.items()}


def machine(workspace: Workspace) -> dict[str, Any]:
    """Describe the device and threads that results were computed with; no device if all was reused."""
    backend = workspace.config.backend
    device = workspace.components.device_in_use or "none: all was reused"
    return {
        "platform": platform.platform(terse=True),
        "cpus": os.cpu_count(),
        "device": device,
        "dtype": backend.dtype,
        "threads": backend.threads or int(os.environ.get("OMP_NUM_THREADS", 0)) or os.cpu_count(),
    }


def stage_row(workspace: Workspace, run: StageRun) -> dict[str, Any]:
    """Return a stage as a record and a live record have it."""
    return {
        "stage": run.label,
        "kind": run.kind,
        "inputs": list(run.inputs),
        "key": run.artifact.key,
        "reused": run.reused,
        "why": run.why,
        "spend": _rounded(run.artifact.meta["spend"]),
        "seconds": round(run.artifact.meta["seconds"], 3) if run.reused else round(run.seconds, 2),
        **{name: run.artifact.meta[name] for name in ("memory", "gpu_memory") if name in run.artifact.meta},
        "artifact": str(run.artifact.path.relative_to(workspace.store.root)),
        "summary": dict(run.artifact.meta["summary"]),
    }


def _annotators(history: Iterable[StageRun]) -> dict[str, dict[str, int]]:
    shares: dict[str, dict[str, int]] = {}
    names = {"annotate": "training", "preferences": "training", "feedback": "training", "evaluate": "evaluation"}
    for run in history:
        if run.kind in names:
            shares.setdefault(names[run.kind], dict(run.artifact.meta["summary"].get("members", {})))
    return shares


def _metrics(history: Iterable[StageRun]) -> Iterable[Row]:
    for run in history:
        path = run.artifact.path / "metrics.jsonl"
        if path.is_file():
            for row in read_rows(path):
                yield {"stage": "train" if run.label.startswith("train ") else run.label, **row}
