"""The stage of one's own preferences, which stand in for samples and labels: nobody is asked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from afarm.core.errors import DataError
from afarm.core.seeding import digest
from afarm.experiment.stage import Inputs, Stage
from afarm.experiment.stage_code import code_identity
from afarm.experiment.workspace import Workspace
from afarm.storage.artifacts import artifact_key
from afarm.storage.hub import is_on_hub
from afarm.storage.model_files import special_tokens


def preferences_stage(workspace: Workspace) -> Stage:
    """The preferences of the recipe's file or data set of the Hub, in afarm's rows.

    Pairs whose instruction is evaluated on are left out. Its key has a digest of the source's content.
    """
    config, own = workspace.config, workspace.data.own_preferences
    key_fields: dict[str, Any] = {  # neither seed nor device changes them
        "stage": "preferences",
        "afarm": code_identity("preferences"),
        "data": own.digest,
        "on_unusable": config.on_unusable,
        "labels": config.labels,
        "evaluated": digest(sorted({task.id for task in workspace.data.evaluated_tasks()})),
    }
    if special := sorted(special_tokens(config.model)):
        key_fields["special_tokens"] = special

    def write(directory: Path, inputs: Inputs) -> Mapping[str, Any]:
        require_learnable(workspace, own.summary)
        own.write_preferences(directory / "preferences.jsonl")
        return own.summary

    return Stage("preferences", "preferences", {}, key_fields, write)


def require_learnable(workspace: Workspace, summary: Mapping[str, Any]) -> None:
    """Raise `DataError` if no pair has a better output, and no learner is set to `keep_draws`."""
    outcomes, evaluated_on = summary["outcomes"], summary.get("rows_evaluated_on")
    draws, total = outcomes.get("draw", 0), sum(outcomes.values())
    sections = workspace.settings.sections.values()
    if outcomes.get("decided") or (draws and any(section.get("keep_draws") for section in sections)):
        return
    learners = (("methods", workspace.config.method), ("reward_models", workspace.config.reward_model))
    components = [workspace.components.component(kind, name) for kind, name in learners] if draws else []
    keeping = [c.name for c in components if c.config and "keep_draws" in c.config.model_fields]
    left_out = f", with an instruction that is evaluated on {evaluated_on}" if evaluated_on else ""
    raise DataError(
        f"{workspace.config.preferences}: nothing to learn from: draws {draws}, without a label {total - draws}"
        f"{left_out}; say in each row which output is better: label 1 or 2, or a 'chosen' unlike its 'rejected'"
        + "".join(f"; or learn from the draws with --set {name}.keep_draws=true" for name in keeping)
    )


def require_preferences(workspace: Workspace) -> None:
    """Read own preferences through before anything is trained, unless they were taken before.

    Raises `DataError` naming file, row and field. What comes over the network is left alone.
    """
    source = workspace.config.preferences
    if not source or is_on_hub(source):
        return
    stored = workspace.store.find("preferences", artifact_key(preferences_stage(workspace).build_key_fields({})))
    require_learnable(workspace, stored.meta["summary"] if stored else workspace.data.own_preferences.summary)
    for note in stored.meta["summary"].get("notes", ()) if stored else ():
        workspace.components.notify(note)
