"""Outputs that a length limit cut off, counted by a run's stages, in sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from afarm.evaluation.metrics import finite_number

MOST_CUT_OFF = 0.2
"""The share of a stage's outputs that a length limit may cut off before a run says so."""
LENGTH_LIMITS = {
    "sample": "sample.max_new_tokens",
    "outputs": "evaluate.max_new_tokens",
    "answers": "answers.max_tokens",
}
"""The setting that cuts the outputs of each kind of stage off."""


def cut_off(stages: Iterable[Mapping[str, Any]], advice: bool = True) -> list[str]:
    """State how many outputs were cut off, per stage with more than `MOST_CUT_OFF` of them.

    With `advice`, each sentence names the setting to raise.
    """
    sentences = []
    for stage in stages:
        summary, limit = stage.get("summary"), LENGTH_LIMITS.get(str(stage.get("kind")))
        if not isinstance(summary, Mapping) or limit is None:
            continue
        cut, rows = finite_number(summary.get("cut_off")), finite_number(summary.get("rows"))
        if cut and rows and cut > MOST_CUT_OFF * rows:
            sentences.append(
                f"{stage.get('stage')}: {cut:.0f} of {rows:.0f} outputs ({100 * cut / rows:.0f} %) were cut off in the "
                f"middle by the length limit{f'; raise it (--set {limit}=…)' if advice else ''}"
            )
    return sentences
