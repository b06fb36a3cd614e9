"""Labels as rows: AlpacaEval's annotations with afarm's columns, one row a person, under pseudonyms."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from afarm_people.rules import Project


def exported_rows(project: Project) -> Iterator[dict[str, Any]]:
    """Yield the labels of all people who were not discarded, by pair.

    `preference` is 1 or 2, or 1.5 for a tie; `strength` 0.5 says "slightly"; `order` is "12" if output_1 came first.
    """
    for one in project.store.labels():
        yield {
            **one.judged().to_row(),
            "reason": one.reason,
            "time_per_example": round(one.seconds, 1),
            **({"price_per_example": project.rules.pay} if project.rules.pay else {}),
            "labelled_at": datetime.fromtimestamp(one.labelled, UTC).isoformat(timespec="seconds"),
            **one.extra,
        }
