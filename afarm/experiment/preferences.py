"""The stage of one's own preferences, which stand in for samples and labels: nobody is asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
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
    key_fields = {  # neither seed nor device changes them
        "stage": "preferences",
        "afarm": code_digest("preferences"),
        "data": source_digest_of(config.preferences),
        "on_unusable": config.on_unusable,
        "labels": config.labels,
        "evaluated": digest(sorted(workspace.data.evaluated())),
    }

    def write(directory: Path, inputs: Inputs) -> Mapping[str, Any]:
        tally, people = PreferenceCounts(), Counter[str]()

        def rows() -> Iterator[Row]:
            for judged in workspace.progress(usable_preferences(workspace, tally), "preferences"):
                people[judged.annotator] += 1
                yield judged.to_row()

        count = write_rows(directory / "preferences.jsonl", rows())
        left_out = {"rows_evaluated_on": tally.evaluated_on} if tally.evaluated_on else {}
        left_out["rows_unusable"] = tally.unusable.rows
        counted = {"rows": count, "outcomes": dict(tally.outcomes), "members": dict(people), "degraded": {}}
        return {"source": config.preferences, **counted, **left_out}

    return Stage("preferences", "preferences", {}, key_fields, write)


@dataclass(slots=True)
class PreferenceCounts:
    """The rows of own preferences: the outcomes of those that are taken, and the others."""

    outcomes: Counter[str] = field(default_factory=Counter)
    evaluated_on: int = 0
    unusable: Unusable = field(default_factory=Unusable)


def usable_preferences(workspace: Workspace, tally: PreferenceCounts) -> Iterator[JudgedPair]:
    """Yield the preferences that are taken, and count them and the others in `tally`.

    Raises `DataError`: at once for a row of another shape, and at the end if others cannot be learned from and were not
    said to be dropped, or if nothing is left to learn from.
    """
    config, number, unusable = workspace.config, 0, tally.unusable
    evaluated = workspace.data.evaluated()
    for judged in own_preferences(config.preferences, unusable, scale=config.labels):
        number += 1
        if judged.pair.instruction.id in evaluated:
            tally.evaluated_on += 1
            continue
        tally.outcomes[judged.preference.outcome] += 1
        yield judged
    if not number and not unusable.rows:
        raise DataError(f"{config.preferences}: holds no preferences")
    if unusable.rows and (config.on_unusable == "error" or not number):
        advice = "mend them, or leave such rows out with --on-unusable drop" if number else "none is left"
        raise DataError(
            f"{config.preferences}: {unusable.rows} of {number + unusable.rows} preferences cannot be learned from; "
            f"{advice}:" + "".join(f"\n  {example}" for example in unusable.examples)
        )
    if tally.evaluated_on == number:
        raise DataError(f"{config.preferences}: all its preferences answer instructions that are evaluated on")
    require_learnable(workspace, tally.outcomes, tally.evaluated_on)


def require_learnable(workspace: Workspace, outcomes: Mapping[str, int], evaluated_on: int = 0) -> None:
    """Raise `DataError` if no pair has a better output, and no learner is set to `keep_draws`."""
    draws, total = outcomes.get("draw", 0), sum(outcomes.values())
    sections = workspace.settings.sections.values()
    if outcomes.get("decided") or (draws and any(section.get("keep_draws") for section in sections)):
        return
    left_out = f", with an instruction that is evaluated on {evaluated_on}" if evaluated_on else ""
    raise DataError(
        f"{workspace.config.preferences}: nothing to learn from: draws {draws}, without a label {total - draws}"
        f"{left_out}; say in each row which output is better: label 1 or 2, or a 'chosen' unlike its 'rejected'"
        + "".join(f"; or learn from the draws with --set {name}.keep_draws=true" for name in _keep_draws(workspace))
    )


def _keep_draws(workspace: Workspace) -> Iterator[str]:
    """Yield the run's learners that can be set to learn from draws."""
    config = workspace.config
    for kind, name in (("methods", config.method), ("reward_models", config.reward_model)):
        component = workspace.components.component(kind, name)
        if component.config and "keep_draws" in component.config.model_fields:
            yield component.name


def require_preferences(workspace: Workspace) -> None:
    """Read own preferences through before anything is trained, unless they were taken before.

    Raises `DataError` naming file, row and field. What comes over the network is left alone.
    """
    source = workspace.config.preferences
    if not source or is_on_hub(source):
        return
    key_fields = preferences_stage(workspace).key_fields_with({})
    if stored := workspace.store.find("preferences", artifact_key(key_fields)):
        require_learnable(workspace, stored.meta["summary"]["outcomes"])
    else:
        for _ in usable_preferences(workspace, PreferenceCounts()):
            pass
