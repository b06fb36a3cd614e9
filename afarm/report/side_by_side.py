"""The outputs that the page shows side by side, and the judge's verdict on each pair."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from afarm.core.records import Row
from afarm.core.seeding import digest
from afarm.evaluation.decisions import decision_sentences
from afarm.evaluation.matching import Coverage

Verdict = Literal["win", "loss", "draw", "none"]

VERDICTS: tuple[Verdict, ...] = ("win", "loss", "draw", "none")
"""From the side of the system (output_2): preferred, not preferred, neither, no usable answer."""


_RARITY: dict[Verdict, int] = {"win": 1, "loss": 1, "draw": 2, "none": 4}
"""One draw is shown for every two wins, and so on: decided pairs say more."""


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


def sample_rows(rows: Iterable[Row], count: int, seed: object) -> tuple[list[Row], dict[Verdict, int]]:
    """Sample `count` rows of every verdict in a mixed order, and count the rows per verdict.

    Memory holds no more rows than may be chosen. The draw is keyed by seed, instruction and outputs, so the same run
    always shows the same rows, and nobody picks.
    """
    lowest: dict[Verdict, list[tuple[int, int, Row]]] = {v: [] for v in VERDICTS}
    counts: dict[Verdict, int] = dict.fromkeys(VERDICTS, 0)
    for at, row in enumerate(rows):
        name = row_verdict(row)
        counts[name] += 1
        key = digest("report", seed, *(row.get(k) for k in ("instruction", "input", "output_1", "output_2")))
        keep = heapq.heappush if len(lowest[name]) < count else heapq.heappushpop
        keep(lowest[name], (-int(key, 16), -at, row))
    ranked = (
        (place * _RARITY[name], -key, row)
        for name, group in lowest.items()
        for place, (key, _, row) in enumerate(sorted(group, key=lambda item: item[:2], reverse=True))
    )
    chosen = sorted(ranked, key=lambda item: item[:2])[:count]
    return [row for _, _, row in sorted(chosen, key=lambda item: item[1])], counts


def rows_compared(record: Mapping[str, Any]) -> list[str]:
    """State the decision and the coverage of a comparison of files; nothing for other runs."""
    coverage, until = record.get("coverage"), record.get("until")
    try:
        lines = decision_sentences(until) if isinstance(until, Mapping) else []
        return [*lines, f"compared: {Coverage.from_row(coverage).sentence}"] if isinstance(coverage, Mapping) else lines
    except (LookupError, TypeError, ValueError):  # a record that was changed by hand
        return []
