"""A run's record: what was run, with what, and what came of it, as `run.json` and the rows the report shows."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from afarm.files import read_rows, write_rows
from afarm.ledger import STAGE_SPEND
from afarm.pipeline import Farm, Result, StageRun, versions
from afarm.records import Row
from afarm.store import write_json


def record(farm: Farm, method: str, result: Result, command: str, started: float) -> Path:
    """Write the run's directory and return it: `run.json`, `metrics.jsonl` and `outputs.jsonl`."""
    directory = farm.store.run_dir(farm.name(method))
    write_rows(directory / "metrics.jsonl", _metrics(farm.history.values()))
    write_rows(directory / "outputs.jsonl", _comparisons(farm, method))
    write_json(directory / "run.json", _summary(farm, method, result, command, started))
    return directory


def _summary(farm: Farm, method: str, result: Result, command: str, started: float) -> dict[str, Any]:
    config = farm.config
    return {
        "afarm_version": importlib.metadata.version("afarm"),
        "name": farm.name(method),
        "command": command,
        "recipe": farm.settings.recipe,
        "method": method,
        "annotator": config.annotate.annotator,
        "seed": config.seed,
        "created": started,
        "finished": time.time(),
        "status": "finished",
        "config": {**config.model_dump(mode="json"), "method": method, **farm.settings.sections},
        "versions": versions(),
        "machine": machine(farm),
        "judges": [
            {"role": role, "identity": judge.identity, "simulated": judge.simulated}
            for role, judge in sorted(farm.judges.items())
        ],
        "stages": [_stage(farm, run) for run in farm.history.values()],
        "spend": spend(farm),
        "annotators": _annotators(farm.history.values()),
        "results": [
            {"system": e.system, "reference": reference, "evaluator": e.evaluator, "metrics": dict(e.metrics)}
            for reference, e in result.evaluations
        ],
        "headline": headline(farm, method, result),
    }


def headline(farm: Farm, method: str, result: Result) -> dict[str, float | None]:
    """The numbers of the result screen; None where a run has none (no reward for the baseline alone)."""

    def metric(name: str) -> float | None:
        try:
            return result.metric(name)
        except KeyError:
            return None

    trained = farm.history.get(f"train {method}")
    summary: Mapping[str, Any] = trained.artifact.meta["summary"] if trained else {}
    return {
        "win_rate": metric("win_rate"),
        "standard_error": metric("standard_error"),
        "reward": metric("reward"),
        "reward_reference": metric("reward_reference"),
        "kl": summary.get("objective/kl"),
        "length": metric("avg_length"),
        "length_reference": metric("avg_length_reference"),
    }


def spend(farm: Farm) -> dict[str, Any]:
    """What judges cost to make all stages of the run, whenever and by whichever run they were made, and beside it
    `this_time`: what was bought, and what was not bought again, by the command that wrote this record."""
    bought = farm.ask.spend
    this_time = {name: getattr(bought, name) for name in STAGE_SPEND}
    made = [run.artifact.meta.get("spend", {}) for run in farm.history.values()]
    return {
        **_rounded({name: sum(spent.get(name, 0) for spent in made) for name in STAGE_SPEND}),
        "this_time": {**_rounded(this_time), "answers_reused": bought.answers_reused + bought.judgements_reused},
    }


def _rounded(spent: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 6) if name == "dollars" else value for name, value in spent.items()}


def machine(farm: Farm) -> dict[str, Any]:
    """The device and threads that results were computed with."""
    backend = farm.config.backend
    return {
        "platform": platform.platform(terse=True),
        "cpus": os.cpu_count(),
        "device": str(farm.builder.backend.device),
        "dtype": backend.dtype,
        "threads": backend.threads or int(os.environ.get("OMP_NUM_THREADS", 0)) or os.cpu_count(),
    }


def _stage(farm: Farm, run: StageRun) -> dict[str, Any]:
    return {
        "stage": run.label,
        "kind": run.kind,
        "inputs": list(run.inputs),
        "key": run.artifact.key,
        "reused": run.reused,
        "why": run.why,
        "spend": _rounded(run.artifact.meta.get("spend", {})),
        "seconds": round(run.seconds, 2) if not run.reused else run.artifact.meta["seconds"],
        "artifact": str(run.artifact.path.relative_to(farm.store.root)),
        "summary": dict(run.artifact.meta["summary"]),
    }


def _annotators(history: Iterable[StageRun]) -> dict[str, dict[str, int]]:
    shares: dict[str, dict[str, int]] = {}
    names = {"annotate": "training", "evaluate": "evaluation"}
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


def _comparisons(farm: Farm, method: str) -> Iterable[Row]:
    """Every judged pair of the first comparison: output_1 is the reference's, output_2 the policy's."""
    for run in farm.history.values():
        if run.kind == "evaluate" and run.label.startswith(f"evaluate {method} "):
            yield from read_rows(run.artifact.path / "judgements.jsonl")
            return


def latest_run(runs: Path) -> Path | None:
    """The directory of the run that finished last."""
    found = list(runs.glob("*/run.json"))
    return max(found, key=lambda p: p.stat().st_mtime).parent if found else None


def read_run(directory: Path) -> dict[str, Any]:
    """The record of a run."""
    loaded: dict[str, Any] = json.loads((directory / "run.json").read_text(encoding="utf-8"))
    return loaded
