"""Names given without the option that they belong to: they are refused, with that option."""

from __future__ import annotations

from typing import Annotated

import typer

from afarm.core.errors import ConfigError

Stray = Annotated[str | None, typer.Argument(hidden=True)]
"""No command that has it takes such an argument: who writes one means an option, and is told which."""

NAMED_BY_OPTION = {
    "methods": "--method",
    "annotators": "--annotator",
    "reward_models": "--reward-model",
    "judges": "--judge",
    "datasets": "--dataset",
    "evaluators": "--evaluator",
}
"""The options that take a component's name, by its kind."""


def refuse_stray(name: str | None) -> None:
    """Raise `ConfigError` naming the option that a component's name belongs to, or that none is called so."""
    if name is None:
        return
    if named := [f"{option} {name}" for option in options_of(name)]:
        raise ConfigError([f"{name!r} must be named by its option: {' or '.join(named)}"])
    raise typer.BadParameter(f"Got unexpected extra argument ({name})")


def options_of(name: str) -> list[str]:
    """The options that take `name`, where a recipe or a component is called so."""
    from afarm.core.plugins import discover
    from afarm.experiment.recipe import recipe_names

    registry = discover(check_configs=False).registry
    kinds = {c.kind for c in registry if name in registry.names_of(c)}
    recipe = ["--recipe"] if name in recipe_names() else []
    return recipe + [option for kind, option in NAMED_BY_OPTION.items() if kind in kinds]
