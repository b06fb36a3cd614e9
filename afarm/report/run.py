"""Sentences on a run's training, its figures and curves, and the command of best-of-n over n."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from afarm.core.records import Row
from afarm.evaluation.metrics import finite_number
from afarm.storage.disk import NOT_FINITE
from afarm.storage.reuse import flatten
from afarm.storage.runs import RunRecord

Points = list[tuple[float, float | None]]


def stage_figures(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of a stage's summary by name, those measured on held-out rows first.

    A figure of the last minibatch is left out if it was measured over held-out or training rows too.
    """
    figures = {name.removeprefix("outcomes."): value for name, value in flatten(summary).items()}
    held_out = sorted((n for n in figures if n.startswith("eval_")), key=lambda name: name != "eval_accuracy")
    measured = {f"held-out {name.removeprefix('eval_')}": figures.pop(name) for name in held_out}
    superseded = {name for name in figures if f"eval_{name}" in held_out or f"train_{name}" in figures}
    return measured | {name: value for name, value in figures.items() if name not in superseded}


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


ASKED_FOR = {"rate": "marks", "rank": "rankings", "criticise": "criticisms"}
"""What a method has asked its judge for, by the kind of question."""
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
        if asked := {kind: checkpoint[f"judge/{kind}"] for kind in ASKED_FOR if f"judge/{kind}" in checkpoint}:
            unread = sum(checkpoint[f"judge/{kind} unreadable"] for kind in asked)
            kinds = ", ".join(f"{count:,} {ASKED_FOR[kind]}" for kind, count in asked.items())
            yield f"asked a judge for {kinds}" + (f"; {unread:,} of its answers could not be read" if unread else "")


_NOT_ITS = re.compile(r" --(?:json|(?:method|launcher|set(?=[ =]'?best_of_n\.))[ =](?:'[^']*'|\S)+)")
"""Options of `afarm run` that `afarm best-of-n` does not take, and settings of the method, which it sets."""


def over_n_command(record: RunRecord) -> str:
    """Return the command that measures win rate and gold over n as a run was made; else nothing."""
    if record.get("method") != "best_of_n":
        return ""
    most = int(finite_number(flatten(record.section("config")).get("best_of_n.n")) or 64)
    numbers = [4**power for power in range(10) if 4**power < most]
    begin, run, options = str(record.get("command", "")).partition("afarm run ")
    own = _NOT_ITS.sub("", f" {options}") if run and not begin else ""
    return f"afarm best-of-n --n {','.join(map(str, [*numbers, most]))}{own}"


def group_curves(rows: Iterable[Row]) -> dict[str, dict[str, Points]]:
    """Group logged rows into curves: `[stage][name]` lists (step, value), None if not finite.

    If a resumed stage has logged a step twice, the later of the two counts.
    """
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
