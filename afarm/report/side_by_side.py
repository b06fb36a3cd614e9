"""Which outputs the page shows side by side, and what the judge said of them."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from afarm.core.records import Row
from afarm.core.seeding import digest
from afarm.evaluation.decisions import decision_sentences
from afarm.evaluation.matching import Coverage
from afarm.evaluation.metrics import number

Verdict = Literal["win", "loss", "draw", "none"]

VERDICTS: tuple[Verdict, ...] = ("win", "loss", "draw", "none")
"""From the side of the system (output_2): preferred, not preferred, neither, no usable answer."""


_RARITY: dict[Verdict, int] = {"win": 1, "loss": 1, "draw": 2, "none": 4}
"""One draw is shown for every two wins, and so on: what is decided says more."""


def verdict(row: Row) -> Verdict:
    """What the judge said of a row, whose `preference` is 1 or 2 for the better output and 0 or 1.5 for a draw."""
    preference = number(row.get("preference"))
    if row.get("outcome") in ("unparsed", "refused") or preference is None:
        return "none"
    if row.get("outcome") == "draw" or preference in (0, 1.5):
        return "draw"
    return "win" if preference > 1.5 else "loss"


def sample(rows: Iterable[Row], count: int, seed: object) -> tuple[list[Row], dict[Verdict, int]]:
    """`count` rows, of every verdict as far as it goes, wins and losses alike, in an order that mixes them; and how
    many rows there are of each verdict. Memory holds no more rows than may be chosen.

    The draw is keyed by seed, instruction and outputs, so the same run always shows the same rows, and nobody picks.
    """
    lowest: dict[Verdict, list[tuple[int, int, Row]]] = {v: [] for v in VERDICTS}
    counts: dict[Verdict, int] = dict.fromkeys(VERDICTS, 0)
    for at, row in enumerate(rows):
        name = verdict(row)
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
    """How much of two files was compared, and what was decided on the way, in sentences; none for other runs."""
    coverage, until = record.get("coverage"), record.get("until")
    try:
        found = decision_sentences(until) if isinstance(until, Mapping) else []
        return [*found, f"compared: {Coverage.from_row(coverage).sentence}"] if isinstance(coverage, Mapping) else found
    except (LookupError, TypeError, ValueError):  # a record that was changed by hand
        return []
