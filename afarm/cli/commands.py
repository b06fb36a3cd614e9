"""The commands: afarm's own, each imported when called, plugins', and methods by name."""

from __future__ import annotations

import importlib
import os
import sys
from functools import cached_property
from typing import Any

import typer
from typer.core import TyperGroup

from afarm import experiments
from afarm.cli.command_list import BY_PLUGINS, COMMANDS, OWN, STEPS
from afarm.cli.completion import VARIABLE
from afarm.cli.console import err
from afarm.cli.help_pages import WIDEST, build_commands, write_panels
from afarm.cli.plugin_commands import add_plugin_commands, command_name, merge_group
from afarm.cli.shared_options import write_examples
from afarm.core.errors import did_you_mean
from afarm.storage.text import markup

OF_PLUGINS = ("--plugin-file", "--disable-plugin")
"""The options that every command takes, before its name or behind it."""

GROUPS = {name for name, own in OWN.items() if own.is_group}


class Commands(TyperGroup):
    """The commands, and beside them each method by its name, for its training."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Choose the plugins by the options about them, wherever they stand, and parse the other words."""
        given: dict[str, list[str]] = {option: [] for option in OF_PLUGINS}
        rest, words = list[str](), iter(args)
        for word in words:
            option, equals, value = word.partition("=")
            if option in given:
                given[option].append(
                    value if equals else next(words, "") or ctx.fail(f"{option} requires an argument.")
                )
            else:
                rest += [word, *(words if word == "--" else ())]
        if any(given.values()) or "afarm.core.plugins" in sys.modules:  # else no command chose any before
            from afarm.core.plugins import choose_plugins

            choose_plugins(*given.values())
        return super().parse_args(ctx, rest)

    def list_commands(self, ctx: Any) -> list[str]:
        """List the commands; methods are completed as well, but the help would be too long with them."""
        return list({**OWN, **self.of_plugins, **(self.methods if VARIABLE in os.environ else {})})

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of that name; None if there is none."""
        if cmd_name in self.commands:
            return self.commands[cmd_name]
        app = typer.Typer(rich_markup_mode=None)
        if cmd_name in OWN:
            own = OWN[cmd_name]
            place, _, function = (own.target or cmd_name).partition(":")
            module = importlib.import_module(f"afarm.cli.{place}")
            if own.is_group or cmd_name in STEPS:
                module.add_commands(app)
            else:
                command, examples = getattr(module, function or cmd_name), write_examples(cmd_name, *own.examples)
                command = module.with_evaluators(command) if cmd_name == "leaderboard" else command
                app.command(cmd_name, epilog=examples, no_args_is_help=own.bare_is_help)(command)
            for group in app.registered_groups:
                for more in self.plugin_app.registered_groups:  # what plugins bring for it
                    for name in merge_group(group, more) if command_name(more) == command_name(group) else ():
                        _warn(f"a plugin may not replace the command '{cmd_name} {name}'")
        else:  # of what plugins bring, the others take long to build
            app.registered_commands = [c for c in self.plugin_app.registered_commands if command_name(c) == cmd_name]
            app.registered_groups = [g for g in self.plugin_app.registered_groups if command_name(g) == cmd_name]
            if not (app.registered_commands or app.registered_groups) and (component := self.methods.get(cmd_name)):
                from afarm.cli.stage_commands import add_method

                add_method(app, cmd_name, component)
        self.commands.update(build_commands(app))
        return self.commands.get(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that `args` name, and the arguments that are left for it."""
        name = args[0]
        if not (ctx.resilient_parsing or name.startswith("-") or self.get_command(ctx, name)):
            meant = did_you_mean(name, [*self.list_commands(ctx), *self.methods])
            ctx.fail(f"No such command {name!r}.{meant if meant.endswith('?') else ' `afarm --help` lists them.'}")
        if any(word.partition("=")[0] == "--method" for word in args) and name not in OWN and name in self.methods:
            raise typer.BadParameter(f"{name!r} is the method; leave --method out")
        return super().resolve_command(ctx, args)

    @cached_property
    def plugin_app(self) -> typer.Typer:
        """The commands that plugins bring, and the groups of their own or of others that they add to."""
        app = typer.Typer(rich_markup_mode=None)
        for problem in add_plugin_commands(app, taken=OWN, groups=GROUPS):
            _warn(problem)
        return app

    @cached_property
    def of_plugins(self) -> dict[str, Any]:
        """The commands that plugins bring, but what they add to afarm's own groups."""
        return {name: command for name, command in build_commands(self.plugin_app).items() if name not in OWN}

    @cached_property
    def methods(self) -> dict[str, experiments.Component]:
        """The methods, by each name that finds one."""
        registry = experiments.discover(check_configs=False).registry
        return {name: c for c in registry if c.kind == "methods" for name in registry.list_names(c)}

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands in panels, first the pipeline's, last the plugins'."""
        panels = {title: [(name, own.summary) for name, own in group.items()] for title, group in COMMANDS.items()}
        for name, command in self.of_plugins.items():
            if not command.hidden:
                title = getattr(command, "rich_help_panel", None) or BY_PLUGINS
                panels.setdefault(title, []).append((name, command.get_short_help_str(WIDEST)))
        write_panels(formatter, panels)


def _warn(problem: str) -> None:
    err().print(f"[yellow]Warning:[/] {markup(problem)}")
