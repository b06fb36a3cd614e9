"""Accounts of the ledger: spend and reuse by run, judge, annotator and day, and an export of answers."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from afarm.core.errors import StoreError
from afarm.judging.ledger import Ledger
from afarm.judging.ledger_schema import column_names

GROUPS = {
    "judge": "judge",
    "run": "COALESCE(run, '')",
    "annotator": "COALESCE(annotator, '')",
    "day": "",
}
"""Groups of spend, as SQL over completions; of days, each database has its own."""

ANSWERS = column_names("completions")


@dataclass(frozen=True, slots=True)
class Account:
    """Answers bought in one group; `dollars` without `unpriced` ones, `saved` the price of `reused` ones."""

    name: str
    answers: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    dollars: float = 0.0
    unpriced: int = 0
    reused: int = 0
    saved: float = 0.0


def accounts(ledger: Ledger, group: str) -> list[Account]:
    """Accounts by "run", "judge", "annotator" or "day", the most expensive first; days in their order."""
    expression = GROUPS[group] or ledger.database.day_of_creation
    bought = ledger.read(
        f"SELECT {expression}, COUNT(*), SUM(input_tokens), SUM(output_tokens), SUM(price), COUNT(*) - COUNT(price) "
        "FROM completions GROUP BY 1"
    )
    reused = ledger.read(f'SELECT "{group}", SUM(answers), SUM(dollars) FROM reuse GROUP BY 1')
    saved = {name: (count, dollars) for name, count, dollars in reused}
    groups = [
        Account(name, n, i or 0, o or 0, dollars or 0.0, unpriced, *saved.pop(name, (0, 0.0)))
        for name, n, i, o, dollars, unpriced in bought
    ]
    groups += [Account(name, reused=count, saved=dollars) for name, (count, dollars) in saved.items()]
    if group == "day":
        return sorted(groups, key=lambda account: account.name)
    return sorted(groups, key=lambda account: (-account.dollars, -account.answers, account.name))


def open_items(ledger: Ledger) -> dict[str, Any]:
    """Open charges: batches to be collected, and requests whose answer was never seen."""
    batches = ledger.read(
        "SELECT ticket, judge, run, COUNT(*), COALESCE(SUM(reserved), 0), MIN(created) FROM batch_requests "
        "GROUP BY ticket, judge, run ORDER BY MIN(created)"
    )
    names = ("ticket", "judge", "run", "requests", "reserved", "created")
    count, dollars = ledger.read("SELECT COUNT(*), COALESCE(SUM(reserved), 0) FROM in_flight")[0]
    return {
        "batches": [dict(zip(names, row, strict=True)) for row in batches],
        "in_flight": {"requests": count, "reserved": dollars},
    }


def summary(ledger: Ledger) -> dict[str, Any]:
    by = {group: [asdict(account) for account in accounts(ledger, group)] for group in GROUPS}
    return {"by": by, **open_items(ledger)}


def export(ledger: Ledger, path: Path) -> int:
    """Write all answers, as CSV or JSON lines by name; return their number. Raises `StoreError`."""
    count = 0
    try:
        with path.open("w", encoding="utf-8", newline="") as handle:
            table = csv.DictWriter(handle, ANSWERS) if path.suffix == ".csv" else None
            if table:
                table.writeheader()
            for row in _answers(ledger):
                if table:
                    table.writerow(row)
                else:
                    parsed = {k: json.loads(row[k]) for k in ("request", "logprobs", "degraded") if row[k] is not None}
                    handle.write(json.dumps({**row, **parsed}, ensure_ascii=False) + "\n")
                count += 1
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror or error}") from error
    return count


def unanswered(ledger: Ledger) -> list[tuple[str, int]]:
    """The finish reasons of answers without a text (content filters, too long prompts …), with counts."""
    query = "SELECT finish_reason, COUNT(*) FROM completions WHERE TRIM(text) = '' GROUP BY 1 ORDER BY 2 DESC"
    return [(str(reason or ""), int(count)) for reason, count in ledger.read(query)]


def mean_output_tokens(ledger: Ledger, judge: str, annotator: str | None) -> tuple[float, int]:
    """Mean output tokens of the answers that `judge` gave `annotator`, None for any, and their number."""
    query = (
        "SELECT AVG(output_tokens), COUNT(*) FROM completions WHERE judge = ? AND annotator = COALESCE(?, annotator)"
    )
    [(mean, count)] = ledger.read(query, [judge, annotator])
    return float(mean or 0.0), int(count)


def _answers(ledger: Ledger, size: int = 1000) -> Iterator[dict[str, Any]]:
    """Every row of completions, some at a time: other processes go on writing meanwhile."""
    last = -1
    number = ledger.database.row_number
    statement = f"SELECT {number}, {', '.join(ANSWERS)} FROM completions WHERE {number} > ? ORDER BY 1 LIMIT ?"
    while rows := ledger.read(statement, [last, size]):
        last = rows[-1][0]
        for row in rows:
            yield dict(zip(ANSWERS, row[1:], strict=True))
