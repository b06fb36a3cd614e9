"""`afarm plugins`, `recipes` and `settings`: lists of what is installed and of what can be set."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import Distribution
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
import yaml

from afarm.cli.completion import complete_components, complete_recipes, complete_sections
from afarm.cli.console import out, print_json
from afarm.cli.plugin_commands import list_plugin_commands
from afarm.cli.shared_options import Json, option
from afarm.cli.tables import print_table
from afarm.core.errors import AfarmError, PluginError, did_you_mean
from afarm.core.hooks import KINDS
from afarm.core.plugins import DISABLED, Plugin, Plugins, discover, installed_entry_points, name_as_pip
from afarm.core.registry import FIRST_PARTY, Component
from afarm.experiment.plugin_code import plugin_digest, plugin_files
from afarm.experiment.recipe import plugin_recipes, read_recipe, recipe_names, settings_for
from afarm.experiment.setting_list import RUN, listed_settings, section_settings, sections, value_text
from afarm.storage.text import markup

PAGES = ("documentation", "homepage", "repository")
"""The links of a distribution's metadata that can be its page, the best first."""


def plugins(
    name: Annotated[
        str | None,
        typer.Argument(autocompletion=complete_components, help="Show this plugin, package or component in full."),
    ] = None,
    check: Annotated[
        str | None,
        option(
            "--check NAME",
            "Instead: hold this component, by its name or KIND/NAME[:SPEC], to what its interface promises.",
            complete_components,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List every plugin, and why a broken one is broken, or show one."""
    if check is not None:
        _check(check)
        return
    plugins = discover()
    if name is not None:
        described = describe_plugins(name, plugins)
        print_json(described) if as_json else _print_yaml(without_empty(described))
        return
    found, commands = plugins.found, list_plugin_commands(plugins.manager)
    if as_json:
        rows: list[dict[str, Any]] = []
        for p in found:
            parts = [{"kind": KINDS[c.kind], "name": c.full_name, "summary": c.summary} for c in p.components]
            row = {"plugin": p.name, "package": p.package, "version": p.version, "error": p.error, "notes": p.notes}
            rows.append({**row, "components": parts, "commands": commands.get(f"{p.package}:{p.name}", [])})
        print_json(rows)
        return
    for plugin in found:
        out().print(f"[bold]{markup(plugin.name)}[/]  [dim]{markup(plugin.package)} {plugin.version}[/]")
        if plugin.error == DISABLED:
            out().print(f"  [yellow]{DISABLED}[/]")
        elif plugin.error:
            out().print(f"  [red]broken[/]  {markup(plugin.error)}")
        for note in plugin.notes:
            out().print(f"  [yellow]note[/]  it {markup(note)}")
        for component in plugin.components:
            name = f"[bold]{markup(component.full_name):<16}[/]"
            out().print(f"  {KINDS[component.kind]:<12}  {name}  [dim]{markup(component.summary)}[/]")
        for command in commands.get(f"{plugin.package}:{plugin.name}", []):
            out().print(f"  {'command':<12}  [bold]{markup(command)}[/]")
    broken = sum(bool(plugin.error) and plugin.error != DISABLED for plugin in found)
    out().print(f"{len(found)} plugins" + (f", {broken} broken" if broken else ""))


def _check(name: str) -> None:
    """Check the components of that name, of whatever kinds. Exits with 1 if one breaks a promise."""
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
        with TemporaryDirectory() as directory:
            try:
                check_component(component, Path(directory), spec=spec)
            except (AfarmError, ConformanceError) as error:
                out().print(f"[red]✗[/] {markup(title)}: {markup(str(error))}")
                broken += 1
            else:
                out().print(f"[green]✓[/] {markup(title)} keeps what its interface promises")
    if broken:
        raise typer.Exit(1)


def describe_plugins(name: str, plugins: Plugins) -> list[dict[str, Any]]:
    """Describe the plugins that are called `name`, or that are of its package or bring its component.

    Raises `PluginError` if there are none.
    """
    names = {p.name: {p.name} for p in plugins.found}
    for plugin in plugins.found:
        names[plugin.name] |= {n for c in plugin.components for n in (c.name, *plugins.registry.list_names(c))}
        names[plugin.name] |= {name_as_pip(plugin.package)} - {FIRST_PARTY}
    found = [p for p in plugins.found if p.name == name]
    found = found or [p for p in plugins.found if {name, name_as_pip(name)} & names[p.name]]
    if not found:
        near = did_you_mean(name, set().union(*names.values()), "`afarm plugins`")
        raise PluginError(f"no plugin, package or component is called {name!r}.{near}")
    return [_describe(plugin, plugins) for plugin in found]


def without_empty(value: Any) -> Any:
    """Return a description without its empty fields."""
    if isinstance(value, list):
        return [without_empty(item) for item in value]
    return {k: without_empty(v) for k, v in value.items() if v or v == 0} if isinstance(value, dict) else value


def _describe(plugin: Plugin, plugins: Plugins) -> dict[str, Any]:
    points, name = installed_entry_points(), f"{plugin.package}:{plugin.name}"
    distribution = next((p.dist for p in points if (p.name, p.value) == (plugin.name, plugin.module)), None)
    module = plugins.manager.get_plugin(name)
    requires = (distribution.requires if distribution and plugin.package != FIRST_PARTY else None) or ()
    return {
        "plugin": plugin.name,
        **{field: getattr(plugin, field) for field in ("package", "version", "module", "error", "notes")},
        "page": _page(distribution) if distribution else "",
        "requires": [needed for needed in requires if "extra ==" not in needed],
        "hooks": sorted(caller.name for caller in plugins.manager.get_hookcallers(module) or ()) if module else [],
        "commands": list_plugin_commands(plugins.manager).get(name, []),
        "components": [_describe_component(component) for component in plugin.components],
    }


def _page(distribution: Distribution) -> str:
    stated = [link.partition(",") for link in distribution.metadata.get_all("Project-URL") or ()]
    links = {label.strip().lower(): address.strip() for label, _, address in stated}
    return next((links[label] for label in PAGES if label in links), "")


def _read(text: str) -> Any:
    with suppress(ValueError):
        return json.loads(text)
    return text


def _describe_component(component: Component) -> dict[str, Any]:
    told: dict[str, Any] = {"kind": KINDS[component.kind], "name": component.full_name, "summary": component.summary}
    if component.kind == "recipes":
        return {**told, "file": str(component.target)}
    told["spec"] = component.spec
    listed = listed_settings(component.config, component.defaults) if component.config else ()
    told["settings"] = {setting.name: _read(setting.default) for setting in listed}
    told["recipes"] = {recipe: dict(values) for recipe, values in component.recipes.items()}
    try:
        if component.kind in ("methods", "evaluators"):
            cls = component.load()
            told["needs"] = sorted(cls.needs)
            told["search_space"] = {name: list(values) for name, values in getattr(cls, "search_space", {}).items()}
        told["digest"] = plugin_digest(component)
        told["digested"] = sorted(plugin_files(component.package, component.modules, component.sources))
    except PluginError as error:
        told["error"] = str(error)
    return told


def _print_yaml(value: Any) -> None:
    out().print(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=110), markup=False)


def recipes(
    name: Annotated[
        str | None, typer.Argument(autocompletion=complete_recipes, help="Show this recipe in full.")
    ] = None,
) -> None:
    """List the recipes, or show one."""
    if name is not None:
        _print_yaml(read_recipe(name))
        return
    rows = [[recipe, str(read_recipe(recipe).get("summary", ""))] for recipe in [*recipe_names(), *plugin_recipes()]]
    print_table(out(), "", {"recipe": False, "what it is": False}, rows)


def settings(
    section: Annotated[
        str | None,
        typer.Argument(
            autocompletion=complete_sections,
            help="A section (ppo, judge, run) or a setting (ppo.kl_coef); without one, all sections are listed.",
        ),
    ] = None,
    recipe: Annotated[
        str | None, option("--recipe", "A recipe, whose values stand beside the defaults.", complete_recipes)
    ] = None,
    as_json: Json = False,
) -> None:
    """List the settings of a method, a judge, any plugin or the run, for --set and recipes."""
    from rich.padding import Padding

    plugins = discover()
    if section is None:
        _show_sections(plugins, as_json)
        return
    listed = section_settings(section, plugins)
    section = section.partition(".")[0]
    values = read_recipe(recipe) if recipe else {}
    components = [c for c in plugins.registry if section in plugins.registry.list_names(c)]
    named = next((n for c in components for n in plugins.registry.list_names(c) if n in values), section)
    brought = {name: v for c in components if recipe for name, v in settings_for(c, recipe).items()}
    of_recipe = values if RUN in listed else {**brought, **values.get(named, {})}
    if as_json:
        rows = [(owner, row) for owner, rows in listed.items() for row in rows]
        print_json([{"of": owner, **asdict(row), "recipe": at(of_recipe, row.name)} for owner, row in rows])
        return
    prefix = "" if RUN in listed else f"{section}."
    for owner, settings_of_one in listed.items():
        out().print(f"[italic]{markup(owner)}[/]")
        for row in settings_of_one:
            value = at(of_recipe, row.name)
            of_one = "" if value is None else f" ({markup(f'{recipe}: {value_text(value)}')})"
            about = markup(row.description) + ("" if row.changes_result else " [dim](changes no result)[/]")
            out().print(f"[bold]{markup(prefix + row.name)}[/] = {markup(row.default)}{of_one}")
            out().print(Padding(about, (0, 0, 0, 4)))


def _show_sections(plugins: Plugins, as_json: bool) -> None:
    owners = {RUN: "the run itself"}
    for name, components in sections(plugins).items():
        owners[name] = ", ".join(dict.fromkeys(f"{KINDS[c.kind]} of {c.package}" for c in components))
    if as_json:
        print_json(owners)
        return
    for name, owner in owners.items():
        out().print(f"[bold]{markup(name):<24}[/] [dim]{markup(owner)}[/]")
    out().print("`afarm settings NAME` lists the settings of one.", markup=False)


def at(values: Any, name: str) -> Any:
    """Return the value at a dotted name; None if there is none."""
    for part in name.split("."):
        values = values.get(part) if isinstance(values, Mapping) else None
    return values
