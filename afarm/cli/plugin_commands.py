"""Commands that plugins add to the command line."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Collection
from copy import copy
from pathlib import Path
from typing import Any

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
    points = [point for point in importlib.metadata.entry_points(group=GROUP) if may_add_commands(point)]
    manager = discover(points, kinds=()).manager
    implementing = {impl.plugin_name for impl in manager.hook.register_commands.get_hookimpls()}
    for plugin, module in manager.list_name_plugin():
        if plugin not in implementing:
            continue
        own = typer.Typer()
        try:
            others = [other for other in manager.get_plugins() if other is not module]
            manager.subset_hook_caller(HOOK, others)(app=own)
        except Exception as error:
            problems.append(f"plugin {plugin!r} could not add its commands: {type(error).__name__}: {error}")
        refused = _merge(app, own, taken, groups)
        problems += [f"plugin {plugin!r} may not replace the command {name!r}" for name in refused]
    return problems


def _merge(app: typer.Typer, more: typer.Typer, taken: Collection[str] = (), groups: Collection[str] = ()) -> list[str]:
    """Add the commands of `more` to `app`; return the names that are taken. Groups of one name merge."""
    refused = []
    there: dict[str, Any] = {command_name(c): c for c in [*app.registered_commands, *app.registered_groups]}
    added: list[Any] = [*more.registered_commands, *more.registered_groups]
    for command in added:
        name, is_group = command_name(command), isinstance(command, TyperInfo)
        if is_group and isinstance(there.get(name), TyperInfo):
            refused += [f"{name} {inner}" for inner in merge_group(there[name], command)]
        elif name in there or (name in taken and not (is_group and name in groups)):
            refused.append(name)
        else:
            there[name] = command
            (app.registered_groups if is_group else app.registered_commands).append(command)
    return refused


def merge_group(group: TyperInfo, more: TyperInfo) -> list[str]:
    """Add the commands of `more` to a group; return the names of those that it has already.

    Those stay as they are. A help or a callback that the group lacks is that of `more`.
    """
    assert group.typer_instance is not None
    assert more.typer_instance is not None
    whole, added = copy(group.typer_instance), more.typer_instance
    whole.registered_commands, whole.registered_groups = [*whole.registered_commands], [*whole.registered_groups]
    refused = _merge(whole, added)
    whole.registered_callback = whole.registered_callback or added.registered_callback
    whole.info = whole.info if whole.info.help else added.info
    group.typer_instance = whole
    return refused


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


def command_name(command: Any) -> str:
    """Return the name of a command, or of a group of commands, on the command line."""
    from typer.main import get_command_name, solve_typer_info_defaults

    if isinstance(command, TyperInfo):
        return str(solve_typer_info_defaults(command).name)
    return str(command.name or get_command_name(command.callback.__name__))
