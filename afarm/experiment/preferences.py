"""The stage of one's own preferences, which stand in for samples and labels: nobody is asked."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from afarm.core.errors import AfarmError, ConfigError, DataError
from afarm.core.seeding import digest
from afarm.experiment.own_preferences import DOWN, UP
from afarm.experiment.stage import Inputs, Stage
from afarm.experiment.stage_code import code_identity
from afarm.experiment.workspace import Workspace
from afarm.storage.artifacts import artifact_key
from afarm.storage.hub import is_on_hub
from afarm.storage.model_files import special_tokens


def preferences_stage(workspace: Workspace) -> Stage:
    """The pairs or thumbs of the recipe's file or data set of the Hub, in afarm's rows.

    Rows whose instruction is evaluated on are left out. Its key has a digest of the source's content.
    """
    config, own = workspace.config, workspace.data.own_preferences
    kind = "feedback" if own.is_feedback else "preferences"
    key_fields: dict[str, Any] = {  # neither seed nor device changes them
        "stage": kind,
        "afarm": code_identity(kind),
        "data": own.digest,
        "on_unusable": config.on_unusable,
        "labels": config.labels,
        "evaluated": digest(sorted({task.id for task in workspace.data.evaluated_tasks()})),
    }
    if special := sorted(special_tokens(config.model)):
        key_fields["special_tokens"] = special

    def write(directory: Path, inputs: Inputs) -> Mapping[str, Any]:
        require_learnable(workspace, own.summary)
        own.write_preferences(directory / f"{kind}.jsonl")
        return own.summary

    return Stage(kind, kind, {}, key_fields, write)


def require_pairs(workspace: Workspace, learner: str) -> None:
    """Raise `ConfigError` if own preferences are unpaired feedback, for a `learner` of pairs."""
    if not workspace.config.preferences or not workspace.data.own_preferences.is_feedback:
        return
    names = list[str]()
    for component in workspace.components.plugins.registry:
        with suppress(AfarmError):  # one that cannot be loaded is an error where it is named
            if component.kind == "methods" and "feedback" in component.load().needs:
                names.append(component.name)
    taken = f"--method {' or '.join(names)} learns from it" if names else "no method that is installed learns from it"
    raise ConfigError(
        f"{workspace.config.preferences}: holds unpaired feedback (a prompt, one answer, a label), and {learner} takes "
        f"pairs: put a better and a worse answer to each prompt into one row; {taken}"
    )


def lacks_reward_model(workspace: Workspace) -> bool:
    """Tell if the run's reward model is fitted to pairs, and own preferences are none."""
    config = workspace.config
    is_fitted = bool(workspace.components.learned_part(config.reward_model))
    return is_fitted and bool(config.preferences) and workspace.data.own_preferences.is_feedback


def require_learnable(workspace: Workspace, summary: Mapping[str, Any]) -> None:
    """Raise `DataError` if thumbs are alike, or no pair has a better output and none may `keep_draws`."""
    outcomes, evaluated_on = summary["outcomes"], summary.get("rows_evaluated_on")
    thumbs = [thumb for thumb in (UP, DOWN) if thumb in outcomes]
    if len(thumbs) == 1:
        raise DataError(
            f"{workspace.config.preferences}: all {outcomes[thumbs[0]]} thumbs are {'up' if UP in thumbs else 'down'}: "
            "add rows of the other label; good outputs alone are demonstrations (--data, `afarm sft`)"
        )
    draws, total = outcomes.get("draw", 0), sum(outcomes.values())
    sections = workspace.settings.sections.values()
    if {"decided", *thumbs} & {*outcomes} or (draws and any(section.get("keep_draws") for section in sections)):
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
    stage, config = preferences_stage(workspace), workspace.config
    evaluators = {name: workspace.components.evaluator(name) for name in config.evaluate.evaluators}
    scored = [name for name, evaluator in evaluators.items() if "reward_model" in evaluator.needs]
    needs = workspace.components.method(config.method).needs
    if scored and lacks_reward_model(workspace) and not {"preferences", "reward_model"} & needs:  # which are refused
        workspace.components.notify(
            f"{source}: no reward model is fitted to unpaired feedback, so the figures of {', '.join(scored)} are left "
            "out; --reward-model can name one that needs no fitting"
        )
    stored = workspace.store.find(stage.kind, artifact_key(stage.build_key_fields({})))
    require_learnable(workspace, stored.meta["summary"] if stored else workspace.data.own_preferences.summary)
    for note in stored.meta["summary"].get("notes", ()) if stored else ():
        workspace.components.notify(note)
