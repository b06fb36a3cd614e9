"""Commands that plugins add to the command line."""

from __future__ import annotations

from typing import Any

import typer

from afarm.core.plugins import Plugins


def add_plugin_commands(app: typer.Typer, plugins: Plugins) -> list[str]:
    """Let each plugin add its commands to `app`, but replace none.

    Returns a sentence for each thing that failed.
    """
    problems = []
    before = _commands(app)
    for plugin, error in plugins.call_each("register_commands", app=app):
        if error:
            problems.append(f"plugin {plugin!r} could not add its commands: {type(error).__name__}: {error}")
        taken = {_name(command) for command in before}
        for command in _commands(app):
            if command not in before and _name(command) in taken:
                app.registered_commands = [c for c in app.registered_commands if c is not command]
                app.registered_groups = [g for g in app.registered_groups if g is not command]
                problems.append(f"plugin {plugin!r} may not replace the command {_name(command)!r}")
        before = _commands(app)
    return problems


def _commands(app: typer.Typer) -> list[Any]:
    return [*app.registered_commands, *app.registered_groups]


def _name(command: Any) -> str | None:
    """Return the name of a command, or of a group of commands, on the command line."""
    from typer.main import get_command_name, solve_typer_info_defaults
    from typer.models import TyperInfo

    if isinstance(command, TyperInfo):
        return solve_typer_info_defaults(command).name
    return command.name or get_command_name(command.callback.__name__)
