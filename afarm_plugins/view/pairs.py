"""The pairs of a run as the page of outputs gets them: short rows, and all about one of them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from afarm import AfarmError, DataError, Row
from afarm.report import row_verdict
from afarm.results import OUTPUTS, Place, are_formulas, open_ledger, who_judged
from afarm_plugins.view.outputs_index import (
    MOST_TEXT,
    OutputsIndex,
    find_suspicious,
    first_rows,
    read_pair_scores,
)
from afarm_plugins.view.outputs_query import MOST_ROWS, Query, choices, find_rows
from afarm_plugins.view.run_table import write_run_command
from afarm_plugins.view.sources import SeenRun
from afarm_plugins.view.values import signature, text
from afarm_plugins.view.votes import votes_on

EXCERPT = 200
"""Characters of an instruction in the list."""

MOST_INDICES = 8

WAIT = 30.0
"""Seconds to wait for an index that a query needs."""


class Pairs:
    """Answers about the outputs of runs, from indices of the files that were looked at lately."""

    def __init__(self) -> None:
        self._made: dict[Path, tuple[object, OutputsIndex]] = {}
        self._lock = threading.Lock()

    def index(self, run: SeenRun) -> OutputsIndex:
        """The index of a run's outputs, begun now if there is none or the file has changed."""
        path = run.directory / OUTPUTS
        if path.exists() and not path.is_file():  # opened, a named pipe would never answer
            raise DataError(f"{path}: is no file")
        state = signature(path)
        with self._lock:
            before = self._made.pop(path, None)
            if before is None or before[0] != state:
                index = OutputsIndex(path, lambda: read_pair_scores(dict(run.record)), are_formulas(run.record))
                threading.Thread(target=index.build, name="afarm-view-index", daemon=True).start()
                before = state, index
            self._made[path] = before
            while len(self._made) > MOST_INDICES:
                del self._made[next(iter(self._made))]
        return before[1]

    def listed(self, run: SeenRun, query: Query, start: int, count: int, other: SeenRun | None = None) -> Row:
        """List `count` rows of a query; while an index is built, the file's first rows, with `ready` false."""
        index, count = self.index(run), min(count, MOST_ROWS)
        if query == Query() and start == 0 and not index.ready.wait(0.1):
            rows = first_rows(index.path, count)
            listed = [{"number": n, **_brief(row), "verdict": row_verdict(row)} for n, row in enumerate(rows)]
            return {"ready": False, "progress": index.progress, "rows": listed, "total": len(rows)}
        if not index.ready.wait(WAIT):
            raise DataError(f"the outputs of {run.name} are still being indexed: {index.progress:.0%} of the file")
        if query.kind == "flagged":
            index.flag_in_background()
        theirs = self.index(other) if other else None
        if theirs is not None:
            theirs.ready.wait(WAIT)
        found = find_rows(index, query, theirs)
        return {
            "ready": True,
            "rows": short_rows(index, found.numbers[start : start + count]),
            "total": len(found.numbers),
            "of": len(index),
            "counts": dict(found.counts),
            "choices": choices(index),
            "looked_at": index.flags_seen,
            "skipped": index.skipped,
            "problem": index.problem,
        }

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
        return {
            "number": number,
            "verdict": index.verdicts[number],
            "who": who_judged([row], index.formulas),
            **{name: _whole(row.get(name)) for name in ("instruction", "input", "output_1", "output_2")},
            **{
                name: text(row.get(name))
                for name in (
                    *("generator_1", "generator_2", "annotator", "member", "order", "outcome", "source", "judge"),
                    *("finish_reason_1", "finish_reason_2", "dataset", "degraded"),
                )
            },
            "preference": row.get("preference"),
            "flags": [
                {"side": side, "flag": match.flag, "pattern": match.pattern, "quote": match.quote}
                for side, match in find_suspicious(row)
            ],
            **dict(zip(("gold", "gold_reference"), index.gold[number], strict=True)),
            **dict(zip(("reward", "reward_reference"), index.reward[number], strict=True)),
            "votes": [{**vote, "who": who_judged([vote], index.formulas)} for vote in votes],
            "votes_problem": problem,
            "jurors": [{"juror": text(name), "says": _says(win)} for name, win in _votes(row)],
            "command": write_run_command(run, "ledger", "--export", "answers.jsonl"),
        }


def short_rows(index: OutputsIndex, numbers: Sequence[int]) -> list[Row]:
    """List rows with their short texts and what the list shows and marks."""
    return [
        {
            "number": number,
            **_brief(row),
            "verdict": index.verdicts[number],
            "member": index.members[number],
            "who": who_judged([row], index.formulas),
            "longer": index.longer[number],
            "cut": bool(index.cut[number]),
            "flagged": bool(index.flagged[number]),
            "margin": index.margin(number),
        }
        for number, row in zip(numbers, index.rows(numbers), strict=False)
    ]


def _brief(row: Row) -> Row:
    task, given = text(row.get("instruction")), text(row.get("input"))
    return {"instruction": " ".join(f"{task[:EXCERPT]} {given[:EXCERPT]}".split())[:EXCERPT]}


def _votes(row: Row) -> list[tuple[object, object]]:
    """The votes of a jury, as `Preference.votes`; other files may have anything under this name."""
    votes = row.get("votes")
    return list(votes.items()) if isinstance(votes, dict) else []


def _says(win: object) -> str:
    if isinstance(win, bool) or not isinstance(win, int | float):
        return "abstained"
    return "draw" if win == 0.5 else "output_2" if win > 0.5 else "output_1"


def _whole(value: object) -> Row:
    whole = text(value)
    return {"text": whole[:MOST_TEXT], "length": len(whole)}
