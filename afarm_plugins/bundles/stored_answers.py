"""The part of a ledger that labels were read from, and judges that answer from it alone."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Mapping, Sequence
from operator import methodcaller
from pathlib import Path
from typing import Any

import yaml

from afarm import AnnotateContext, ChatRequest, Completion, JudgeError, Judgement, JudgementKey, JudgingStudy
from afarm.experiments import JudgeClient, StudyRecord, Workspace, formula_judges, open_workspace
from afarm.judging import SAMPLES_PER_VOTE
from afarm.results import Ledger, column_names, query_chunks

ANSWERS, JUDGEMENTS = column_names("completions"), column_names("judgements")
"""The columns of the tables that a bundle has a part of."""

NOT_REPLAYED = ("based_on", "budget", "price", "prices", "batch_api")
"""Settings that change no result, or name a file."""


EARLIER = (
    "SELECT DISTINCT earlier.completion FROM judgements AS last JOIN judgements AS earlier "
    "ON earlier.annotator = last.annotator AND earlier.pair_id = last.pair_id AND earlier.shown = last.shown "
    f"AND earlier.seed = last.seed AND earlier.draw BETWEEN last.draw - last.draw % {SAMPLES_PER_VOTE} "
    "AND last.draw - 1 WHERE last.completion IN ({marks})"
)
"""The answers that a re-ask followed: they could not be read, and a label names the last one only."""


def slice_ledger(ledger: Ledger, keys: Iterable[str]) -> tuple[bytes, bytes]:
    """Return the answers with these keys, those that they followed, and the judgements read from them."""
    found = set(keys)
    for chunk, marks in query_chunks(sorted(found)):
        found |= {key for (key,) in ledger.read(EARLIER.format(marks=marks), list(chunk)) if key}
    ordered = sorted(found)
    answers = _lines(ledger, "completions", ANSWERS, "key", ordered)
    return answers, _lines(ledger, "judgements", JUDGEMENTS, "completion", ordered)


def restore_slice(ledger: Ledger, answers: bytes, judgements: bytes) -> None:
    """Put a slice into an empty ledger. Raises `ValueError` for what is no slice."""
    for table, columns, lines in (("completions", ANSWERS, answers), ("judgements", JUDGEMENTS, judgements)):
        rows = [_values(json.loads(line), columns) for line in lines.decode("utf-8").splitlines()]
        marks = ",".join("?" * len(columns))
        statement = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks}) ON CONFLICT DO NOTHING"
        ledger.database.write(methodcaller("executemany", statement, rows))


def _values(row: object, columns: Sequence[str]) -> list[object]:
    if not isinstance(row, dict) or set(row) != set(columns):
        raise ValueError("a row of its ledger has other columns")
    if any(isinstance(value, list | dict) for value in row.values()):
        raise ValueError("a row of its ledger holds no plain values")
    return [row[column] for column in columns]


def _lines(ledger: Ledger, table: str, columns: Sequence[str], by: str, keys: Sequence[str]) -> bytes:
    """Return the rows whose column `by` is one of `keys`, as sorted lines of JSON."""
    texts = []
    for chunk, marks in query_chunks(keys):
        for row in ledger.read(f"SELECT {', '.join(columns)} FROM {table} WHERE {by} IN ({marks})", list(chunk)):
            named = dict(zip(columns, row, strict=True))
            texts.append(json.dumps(named, ensure_ascii=False, sort_keys=True))
    return "".join(f"{text}\n" for text in sorted(texts)).encode()


class StoredAnswersClient(JudgeClient):
    """Knows what a ledger holds, asks nobody and counts nothing.

    `read` are the keys of the answers that it gave.
    """

    def __init__(self, workspace: Workspace, ledger: Ledger):
        super().__init__(workspace.judges.by_role, ledger, allow_degraded=workspace.config.allow_degraded)
        self.read: set[str] = set()

    def stream(self, requests: Iterable[ChatRequest]) -> Generator[tuple[int, Completion], None, None]:
        if missing := sum(1 for _ in requests):
            raise JudgeError(f"{missing} answers are not in the bundle")
        yield from ()

    def recall(self, keys: Sequence[JudgementKey]) -> dict[JudgementKey, Judgement]:
        judgements = self.ledger.recall(keys)
        self.read |= {judgement.completion for judgement in judgements.values()}
        return judgements


def open_recorded(config: Mapping[str, Any], into: Path, overrides: Sequence[Mapping[str, Any]] = ()) -> Workspace:
    """Open a workspace with recorded settings, which looks for no data, model or key."""
    config = {key: value for key, value in config.items() if key not in NOT_REPLAYED}
    config.setdefault("model", "none")  # judging files needs no model, but settings do
    recipe = into / "recorded.yaml"
    into.mkdir(parents=True, exist_ok=True)
    recipe.write_text(yaml.safe_dump(dict(config), allow_unicode=True), encoding="utf-8")
    return open_workspace(str(recipe), overrides, into / "workspace", checks=[], trains=False)


def judge_again(study: JudgingStudy, record: StudyRecord, into: Path, ledger: Ledger) -> tuple[set[str], list[str]]:
    """Have a study judge from the ledger alone.

    Returns the keys of the answers, and the names of the judges that are formulas.

    Raises `JudgeError` if one is not there.
    """
    with open_recorded(record.judging, into) as workspace:
        client = StoredAnswersClient(workspace, ledger)
        study.judge(AnnotateContext(workspace.seed(f"study {record.name}"), client))
        return client.read, formula_judges(workspace)
