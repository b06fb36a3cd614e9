"""Commands that plugins add to the command line."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Collection
from contextlib import suppress
from copy import copy
from functools import wraps
from typing import Any

import typer
from typer.models import TyperInfo

from afarm.core.errors import attribute_failures

HOOK = "register_commands"


def add_plugin_commands(app: typer.Typer, taken: Collection[str], groups: Collection[str] = ()) -> list[str]:
    """Let each plugin add its commands to `app`; return a sentence for each thing that failed.

    Names that are `taken` cannot be replaced. Groups of one name are merged, also with afarm's own `groups`.
    """
    from afarm.core.plugins import discover, installed_entry_points

    problems = []
    manager = discover([point for point in installed_entry_points() if may_add_commands(point)], kinds=()).manager
    for implementation in manager.hook.register_commands.get_hookimpls():
        plugin, own = implementation.plugin_name, typer.Typer()
        try:
            implementation.function(app=own)
        except Exception as error:
            problems.append(f"plugin {plugin!r} could not add its commands: {type(error).__name__}: {error}")
        _attribute_commands(own, plugin)
        refused = _merge(app, own, taken, groups)
        problems += [f"plugin {plugin!r} may not replace the command {name!r}" for name in refused]
    return problems


def list_plugin_commands(manager: Any) -> dict[str, list[str]]:
    """List the commands that each plugin adds, by its name in pluggy's `manager`: "package:plugin"."""
    listed = {}
    for implementation in manager.hook.register_commands.get_hookimpls():
        app = typer.Typer()
        with suppress(Exception):  # `add_plugin_commands` says so
            implementation.function(app=app)
        apps: list[tuple[str, Any]] = [("", app)]
        apps += [(f"{command_name(group)} ", group.typer_instance) for group in app.registered_groups]
        names = [f"{prefix}{command_name(c)}" for prefix, inner in apps for c in inner.registered_commands]
        listed[implementation.plugin_name] = names
    return listed


def _attribute_commands(app: typer.Typer, plugin: str) -> None:
    """Have failures inside the commands of `app` name the plugin."""
    commands: list[Any] = [*app.registered_commands, app.registered_callback]
    for command in commands:
        # a plugin may add the same group at each start
        if command and command.callback and not hasattr(command.callback, "names_plugin"):
            command.callback = _attributed(command.callback, plugin)
    for group in app.registered_groups:
        assert group.typer_instance is not None
        _attribute_commands(group.typer_instance, plugin)


def _attributed(callback: Callable[..., Any], plugin: str) -> Callable[..., Any]:
    @wraps(callback)
    def call(*arguments: Any, **named: Any) -> Any:
        try:
            return callback(*arguments, **named)
        except Exception as error:
            if isinstance(error, OSError | typer.Abort) or hasattr(error, "exit_code"):  # typer's own, such as Exit
                raise
            with attribute_failures("plugin", plugin):
                raise

    call.__dict__["names_plugin"] = True
    return call


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
    """Add to a group what it lacks of `more`: commands, help, callback. Return the names that both have."""
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
    """Tell from a plugin's source if it may implement the hook: to import all takes half of a start.

    It may if its source cannot be read, or imports names with a star.
    """
    from afarm.core.plugins import read_source

    source = "" if point.attr else read_source(point.value)
    return not source or HOOK in source or "import *" in source


def command_name(command: Any) -> str:
    """Return the name of a command, or of a group of commands, on the command line."""
    from typer.main import get_command_name, solve_typer_info_defaults

    if isinstance(command, TyperInfo):
        return str(solve_typer_info_defaults(command).name)
    return str(command.name or get_command_name(command.callback.__name__))
