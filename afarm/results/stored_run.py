"""A finished run as it lies on disk: its outputs, labels, votes, answers, figures and costs.

    from afarm import results

    run = results.open_run("afarm-runs/runs/toy-ppo-1a2b3c")
    run.labels()                    # one JudgedPair per label
    results.to_frame(run.costs())   # a pandas DataFrame, one row per stage

Nothing is written, and nothing is asked of a judge.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from afarm.core.errors import DataError
from afarm.core.judge import Completion
from afarm.core.records import JudgedPair, Row
from afarm.evaluation.metrics import finite_number
from afarm.judging.database import Place
from afarm.judging.ledger import query_chunks
from afarm.judging.ledger_schema import LEDGER_COLUMNS, column_names
from afarm.results.read_only_ledger import open_ledger
from afarm.storage.rows import read_preferences, read_rows
from afarm.storage.runs import METRICS, OUTPUTS, RunRecord, find_run, read_run, run_directories

LABELS = {"annotate": "preferences.jsonl", "preferences": "preferences.jsonl"}
"""The kinds of stage that hold labels to learn from, with the file of each."""

JUDGEMENTS = dict.fromkeys(("evaluate", "compare", "stored annotations"), "judgements.jsonl")
"""The kinds of stage that hold the labels of an evaluation, with the file of each."""


class StoredRun:
    """A finished run of an output directory.

    `record` is its `run.json`. Every method reads its files anew. Those that read artifacts raise `DataError` naming
    the artifact if it was deleted.
    """

    def __init__(self, directory: Path, ledger: Place | None = None):
        """Open the run in `directory`; `ledger` is where its answers are if not in its output directory.

        Raises `DataError` if there is no readable record.
        """
        self.directory = directory.absolute()
        self.output_dir = self.directory.parent.parent
        self.ledger: Place = ledger or self.output_dir / "ledger.sqlite"
        self.record: RunRecord = read_run(directory)

    def __repr__(self) -> str:
        return f"StoredRun({self.name}: {self.record.get('judged_by') or 'not judged'})"

    @property
    def name(self) -> str:
        """The name of the run."""
        return self.record.name

    def figures(self) -> list[Row]:
        """Return a row per evaluation: `system`, `reference`, `evaluator`, and its metrics under their names."""
        return [
            {"system": result.system, "reference": result.reference, "evaluator": result.evaluator, **result.metrics}
            for result in self.record.results
        ]

    def metrics(self) -> list[Row]:
        """Return what the run's stages logged, in order; empty if they logged nothing."""
        return self._rows_beside(METRICS)

    def outputs(self) -> list[Row]:
        """Return the rows of the main comparison: each instruction with both outputs and their label."""
        return self._rows_beside(OUTPUTS)

    def labels(self) -> list[JudgedPair]:
        """Return the preferences that the run learned from; empty for a method that needs none."""
        return list(self._judged(LABELS))

    def judgements(self) -> list[JudgedPair]:
        """Return the preferences of all evaluations, the reference's output first in each pair."""
        return list(self._judged(JUDGEMENTS))

    def votes(self) -> list[Row]:
        """Return every vote on the labelled pairs, from the ledger.

        Several votes make a label if an annotator asks more than once or in both orders. `first` is the share of the
        output shown first, None if the answer had no verdict; `completion` is the key of the judge's answer.
        """
        pairs = dict.fromkeys(judged.pair.id for judged in (*self.labels(), *self.judgements()))
        names = column_names("judgements")
        # The table's key begins with the annotator: so the query uses its index.
        annotators = "annotator IN (SELECT DISTINCT annotator FROM judgements)"
        statement = f"SELECT {LEDGER_COLUMNS['judgements']} FROM judgements WHERE {annotators} AND pair_id IN"
        with open_ledger(self.ledger) as ledger:
            if ledger is None:
                return []
            return [
                dict(zip(names, row, strict=True))
                for some, marks in query_chunks(list(pairs))
                for row in ledger.read(f"{statement} ({marks})", some)
            ]

    def answers(self) -> dict[str, Completion]:
        """Return the judges' answers behind the labels, by their keys; empty if a formula labelled."""
        keys = [
            key for judged in (*self.labels(), *self.judgements()) for key in judged.preference.completion.split(",")
        ]
        wanted = list(dict.fromkeys(filter(None, keys)))
        if not wanted:
            return {}
        with open_ledger(self.ledger) as ledger:
            return ledger.completions(wanted) if ledger else {}

    def costs(self) -> list[Row]:
        """Return a row per stage: `stage`, `kind`, `seconds`, `reused`, judge calls, tokens and dollars.

        Dollars leave out calls whose price is unknown; `unpriced_calls` counts those.
        """
        return [
            {
                "stage": stage.get("stage"),
                "kind": stage.get("kind"),
                "seconds": finite_number(stage.get("seconds")),
                "reused": bool(stage.get("reused")),
                **(stage.get("spend") or {}),
            }
            for stage in self.record.stages
        ]

    def artifact(self, stage: str) -> Path:
        """Return the directory of a stage's artifact. Raises `DataError` if there is none."""
        found = self.record.stage(stage)
        if found is None:
            stages = ", ".join(str(each.get("stage")) for each in self.record.stages)
            raise DataError(f"{self.directory}: the run has no stage {stage!r}, only: {stages}")
        return self._artifact(found)

    def _artifact(self, stage: Any) -> Path:
        directory = self.output_dir / "artifacts" / str(stage.get("kind")) / str(stage.get("key"))
        if not directory.is_dir():
            raise DataError(
                f"{directory}: the artifact of {stage.get('stage')!r} is gone; the run's command makes it again"
            )
        return directory

    def _judged(self, files: dict[str, str]) -> Iterator[JudgedPair]:
        for stage in self.record.stages:
            if stage.get("kind") in files:
                yield from read_preferences(self._artifact(stage) / files[str(stage["kind"])])

    def _rows_beside(self, name: str) -> list[Row]:
        path = self.directory / name
        return list(read_rows(path)) if path.is_file() else []


def open_run(run: Path | str, output_dir: Path | str = "afarm-runs", ledger: Place | None = None) -> StoredRun:
    """Open a run by its name in `output_dir`, by its directory or by its `run.json`.

    `ledger` is the file or URL of its answers if they are not in its output directory. Raises `DataError`.
    """
    return StoredRun(find_run(str(run), Path(output_dir)), ledger)


def open_runs(output_dir: Path | str = "afarm-runs", ledger: Place | None = None) -> list[StoredRun]:
    """Open the finished runs of an output directory, by name.

    Raises `DataError` for a damaged record, and for a directory that is not there.
    """
    if not Path(output_dir).is_dir():
        raise DataError(f"{output_dir}: no such directory; `afarm run` makes one, and --output-dir names it")
    return [StoredRun(directory, ledger) for directory in run_directories(Path(output_dir) / "runs")]
