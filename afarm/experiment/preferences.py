"""The stage of one's own preferences, which stand in for samples and labels: nobody is asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from afarm.core.errors import DataError
from afarm.core.records import JudgedPair, Row
from afarm.core.seeding import digest
from afarm.experiment.stage import Inputs, Stage
from afarm.experiment.stage_code import code_digest
from afarm.experiment.workspace import Workspace
from afarm.storage.artifacts import artifact_key
from afarm.storage.hub import is_on_hub
from afarm.storage.preference_files import Unusable, own_preferences, source_digest_of
from afarm.storage.rows import write_rows


def preferences_stage(workspace: Workspace) -> Stage:
    """The preferences of the recipe's file or data set of the Hub, in afarm's rows.

    Pairs whose instruction is evaluated on are left out. Its key has a digest of the source's content.
    """
    config = workspace.config
    evaluated = workspace.data.evaluated()
    key_fields = {  # neither seed nor device changes them
        "stage": "preferences",
        "afarm": code_digest("preferences"),
        "data": source_digest_of(config.preferences),
        "on_unusable": config.on_unusable,
        "evaluated": digest(sorted(evaluated)),
    }

    def write(directory: Path, inputs: Inputs) -> Mapping[str, Any]:
        unusable, counts, people = Unusable(), Counter[str](), Counter[str]()
        outcomes: Counter[str] = Counter()

        def rows() -> Iterator[Row]:
            found = usable_preferences(workspace, unusable)
            for judged in workspace.progress(found, "preferences"):
                if judged.pair.instruction.id in evaluated:
                    counts["rows_evaluated_on"] += 1
                    continue
                outcomes[judged.preference.outcome] += 1
                people[judged.annotator] += 1
                yield judged.to_row()

        count = write_rows(directory / "preferences.jsonl", rows())
        if not count:
            raise DataError(f"{config.preferences}: all its preferences answer instructions that are evaluated on")
        counts["rows_unusable"] = unusable.rows
        return {"rows": count, "outcomes": dict(outcomes), "members": dict(people), "degraded": {}, **counts}

    return Stage("preferences", "preferences", {}, key_fields, write)


def usable_preferences(workspace: Workspace, unusable: Unusable) -> Iterator[JudgedPair]:
    """Yield the preferences that can be learned from, and count the others in `unusable`.

    Raises `DataError`: at once for a row of another shape, and at the end if others cannot be learned from and were not
    said to be dropped, or all cannot.
    """
    config, number = workspace.config, 0
    for judged in own_preferences(config.preferences, unusable):
        number += 1
        yield judged
    if not number and not unusable.rows:
        raise DataError(f"{config.preferences}: holds no preferences")
    if unusable.rows and (config.on_unusable == "error" or not number):
        advice = "mend them, or leave such rows out with --on-unusable drop" if number else "none is left"
        raise DataError(
            f"{config.preferences}: {unusable.rows} of {number + unusable.rows} preferences cannot be learned from; "
            f"{advice}:" + "".join(f"\n  {example}" for example in unusable.examples)
        )


def require_preferences(workspace: Workspace) -> None:
    """Read own preferences through before anything is trained, unless they were taken before.

    Raises `DataError` naming file, row and field. What comes over the network is left alone.
    """
    source = workspace.config.preferences
    if not source or is_on_hub(source):
        return
    key_fields = preferences_stage(workspace).key_fields_with({})
    if workspace.store.find("preferences", artifact_key(key_fields)) is None:
        for _ in usable_preferences(workspace, Unusable()):
            pass
