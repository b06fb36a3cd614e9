"""Names given without the option that they belong to: they are refused, with that option."""

from __future__ import annotations

from collections.abc import Collection

from afarm.core.errors import ConfigError

NAMED_BY_OPTION = {
    "recipes": "--recipe",
    "methods": "--method",
    "annotators": "--annotator",
    "reward_models": "--reward-model",
    "judges": "--judge",
    "datasets": "--dataset",
    "evaluators": "--evaluator",
}
"""The options that take the name of a recipe or a component, by its kind."""


def refuse_stray(name: str, options: Collection[str]) -> None:
    """Raise `ConfigError` if one of a command's `options` takes `name`: that of a component or a recipe."""
    from afarm.core.plugins import discover
    from afarm.experiment.recipe import recipe_names

    registry = discover(check_configs=False).registry
    kinds = {c.kind for c in registry if name in registry.list_names(c)}
    kinds |= {"recipes"} if name in recipe_names() else set()
    taking = [option for kind, option in NAMED_BY_OPTION.items() if kind in kinds]
    if named := [f"{option} {name}" for option in taking if option in options]:
        raise ConfigError([f"{name!r} must be named by its option: {' or '.join(named)}"])
