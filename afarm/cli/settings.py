"""`afarm settings`: the settings of the run and of each plugin, with defaults and a recipe's values."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from afarm.cli.console import out
from afarm.cli.options import Json
from afarm.core.hooks import KINDS
from afarm.storage.text import markup

if TYPE_CHECKING:
    from afarm.core.plugins import Plugins
    from afarm.experiment.setting_list import ListedSetting


def add_to(app: typer.Typer) -> None:
    app.command("settings")(settings)


def settings(
    section: Annotated[
        str | None, typer.Argument(help="A section, such as ppo, judge or run; without one, all are listed.")
    ] = None,
    recipe: Annotated[
        str | None, typer.Option("--recipe", help="A recipe, whose values stand beside the defaults.")
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
    values = read_recipe(recipe) if recipe else {}
    of_recipe = values if RUN in listed else values.get(section, {})
    if as_json:
        rows = [
            {"of": owner, **asdict(row), "recipe": at(of_recipe, row.name)}
            for owner, settings_of_one in listed.items()
            for row in settings_of_one
        ]
        sys.stdout.write(json.dumps(rows, ensure_ascii=False) + "\n")
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
        sys.stdout.write(json.dumps(owners) + "\n")
        return
    for name, owner in owners.items():
        out().print(f"[bold]{markup(name):<24}[/] [dim]{markup(owner)}[/]", highlight=False)
    out().print("`afarm settings NAME` lists the settings of one.", markup=False, highlight=False)


def _show(
    owner: str, rows: Sequence[ListedSetting], prefix: str, recipe: str | None, of_recipe: Mapping[str, Any]
) -> None:
    from rich.table import Column, Table

    from afarm.experiment.setting_list import value_text

    columns = [Column("setting", overflow="fold"), Column("default", overflow="fold")]
    columns += [Column(markup(recipe), overflow="fold")] if recipe else []
    table = Table(*columns, Column("", ratio=1), title=markup(owner), title_justify="left", box=None, expand=True)
    for row in rows:
        value = at(of_recipe, row.name)
        cells = [f"[bold]{markup(prefix + row.name)}[/]", markup(row.default)]
        cells += [markup(value_text(value)) if value is not None else ""] if recipe else []
        about = markup(row.description) + ("" if row.changes_result else " [dim](changes no result)[/]")
        table.add_row(*cells, about)
    out().print(table)


def at(values: Any, name: str) -> Any:
    """Return the value at a dotted name; None if there is none."""
    for part in name.split("."):
        values = values.get(part) if isinstance(values, Mapping) else None
    return values
