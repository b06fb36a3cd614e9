"""Stored decisions of sequential comparisons (`afarm evaluate --until decided`), in sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def decision_sentences(decision: Mapping[str, Any]) -> list[str]:
    """State a decision, one sentence per question. Raises `LookupError` or `TypeError` if it is none."""
    sentences, comparisons = [], decision["comparisons"]
    level = f"{100 * (1 - decision['alpha'] / len(comparisons)):.3g} %"
    for row in comparisons:
        interval = f"{row['low']:.1f} to {row['high']:.1f}"
        after = f"after {row['n']} of {decision['of']} instructions"
        if not row["second"]:
            side = {"higher": "above 50 %", "lower": "below 50 %"}.get(row["side"])
            outcome = f"decided {after}: {row['first']} is {side}" if side else f"not decided {after}"
        else:
            better = {"higher": row["first"], "lower": row["second"]}.get(row["side"])
            outcome = f"decided {after}: {better} is better" if better else f"not decided {after}"
            interval = f"{row['low']:+.1f} to {row['high']:+.1f} points ({row['first']} − {row['second']})"
        sentences.append(f"{outcome}; {level} confidence sequence {interval}")
    if decision["stopped"] == "budget" and not decision["decided"]:
        sentences.append("the budget ended first: the same command with a larger one goes on")
    return sentences
