"""`afarm plugins` and `afarm recipes`: lists of what is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from afarm.cli.completion import complete_components, complete_recipes
from afarm.cli.console import out, print_json
from afarm.cli.shared_options import Json, write_examples
from afarm.core.errors import AfarmError, PluginError, did_you_mean
from afarm.core.hooks import KINDS
from afarm.storage.text import markup


def add_commands(app: typer.Typer) -> None:
    app.command("plugins", epilog=write_examples("plugins", "", "--json"))(plugins)
    app.command("recipes", epilog=write_examples("recipes", "", "toy"))(recipes)


def plugins(
    check: Annotated[
        str | None,
        typer.Option(
            "--check",
            autocompletion=complete_components,
            help="Instead: hold this component, by its name or KIND/NAME[:SPEC], to what its interface promises.",
            metavar="NAME",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List every plugin, and why a broken one is broken."""
    from afarm.core.plugins import discover

    if check is not None:
        _check(check)
        return
    found = discover().found
    if as_json:
        rows: list[dict[str, Any]] = [
            {
                "plugin": p.name,
                "package": p.package,
                "version": p.version,
                "error": p.error,
                "components": [
                    {"kind": KINDS[c.kind], "name": c.full_name, "summary": c.summary} for c in p.components
                ],
            }
            for p in found
        ]
        print_json(rows)
        return
    for plugin in found:
        out().print(
            f"[bold]{markup(plugin.name)}[/]  [dim]{markup(plugin.package)} {plugin.version}[/]", highlight=False
        )
        if plugin.error:
            out().print(f"  [red]broken[/]  {markup(plugin.error)}", highlight=False)
        for component in plugin.components:
            kind = f"{KINDS[component.kind]:<12}"
            summary = f"[dim]{markup(component.summary)}[/]"
            out().print(
                f"  {kind}  [bold]{markup(component.full_name):<16}[/]  {summary}", highlight=False, soft_wrap=True
            )
        if not plugin.components and not plugin.error:
            out().print("  commands only")
    broken = sum(bool(plugin.error) for plugin in found)
    out().print(f"{len(found)} plugins" + (f", {broken} broken" if broken else ""), highlight=False)


def _check(name: str) -> None:
    """Check the components of that name, of whatever kinds. Exits with 1 if one breaks a promise."""
    import tempfile

    from afarm.core.plugins import discover
    from afarm.testing import ConformanceError, check_component

    plain, _, spec = name.partition(":")
    kind, _, short = plain.partition("/")
    registry = discover().registry
    found = [
        c
        for c in registry
        if plain in registry.list_names(c) or (kind in (c.kind, KINDS[c.kind]) and short in registry.list_names(c))
    ]
    if not found:
        known = [short_name for c in registry for short_name in registry.list_names(c)]
        raise PluginError(f"no component is called {plain!r}.{did_you_mean(plain, known)} `afarm plugins` lists them.")
    broken = 0
    for component in found:
        title = f"{KINDS[component.kind]} {component.full_name}"
        with tempfile.TemporaryDirectory() as directory:
            try:
                check_component(component, Path(directory), spec=spec)
            except (AfarmError, ConformanceError) as error:
                out().print(f"[red]✗[/] {markup(title)}: {markup(str(error))}", highlight=False, soft_wrap=True)
                broken += 1
            else:
                out().print(f"[green]✓[/] {markup(title)} keeps what its interface promises", highlight=False)
    if broken:
        raise typer.Exit(1)


def recipes(
    name: Annotated[
        str | None, typer.Argument(autocompletion=complete_recipes, help="Show this recipe in full.")
    ] = None,
) -> None:
    """List the recipes, or show one."""
    import yaml
    from rich.table import Table

    from afarm.experiment.recipe import read_recipe, recipe_names

    if name is not None:
        out().print(
            yaml.safe_dump(read_recipe(name), sort_keys=False, allow_unicode=True), markup=False, highlight=False
        )
        return
    table = Table("recipe", "what it is")
    for recipe in recipe_names():
        table.add_row(recipe, markup(str(read_recipe(recipe).get("summary", ""))))
    out().print(table)
