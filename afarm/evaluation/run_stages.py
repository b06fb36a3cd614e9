"""Facts of a run's stages: costs, outputs cut off, labels degraded, figures that are not finite."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from afarm.evaluation.metrics import finite_number
from afarm.storage.disk import NOT_FINITE

Stage = Mapping[str, Any]

MOST_CUT_OFF = 0.2
"""The share of a stage's outputs that a length limit may cut off before a run says so."""
LENGTH_LIMITS = {
    "sample": "sample.max_new_tokens",
    "outputs": "evaluate.max_new_tokens",
    "answers": "answers.max_tokens",
}
"""The setting that cuts the outputs of each kind of stage off."""


def sum_costs(stages: Iterable[Stage]) -> tuple[float, float]:
    """Sum the seconds and the judges' dollars of stages, as of a run that shares nothing.

    Reused ones count as when they were made, unknown values as 0.
    """
    seconds, dollars = [0.0], [0.0]
    for stage in stages:
        spend = stage.get("spend")
        seconds.append(finite_number(stage.get("seconds")) or 0.0)
        dollars.append(finite_number(spend.get("dollars")) or 0.0 if isinstance(spend, Mapping) else 0.0)
    return math.fsum(seconds), math.fsum(dollars)


def _summaries(stages: Iterable[Stage]) -> Iterator[tuple[Stage, Mapping[str, Any]]]:
    return ((stage, stage["summary"]) for stage in stages if isinstance(stage.get("summary"), Mapping))


def cut_off(stages: Iterable[Stage], advice: bool = True) -> list[str]:
    """State how many outputs were cut off, per stage with more than `MOST_CUT_OFF` of them.

    With `advice`, each sentence names the setting to raise.
    """
    sentences = []
    for stage, summary in _summaries(stages):
        limit = LENGTH_LIMITS.get(str(stage.get("kind")))
        cut, rows = finite_number(summary.get("cut_off")), finite_number(summary.get("rows"))
        if limit and cut and rows and cut > MOST_CUT_OFF * rows:
            sentences.append(
                f"{stage.get('stage')}: {cut:.0f} of {rows:.0f} outputs ({100 * cut / rows:.0f} %) were cut off in the "
                f"middle by the length limit{f'; raise it (--set {limit}=…)' if advice else ''}"
            )
    return sentences


def degraded(stages: Iterable[Stage]) -> list[str]:
    """State, for each stage whose labels were made without a parameter, which one and for how many."""
    sentences = []
    for stage, summary in _summaries(stages):
        left_out = summary.get("degraded")
        if isinstance(left_out, Mapping) and left_out:
            counts = " and ".join(f"{count} without {name}" for name, count in left_out.items())
            labels = summary.get("rows")
            sentences.append(f"{stage.get('stage')}: of {labels} labels, {counts}, which the judge does not take")
    return sentences


def not_finite(stages: Iterable[Stage]) -> list[str]:
    """Name, per stage, the metrics that were NaN or infinite when they were last logged."""
    sentences = []
    for stage, summary in _summaries(stages):
        if names := [name for name, value in summary.items() if value in NOT_FINITE]:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            sentences.append(
                f"{stage.get('stage')}: {', '.join(names[:3])}{more} {'is' if len(names) == 1 else 'are'} not finite "
                f"at its end: see {stage.get('artifact')}/metrics.jsonl"
            )
    return sentences
