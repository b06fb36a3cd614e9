"""Judges that answer from a ledger alone, under the settings of a record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from afarm import AnnotateContext, ChatRequest, Completion, JudgeError, Judgement, JudgementKey, JudgingStudy
from afarm.experiments import JudgeClient, StudyRecord, Workspace, formula_judges, open_workspace
from afarm.results import Ledger

SETTINGS_OF_NO_RESULT = ("budget", "price", "prices", "batch_api")


class StoredAnswersClient(JudgeClient):
    """Knows what a ledger holds, asks nobody and counts nothing.

    `read` are the keys of the answers that it gave.
    """

    def __init__(self, workspace: Workspace, ledger: Ledger):
        super().__init__(workspace.judges.by_role, ledger, allow_degraded=workspace.config.allow_degraded)
        self.read: set[str] = set()

    def stream(self, requests: Iterable[ChatRequest]) -> Iterator[tuple[int, Completion]]:
        if missing := sum(1 for _ in requests):
            raise JudgeError(f"{missing} answers are not in the bundle")
        return iter(())

    def recall(self, keys: Sequence[JudgementKey]) -> dict[JudgementKey, Judgement]:
        judgements = self.ledger.recall(keys)
        self.read |= {judgement.completion for judgement in judgements.values()}
        return judgements


def open_recorded(config: Mapping[str, Any], into: Path) -> Workspace:
    """Open a workspace with recorded settings, which looks for no data, model or key."""
    config = {key: value for key, value in config.items() if key not in SETTINGS_OF_NO_RESULT}
    recipe = into / "recorded.yaml"
    into.mkdir(parents=True, exist_ok=True)
    recipe.write_text(yaml.safe_dump(dict(config), allow_unicode=True), encoding="utf-8")
    return open_workspace(str(recipe), (), into / "workspace", checks=[], trains=False)


def judge_again(study: JudgingStudy, record: StudyRecord, into: Path, ledger: Ledger) -> tuple[set[str], list[str]]:
    """Have a study judge from the ledger alone.

    Returns the keys of the answers, and the names of the judges that are formulas.

    Raises `JudgeError` if one is not there.
    """
    with open_recorded(record.judging, into) as workspace:
        client = StoredAnswersClient(workspace, ledger)
        study.judge(AnnotateContext(workspace.seed(f"study {record.name}"), client))
        return client.read, formula_judges(workspace)
