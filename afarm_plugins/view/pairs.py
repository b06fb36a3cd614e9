"""The pairs of a run as the page of outputs gets them: short rows, and all about one of them."""

from __future__ import annotations

import threading

from afarm import AfarmError, DataError, Row
from afarm.results import OUTPUTS, Place, open_ledger
from afarm_plugins.view.outputs_index import (
    MOST_TEXT,
    Indices,
    OutputsIndex,
    find_suspicious,
    first_rows,
    read_pair_scores,
    stored_verdict,
)
from afarm_plugins.view.outputs_query import MOST_ROWS, Found, Query, choices, find_rows
from afarm_plugins.view.run_table import write_run_command
from afarm_plugins.view.sources import SeenRun
from afarm_plugins.view.values import text
from afarm_plugins.view.votes import votes_on

EXCERPT = 200
"""Characters of an instruction in the list."""

WAIT = 30.0
"""Seconds to wait for an index that a query needs."""


class Pairs:
    """Answers about the outputs of runs."""

    def __init__(self) -> None:
        self._indices = Indices()
        self._answers: dict[tuple[int, int, Query], tuple[OutputsIndex, OutputsIndex | None, Found]] = {}
        self._lock = threading.Lock()

    def index(self, run: SeenRun) -> OutputsIndex:
        """The index of a run's outputs, which may still be at work."""
        return self._indices.get(run.directory / OUTPUTS, lambda: read_pair_scores(dict(run.record or {})))

    def listed(self, run: SeenRun, query: Query, start: int, count: int, other: SeenRun | None = None) -> Row:
        """The rows `start` to `start + count` that a query finds.

        Until the index is there, a query without filters gets the file's first rows, with `ready` false.
        """
        index, count = self.index(run), min(count, MOST_ROWS)
        if not index.ready.is_set() and query == Query() and start == 0:
            index.ready.wait(0.1)
        if not index.ready.is_set() and query == Query() and start == 0:
            rows = first_rows(index.path, count)
            listed = [{"number": n, **_brief(row), "verdict": stored_verdict(row)} for n, row in enumerate(rows)]
            return {"ready": False, "progress": index.progress, "rows": listed, "total": len(rows)}
        if query.kind == "flagged":
            index.flag_in_background()
        if not index.ready.wait(WAIT):
            raise DataError(f"the outputs of {run.name} are still being indexed: {index.progress:.0%} of the file")
        theirs = self.index(other) if other else None
        if theirs is not None:
            theirs.ready.wait(WAIT)
        found = self._answer(index, query, theirs)
        shown = found.numbers[start : start + count]
        rows = [
            {
                "number": number,
                **_brief(row),
                "verdict": index.verdicts[number],
                "member": index.members[number],
                "longer": index.longer[number],
                "cut": bool(index.cut[number]),
                "flagged": bool(index.flagged[number]),
                "margin": index.margin(number),
            }
            for number, row in zip(shown, index.rows(shown), strict=False)
        ]
        return {
            "ready": True,
            "rows": rows,
            "total": len(found.numbers),
            "of": len(index),
            "counts": dict(found.counts),
            "choices": choices(index),
            "looked_at": index.flags_seen,
            "skipped": index.skipped,
            "half_searched": index.half_searched,
            "problem": index.problem,
        }

    def _answer(self, index: OutputsIndex, query: Query, other: OutputsIndex | None) -> Found:
        """The rows of a query; the last few answers are kept, for whoever scrolls through one."""
        if query.kind == "flagged" and not index.flags_ready:  # it finds more later
            return find_rows(index, query, other)
        key = (id(index), id(other), query)
        with self._lock:
            held = self._answers.get(key)
        if held is None or held[0] is not index or held[1] is not other:
            held = index, other, find_rows(index, query, other)
            with self._lock:
                self._answers[key] = held
                while len(self._answers) > 16:
                    del self._answers[next(iter(self._answers))]
        return held[2]

    def pair(self, run: SeenRun, number: int, place: Place) -> Row:
        """All about one pair. Raises `DataError` for a number that no row has."""
        index = self.index(run)
        if not index.ready.wait(WAIT) or not 0 <= number < len(index):
            raise DataError(f"{run.name} has no pair {number}: it has {len(index)}")
        row = next(index.rows([number]), {})
        votes, problem = [], ""
        try:
            with open_ledger(place) as ledger:
                votes = votes_on(ledger, row) if ledger is not None else []
                problem = "" if ledger is not None else "no ledger is here: the answers of judges are not known"
        except AfarmError as error:
            problem = str(error)
        (gold, gold_reference), (reward, reward_reference) = index.gold[number], index.reward[number]
        return {
            "number": number,
            "verdict": index.verdicts[number],
            "who": index.members[number],
            **{name: _whole(row.get(name)) for name in ("instruction", "input", "output_1", "output_2")},
            **{
                name: text(row.get(name))
                for name in (
                    *("generator_1", "generator_2", "annotator", "member", "order", "outcome", "source", "judge"),
                    *("finish_reason_1", "finish_reason_2", "dataset", "degraded"),
                )
            },
            "preference": row.get("preference"),
            "flags": _flags(row),
            "gold": gold,
            "gold_reference": gold_reference,
            "reward": reward,
            "reward_reference": reward_reference,
            "votes": votes,
            "votes_problem": problem,
            "command": write_run_command(run, "ledger", "--export", "answers.jsonl"),
        }


def _brief(row: Row) -> Row:
    task, given = text(row.get("instruction")), text(row.get("input"))
    return {"instruction": " ".join(f"{task[:EXCERPT]} {given[:EXCERPT]}".split())[:EXCERPT]}


def _whole(value: object) -> Row:
    """A text as far as it is shown, and its length."""
    whole = text(value)
    return {"text": whole[:MOST_TEXT], "length": len(whole)}


def _flags(row: Row) -> list[Row]:
    return [
        {"side": side, "flag": match.flag, "pattern": match.pattern, "quote": match.quote}
        for side, match in find_suspicious(row)
    ]
