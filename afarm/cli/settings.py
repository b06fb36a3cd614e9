"""`afarm settings`: the settings of the run and of each plugin, with defaults and a recipe's values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from afarm.cli.completion import complete_recipes, complete_sections
from afarm.cli.console import out, print_json
from afarm.cli.shared_options import Json, write_examples
from afarm.core.hooks import KINDS
from afarm.storage.text import markup

if TYPE_CHECKING:
    from afarm.core.plugins import Plugins
    from afarm.experiment.setting_list import ListedSetting


NARROWEST = 30
"""Characters that a description needs to stand in a column of its own."""
GAPS = 6
"""Blanks between the columns of a table of settings, for up to three columns before the description."""


def add_commands(app: typer.Typer) -> None:
    app.command("settings", epilog=write_examples("settings", "ppo", "dpo --recipe paper"))(settings)


def settings(
    section: Annotated[
        str | None,
        typer.Argument(
            autocompletion=complete_sections,
            help="A section (ppo, judge, run) or a setting (ppo.kl_coef); without one, all sections are listed.",
        ),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            "--recipe",
            autocompletion=complete_recipes,
            help="A recipe, whose values stand beside the defaults.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the settings of a method, a judge, any plugin or the run, for --set and recipes."""
    from afarm.core.plugins import discover
    from afarm.experiment.recipe import read_recipe
    from afarm.experiment.setting_list import RUN, section_settings

    plugins = discover()
    if section is None:
        _show_sections(plugins, as_json)
        return
    listed = section_settings(section, plugins)
    section = section.partition(".")[0]
    values = read_recipe(recipe) if recipe else {}
    of_recipe = values if RUN in listed else values.get(section, {})
    if as_json:
        rows = [
            {"of": owner, **asdict(row), "recipe": at(of_recipe, row.name)}
            for owner, settings_of_one in listed.items()
            for row in settings_of_one
        ]
        print_json(rows)
        return
    prefix = "" if RUN in listed else f"{section}."
    for owner, settings_of_one in listed.items():
        _show(owner, settings_of_one, prefix, recipe, of_recipe)


def _show_sections(plugins: Plugins, as_json: bool) -> None:
    from afarm.experiment.setting_list import RUN, sections

    owners = {RUN: "the run itself"}
    for name, components in sections(plugins).items():
        owners[name] = ", ".join(dict.fromkeys(f"{KINDS[c.kind]} of {c.package}" for c in components))
    if as_json:
        print_json(owners)
        return
    for name, owner in owners.items():
        out().print(f"[bold]{markup(name):<24}[/] [dim]{markup(owner)}[/]", highlight=False)
    out().print("`afarm settings NAME` lists the settings of one.", markup=False, highlight=False)


def _show(
    owner: str, rows: Sequence[ListedSetting], prefix: str, recipe: str | None, of_recipe: Mapping[str, Any]
) -> None:
    """Print a table or, if it would leave descriptions no room, each setting with its description below."""
    from rich.padding import Padding
    from rich.table import Column, Table

    from afarm.experiment.setting_list import value_text

    headings = ["setting", "default", *([recipe] if recipe else [])]
    lines, abouts = [], []
    for row in rows:
        value = at(of_recipe, row.name)
        lines.append([prefix + row.name, row.default])
        lines[-1] += [value_text(value) if value is not None else ""] if recipe else []
        abouts.append(markup(row.description) + ("" if row.changes_result else " [dim](changes no result)[/]"))
    taken = sum(max(map(len, column)) for column in zip(headings, *lines, strict=True))
    if out().width - taken - GAPS < NARROWEST:
        out().print(f"[italic]{markup(owner)}[/]")
        for (name, default, *values), about in zip(lines, abouts, strict=True):
            of_one = "".join(f" ({markup(f'{recipe}: {value}')})" for value in values if value)
            out().print(f"[bold]{markup(name)}[/] = {markup(default)}{of_one}", highlight=False)
            out().print(Padding(about, (0, 0, 0, 4)), highlight=False)
        return
    columns = [Column(markup(heading), overflow="fold") for heading in headings]
    table = Table(*columns, Column("", ratio=1), title=markup(owner), title_justify="left", box=None, expand=True)
    for (name, *cells), about in zip(lines, abouts, strict=True):
        table.add_row(f"[bold]{markup(name)}[/]", *map(markup, cells), about)
    out().print(table)


def at(values: Any, name: str) -> Any:
    """Return the value at a dotted name; None if there is none."""
    for part in name.split("."):
        values = values.get(part) if isinstance(values, Mapping) else None
    return values
