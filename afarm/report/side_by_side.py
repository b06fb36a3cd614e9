"""The outputs that the page shows side by side, and the judge's verdict on each pair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from afarm.core.records import Row
from afarm.core.seeding import digest
from afarm.evaluation.decisions import decision_sentences
from afarm.evaluation.matching import Coverage

Verdict = Literal["win", "loss", "draw", "none"]

RARITY: dict[Verdict, int] = {"win": 1, "loss": 1, "draw": 2, "none": 4}
"""One draw is shown for every two wins, and so on: decided pairs say more."""
VERDICTS = tuple(RARITY)
"""From the side of the system (output_2): preferred, not preferred, neither, no usable answer."""


def row_verdict(row: Row) -> Verdict:
    """Read the judge's verdict from a stored judgement; "none" if the row is no judgement."""
    value: Any = row.get("preference")
    if not isinstance(value, int | float) or isinstance(value, bool) or row.get("outcome") in ("unparsed", "refused"):
        return "none"
    if value in (0, 1.5):
        return "draw"
    if not 1 <= value <= 2:
        return "none"
    return "win" if value > 1.5 else "loss"


def sample_rows(rows: Sequence[Row], count: int, seed: object) -> tuple[list[Row], dict[Verdict, int]]:
    """Sample `count` rows of every verdict in a mixed order, and count the rows per verdict.

    The draw is keyed by seed, instruction and outputs, so the same run always shows the same rows, and nobody picks.
    """
    drawn: dict[Verdict, list[tuple[str, int]]] = {v: [] for v in VERDICTS}
    for at, row in enumerate(rows):
        key = digest("report", seed, *(row.get(k) for k in ("instruction", "input", "output_1", "output_2")))
        drawn[row_verdict(row)].append((key, at))
    ranked = (
        (place * RARITY[name], key, at)
        for name, group in drawn.items()
        for place, (key, at) in enumerate(sorted(group))
    )
    chosen = sorted(sorted(ranked)[:count], key=lambda item: item[1])
    return [rows[at] for _, _, at in chosen], {name: len(group) for name, group in drawn.items()}


def rows_compared(record: Mapping[str, Any]) -> list[str]:
    """State the decision and the coverage of a comparison of files; nothing for other runs."""
    coverage, until = record.get("coverage"), record.get("until")
    try:
        lines = decision_sentences(until) if isinstance(until, Mapping) else []
        return [*lines, f"compared: {Coverage.from_row(coverage).sentence}"] if isinstance(coverage, Mapping) else lines
    except (LookupError, TypeError, ValueError):  # a record that was changed by hand
        return []
