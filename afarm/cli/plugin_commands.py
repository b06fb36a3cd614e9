"""Commands that plugins add to the command line."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pluggy
import typer

from afarm.core.hooks import GROUP

HOOK = "register_commands"


def add_plugin_commands(app: typer.Typer, taken: Collection[str]) -> list[str]:
    """Let each plugin add its commands to `app`, but replace none that is there or `taken` by name.

    Returns a sentence for each thing that failed.
    """
    from afarm.core.plugins import discover

    problems = []
    before = _commands(app)
    names = {*taken, *map(_name, before)}
    points = [point for point in importlib.metadata.entry_points(group=GROUP) if may_add_commands(point)]
    for plugin, error in _call_each(discover(points, kinds=()).manager, app):
        if error:
            problems.append(f"plugin {plugin!r} could not add its commands: {type(error).__name__}: {error}")
        for command in _commands(app):
            if command not in before and _name(command) in names:
                app.registered_commands = [c for c in app.registered_commands if c is not command]
                app.registered_groups = [g for g in app.registered_groups if g is not command]
                problems.append(f"plugin {plugin!r} may not replace the command {_name(command)!r}")
        before = _commands(app)
        names |= {*map(_name, before)}
    return problems


def _call_each(manager: pluggy.PluginManager, app: typer.Typer) -> Iterator[tuple[str, Exception | None]]:
    """Call the hook of one plugin after another, and yield each one's name and failure before the next."""
    implementing = {impl.plugin_name for impl in manager.hook.register_commands.get_hookimpls()}
    for name, module in manager.list_name_plugin():
        if name in implementing:
            others = [plugin for plugin in manager.get_plugins() if plugin is not module]
            try:
                manager.subset_hook_caller(HOOK, others)(app=app)
            except Exception as error:
                yield name, error
            else:
                yield name, None


def may_add_commands(point: importlib.metadata.EntryPoint) -> bool:
    """Judge by its source, without importing it, if a plugin may implement the hook.

    Most do not, and importing them takes half of a start. One whose source cannot be read may, and so may one that
    imports names without naming them.
    """
    if point.attr:
        return True
    try:
        spec = importlib.util.find_spec(point.module)
        source = Path(spec.origin or "").read_bytes() if spec else b""
    except (ImportError, ValueError, OSError):
        return True
    is_source = bool(spec and (spec.origin or "").endswith(".py"))
    return not is_source or HOOK.encode() in source or b"import *" in source


def _commands(app: typer.Typer) -> list[Any]:
    return [*app.registered_commands, *app.registered_groups]


def _name(command: Any) -> str | None:
    """Return the name of a command, or of a group of commands, on the command line."""
    from typer.main import get_command_name, solve_typer_info_defaults
    from typer.models import TyperInfo

    if isinstance(command, TyperInfo):
        return solve_typer_info_defaults(command).name
    return command.name or get_command_name(command.callback.__name__)
