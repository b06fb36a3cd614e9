"""Annotators of one data set alone, such as the toy crowd, refused before anything is made."""

from __future__ import annotations

from pathlib import Path

from afarm.core.errors import ConfigError, DataError
from afarm.core.interfaces import AnnotateContext
from afarm.core.records import Pair
from afarm.experiment.promises import requests_planned
from afarm.experiment.workspace import Workspace
from afarm.judging.client import JudgeClient
from afarm.judging.ledger import Ledger


def require_known_instructions(workspace: Workspace, name: str, split: str) -> None:
    """Raise `ConfigError` if an annotator cannot plan how to label the first instruction of a split."""
    try:
        first = workspace.data.instructions(split)[0]
    except (DataError, IndexError):  # which the stage that reads them reports
        return
    with Ledger(Path(":memory:")) as empty:
        client = JudgeClient(workspace.judges.by_role, empty, allow_degraded=True)
        context = AnnotateContext(workspace.config.seed, client)
        annotator, pair = workspace.components.annotator(name), Pair(first, "an output", "another one")
        try:
            requests_planned(annotator, name, [pair], context)
        except DataError as error:
            raise ConfigError(
                [
                    f"annotator {name!r} does not know the instructions of split {split!r}: name another, with "
                    "--annotator and --set evaluate.annotator=NAME, in a study with the option that names it "
                    f"(--people, --labelled-by, --annotators). {error}"
                ]
            ) from error
