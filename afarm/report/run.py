"""The files of a run for its report: record, metrics by stage and step, judged outputs.

Only `run.json` must be there. If a resumed stage has logged a step twice, the later of the two counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from afarm.core.records import Row
from afarm.evaluation.metrics import finite_number
from afarm.storage.disk import NOT_FINITE
from afarm.storage.rows import RowsOnDisk, read_rows
from afarm.storage.runs import OUTPUTS, RunRecord, read_run

Points = list[tuple[float, float | None]]


@dataclass(frozen=True, slots=True)
class ReportedRun:
    """The files of a run.

    `metrics[stage][name]` are (step, value) in order of step; None if a value is not finite.
    """

    record: RunRecord
    metrics: Mapping[str, Mapping[str, Points]]
    outputs: Iterable[Row]
    sample_rewards: Sequence[Sequence[float]] = ()
    """The rewards of all samples that each output is the best of, as drawn; none if they were not kept."""


def read_reported_run(directory: Path) -> ReportedRun:
    """Read what a run left on disk. Raises `DataError` naming the file that cannot be read."""
    outputs = directory / OUTPUTS
    rows: Iterable[Row] = RowsOnDisk(outputs, lambda row, where: row) if outputs.is_file() else ()
    record = read_run(directory)
    rewards = read_sample_rewards(samples_file(directory, record))
    return ReportedRun(record, group_curves(_rows(directory / "metrics.jsonl")), rows, rewards)


def samples_file(directory: Path, record: RunRecord) -> Path:
    """Return the file of the method's outputs in their artifact: it may hold the rewards of all samples."""
    stage = next((s for s in record.stages if s.get("stage") == f"outputs {record.get('method')}"), {})
    return directory.parent.parent / str(stage.get("artifact", "")) / OUTPUTS


def read_sample_rewards(path: Path) -> list[list[float]]:
    """Read the rewards of each output's samples; none if they were not kept."""
    kept = (row.get("scores") for row in read_rows(path)) if path.is_file() else ()
    return [scores for scores in kept if isinstance(scores, list) and all(isinstance(s, int | float) for s in scores)]


def degraded(stages: Iterable[Mapping[str, Any]]) -> list[str]:
    """State, for each stage whose labels were made without a parameter, which one and for how many."""
    sentences = []
    for stage in stages:
        summary = stage.get("summary")
        left_out = summary.get("degraded") if isinstance(summary, Mapping) else None
        if isinstance(summary, Mapping) and isinstance(left_out, Mapping) and left_out:
            counts = " and ".join(f"{count} without {name}" for name, count in left_out.items())
            labels = summary.get("rows")
            sentences.append(f"{stage.get('stage')}: of {labels} labels, {counts}, which the judge does not take")
    return sentences


def not_finite(stages: Iterable[Mapping[str, Any]]) -> list[str]:
    """Name, per stage, the metrics that were NaN or infinite when they were last logged."""
    sentences = []
    for stage in stages:
        summary = stage.get("summary")
        names = [n for n, v in summary.items() if v in NOT_FINITE] if isinstance(summary, Mapping) else []
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            sentences.append(
                f"{stage.get('stage')}: {', '.join(names[:3])}{more} {'is' if len(names) == 1 else 'are'} not finite "
                f"at its end: see {stage.get('artifact')}/metrics.jsonl"
            )
    return sentences


STOPPED_AT = "stopped at step"


def chosen_checkpoints(records: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Say which systems are the best of their checkpoints, and what labels that took; nothing if none is."""
    labels: dict[str, list[int]] = {}
    for record in records:
        if count := finite_number(record.get("checkpoint", {}).get("best/labels")):
            labels.setdefault(record["method"], []).append(int(count))
    if labels:
        each = ", ".join(f"{name} ({max(counts):,} further labels)" for name, counts in labels.items())
        yield f"{each}: the best of its checkpoints on the validation split; the others are as training left them."


STOPPED = {"stopped/max_kl": "the KL exceeded its limit", "stopped/not_finite": "a figure was not finite"}


def training(checkpoint: Mapping[str, Any]) -> Iterator[str]:
    """Say how training ended, from its last metrics: checkpoint chosen, early stop, prompts left out."""
    with suppress(KeyError, TypeError, ValueError):  # a record that was changed by hand
        checkpoint = {name: float(value) if value in NOT_FINITE else value for name, value in checkpoint.items()}
        if "best/step" in checkpoint:
            error = f" ± {checkpoint['best/standard_error']:.1f}" if "best/standard_error" in checkpoint else ""
            yield (
                f"the best on validation, of step {checkpoint['best/step']}: {checkpoint['best/win_rate']:.1f} %"
                f"{error} (the last, of step {checkpoint['last/step']}: {checkpoint['last/win_rate']:.1f} %)"
            )
        for name, why in STOPPED.items():
            if name in checkpoint:
                yield f"{STOPPED_AT} {checkpoint[name]:g}: {why}"
        if left_out := checkpoint.get("data/prompts_left_out"):
            yield f"{left_out:g} prompts were too long and left out"


def _rows(path: Path) -> list[Row]:
    return list(read_rows(path)) if path.is_file() else []


def group_curves(rows: list[Row]) -> dict[str, dict[str, Points]]:
    """Group logged rows into curves: `[stage][name]` lists (step, value), None if not finite."""
    curves: dict[str, dict[str, dict[float, float | None]]] = {}
    for row in rows:
        step = finite_number(row.get("step"))
        if step is None:
            continue
        stage = curves.setdefault(str(row.get("stage", "")), {})
        for name, value in row.items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if name not in ("stage", "step") and (is_number or value in NOT_FINITE):
                stage.setdefault(name, {})[step] = finite_number(value)
    return {stage: {name: sorted(points.items()) for name, points in names.items()} for stage, names in curves.items()}
