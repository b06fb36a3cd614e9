"""The section of a run's report about its jury: who was asked, who agreed, and what each juror cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from afarm import JudgedPair, RunRecord
from afarm.results import StoredRun, open_ledger, query_chunks


@dataclass(slots=True)
class Tally:
    """Figures of one juror. `agreed` counts votes for the side that the jury chose, of `decided` ones."""

    asked: int = 0
    abstained: int = 0
    decided: int = 0
    agreed: int = 0
    dollars: float | None = 0.0


def tally_votes(judged: Sequence[JudgedPair]) -> dict[str, Tally]:
    """Count the votes on pairs, by juror."""
    found: dict[str, Tally] = {}
    for one in judged:
        for name, win in one.preference.votes:
            tally = found.setdefault(name, Tally())
            tally.asked += 1
            tally.abstained += win is None
            if one.p2 is not None and one.p2 != 0.5 and win is not None and win != 0.5:
                tally.decided += 1
                tally.agreed += (win > 0.5) == (one.p2 > 0.5)
    return found


def add_prices(found: dict[str, Tally], run: StoredRun, judged: Sequence[JudgedPair]) -> None:
    """Add what each juror's answers cost when they were bought; None if that is not known."""
    keys = list(dict.fromkeys(key for one in judged for key in one.preference.completion.split(",") if key))
    with open_ledger(run.ledger) as ledger:
        if ledger is None:
            return
        for some, marks in query_chunks(keys):
            for name, price in ledger.read(f"SELECT annotator, price FROM completions WHERE key IN ({marks})", some):
                if tally := found.get(name):
                    tally.dollars = None if price is None or tally.dollars is None else tally.dollars + price


def write_section(record: RunRecord) -> str:
    """Write the section as HTML; empty for a run without a jury."""
    run = StoredRun(record.directory)
    parts = []
    for use, rows in (("training labels", run.labels()), ("evaluation", run.judgements())):
        judged = [one for one in rows if one.preference.votes]
        if not judged:
            continue
        found = tally_votes(judged)
        add_prices(found, run, judged)
        asked, most = sum(tally.asked for tally in found.values()), len(judged) * len(found)
        saved = f"{most - asked:,} of {most:,} votes were not asked for, since the majority was fixed before them."
        if asked < most:
            saved += " Who is asked last decides, and so is always with the jury: that measures nothing."
        cells = [
            (
                escape(name),
                f"{tally.asked:,}",
                f"{tally.abstained:,}",
                f"{100 * tally.agreed / tally.decided:.1f} %" if tally.decided else "",
                "unknown" if tally.dollars is None else f"${tally.dollars:,.4f}",
            )
            for name, tally in found.items()
        ]
        head = "".join(
            f"<th>{name}</th>" for name in ("juror", "asked", "abstained", "with the jury, where asked", "price")
        )
        body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in cells)
        parts.append(f"<p>{len(judged):,} pairs, {use}. {saved}</p><table><tr>{head}</tr>{body}</table>")
    return "".join(parts)
