"""Help pages of commands, and errors of usage, in plain words.

Panels and examples are Typer's `rich_help_panel` and `epilog`. Typer draws them with Rich alone, whose import takes as
long as the rest of a start: here Click's plain formatter does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.models import DefaultPlaceholder

from afarm.cli.given_settings import refuse_stray
from afarm.storage.text import visible

VALUES: Mapping[str, str] = {"int": "N", "float": "NUMBER", "str": "TEXT"}
"""Words for the values of options that declare no `metavar`, by type."""

WIDEST = 200
"""Characters of a command's line in its group's help."""

FINDINGS: Mapping[str, str] = {
    "Value error, ": "",
    "Input should be a valid integer.*": "must be a whole number",
    "Input should be a (valid|finite) number.*": "must be a number",
    "Input should be greater than or equal to": "must be at least",
    "Input should be less than or equal to": "must be at most",
    "Input should be": "must be",
}
"""Findings of pydantic about options, as regular expressions, in the words for settings."""


def arrange(app: typer.Typer) -> None:
    """Let every command of an application, and of its groups, have these pages."""
    for command in app.registered_commands:
        command.cls = Page
    for group in app.registered_groups:
        if group.typer_instance is not None:
            own: Any = group.typer_instance.info.cls
            group.cls = GroupPage if isinstance(own, DefaultPlaceholder) else type(own.__name__, (own, GroupPage), {})
            arrange(group.typer_instance)


def build_commands(app: typer.Typer) -> dict[str, Any]:
    """Return an application's commands as Click has them, with these pages."""
    arrange(app)
    return dict(typer.main.get_group(app).commands)


def write_panels(formatter: Any, panels: Mapping[str, list[tuple[str, str]]]) -> None:
    for title, rows in panels.items():
        if rows:
            with formatter.section(title):
                formatter.write_dl(rows)


class GroupPage(TyperGroup):
    """A group whose help gives each command its whole line."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                rows = panels.setdefault(getattr(command, "rich_help_panel", None) or "Commands", [])
                rows.append((name, command.get_short_help_str(WIDEST)))
        write_panels(formatter, panels)


class Page(TyperCommand):
    """A command whose help has panels, and whose errors of usage are in plain words."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        try:
            return super().make_context(info_name, args, parent, **extra)
        except typer.BadParameter as error:
            for finding, words in FINDINGS.items():
                error.message = re.sub(finding, words, error.message)
            raise

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words of a command line; of a name without its option say which option that is."""
        allowed, ctx.allow_extra_args = ctx.allow_extra_args, True
        extra = super().parse_args(ctx, args)
        if extra and not (allowed or ctx.resilient_parsing):
            refuse_stray(extra[0], [option for param in self.params for option in param.opts])
            ctx.fail(f"Got unexpected extra argument{'s' if len(extra) > 1 else ''} ({visible(' '.join(extra))})")
        return extra

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            if record := param.get_help_record(ctx):
                own = "Arguments" if param.param_type_name == "argument" else "Options"
                rows = panels.setdefault(getattr(param, "rich_help_panel", None) or own, [])
                rows.append((re.sub("<(.+)>", name_value, record[0]), _write_bounds(record[1])))
        write_panels(formatter, panels)


def name_value(typed: re.Match[str]) -> str:
    """Return the word for the value of an option from its `<type>`."""
    kind = typed[1].removeprefix("list[").removesuffix("]").removesuffix(" range")
    return kind if "|" in kind else VALUES.get(kind, kind.upper())


def _write_bounds(text: str) -> str:
    """Write the default and the bounds that end a line of help as a sentence would: "0 to 0.5"."""
    text = re.sub(r"\[default: \(([^)]*)\)", r"[default: \1", text)
    text = re.sub(r"([\d.]+)<=x<=([\d.]+)\]$", r"\1 to \2]", text)
    return re.sub(r"x>=([\d.]+)\]$", r"at least \1]", text)
