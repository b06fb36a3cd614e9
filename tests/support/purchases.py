"""What a ledger says was bought: a count of answers alone cannot see one that was bought twice."""

from __future__ import annotations

from afarm.judging.database import Place
from afarm.judging.ledger import Ledger


def purchases(place: Place) -> tuple[int, int]:
    """Return how many answers were paid for, and how many are there: equal if none was bought twice."""
    with Ledger(place) as ledger:
        [(paid,)] = ledger.read("SELECT SUM(calls) FROM stage_spend")
        [(answers,)] = ledger.read("SELECT COUNT(*) FROM completions")
    return int(paid or 0), int(answers)
