"""Commands that plugins add to the command line."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Collection, Iterator
from copy import copy
from pathlib import Path
from typing import Any

import pluggy
import typer
from typer.models import TyperInfo

from afarm.core.hooks import GROUP

HOOK = "register_commands"


def add_plugin_commands(app: typer.Typer, taken: Collection[str], groups: Collection[str] = ()) -> list[str]:
    """Let each plugin add its commands to `app`, but replace none that is there or `taken` by name.

    A group of commands whose name another plugin has taken, or which is one of afarm's `groups`, is added to that one.
    Returns a sentence for each thing that failed.
    """
    from afarm.core.plugins import discover

    problems = []
    before: list[Any] = []
    points = [point for point in importlib.metadata.entry_points(group=GROUP) if may_add_commands(point)]
    for plugin, error in _call_each(discover(points, kinds=()).manager, app):
        if error:
            problems.append(f"plugin {plugin!r} could not add its commands: {type(error).__name__}: {error}")
        there = {command_name(command): command for command in before}
        for command in [command for command in _commands(app) if command not in before]:
            name, is_group = command_name(command), isinstance(command, TyperInfo)
            if name not in there and (name not in taken or (is_group and name in groups)):
                there[name] = command
                continue
            if is_group and isinstance(there.get(name), TyperInfo):
                refused = [f"{name} {inner}" for inner in merge_group(there[name], command)]
            else:
                refused = [str(name)]
            app.registered_commands = [c for c in app.registered_commands if c is not command]
            app.registered_groups = [g for g in app.registered_groups if g is not command]
            problems += [f"plugin {plugin!r} may not replace the command {inner!r}" for inner in refused]
        before = _commands(app)
    return problems


def merge_group(group: TyperInfo, more: TyperInfo) -> list[str]:
    """Add the commands of `more` to a group; return the names of those that it has already.

    Those stay as they are. A help or a callback that the group lacks is that of `more`.
    """
    assert group.typer_instance is not None
    assert more.typer_instance is not None
    whole, added = copy(group.typer_instance), more.typer_instance
    taken = {command_name(command) for command in _commands(whole)}
    new = [command for command in _commands(added) if command_name(command) not in taken]
    whole.registered_commands = [*whole.registered_commands, *(c for c in added.registered_commands if c in new)]
    whole.registered_groups = [*whole.registered_groups, *(g for g in added.registered_groups if g in new)]
    whole.registered_callback = whole.registered_callback or added.registered_callback
    whole.info = whole.info if whole.info.help else added.info
    group.typer_instance = whole
    return [str(command_name(command)) for command in _commands(added) if command not in new]


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


def command_name(command: Any) -> str | None:
    """Return the name of a command, or of a group of commands, on the command line."""
    from typer.main import get_command_name, solve_typer_info_defaults

    if isinstance(command, TyperInfo):
        return solve_typer_info_defaults(command).name
    return command.name or get_command_name(command.callback.__name__)
