"""`afarm plugins NAME`: one plugin in full."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import Distribution
from typing import Any

from afarm.cli.console import out, print_json
from afarm.cli.plugin_commands import list_plugin_commands
from afarm.core.errors import PluginError, did_you_mean
from afarm.core.hooks import KINDS
from afarm.core.plugins import Plugin, Plugins, installed_entry_points, name_as_pip
from afarm.core.registry import FIRST_PARTY, Component
from afarm.experiment.plugin_code import plugin_digest, plugin_files
from afarm.experiment.setting_list import listed_settings, value_text
from afarm.storage.text import markup

PAGES = ("documentation", "homepage", "repository")
"""The links of a distribution's metadata that can be its page, the best first."""

TITLES = {"page": "page", "requires": "installs with", "hooks": "hooks", "commands": "commands"}
"""What a plugin's page shows of it, by the names of its fields in JSON; and of each component:"""
COMPONENT_TITLES = {"file": "file", "spec": "takes", "needs": "needs", "settings": "settings", "recipes": "recipes"}
COMPONENT_TITLES |= {"search_space": "tuned over", "digested": "digested", "digest": "digest", "problem": "problem"}


MOST = 8
"""The files that are named of those that are digested; JSON has all."""


def show_plugins(name: str, plugins: Plugins, as_json: bool) -> None:
    """Show the plugins that `name` names, or whose package or component it names. Raises `PluginError` if none."""
    names = {
        id(p): [p.name, p.package, *(n for c in p.components for n in plugins.registry.list_names(c))]
        for p in plugins.found
    }
    found = [p for p in plugins.found if p.name == name] or [
        p
        for p in plugins.found
        if name in names[id(p)] or (p.package != FIRST_PARTY and name_as_pip(name) == name_as_pip(p.package))
    ]
    if not found:
        near = did_you_mean(name, {each for known in names.values() for each in known}, "`afarm plugins`")
        raise PluginError(f"no plugin, package or component is called {name!r}.{near}")
    described = [describe_plugin(plugin, plugins) for plugin in found]
    if as_json:
        print_json(described)
        return
    for row in described:
        out().print(
            f"[bold]{markup(row['plugin'])}[/]  [dim]{markup(row['package'])} {row['version']}, {row['module']}[/]"
        )
        for trouble in filter(None, [row["error"], *row["notes"]]):
            out().print(f"  [red]{markup(trouble)}[/]")
        _show(row, TITLES, "  ")
        for part in row["components"]:
            out().print(f"  {part['kind']} [bold]{markup(part['name'])}[/]  [dim]{markup(part['summary'])}[/]")
            _show(part, COMPONENT_TITLES, "    ")


def _show(row: Mapping[str, Any], titles: Mapping[str, str], margin: str) -> None:
    for field, title in titles.items():
        value = row.get(field)
        if field == "settings" and value:
            value = [f"{one['name']} = {one['default']}" for one in value]
        elif isinstance(value, Mapping):
            value = [f"{key}: {value_text(inner)}" for key, inner in value.items()]
        if value:
            more = f" and {len(value) - MOST} more" if len(value) > MOST and field == "digested" else ""
            text = value if isinstance(value, str) else ", ".join(value[:MOST] if more else value) + more
            out().print(f"{margin}{title:<13} {markup(text)}")


def describe_plugin(plugin: Plugin, plugins: Plugins) -> dict[str, Any]:
    """Describe a plugin: where it is from, what it needs and brings, and its page, as values of JSON."""
    points = installed_entry_points()
    distribution = next((p.dist for p in points if (p.name, p.value) == (plugin.name, plugin.module)), None)
    name, own = f"{plugin.package}:{plugin.name}", plugin.package == FIRST_PARTY
    module = plugins.manager.get_plugin(name)
    return {
        **{field: getattr(plugin, field) for field in ("package", "version", "module", "error", "notes")},
        "plugin": plugin.name,
        "page": _page(distribution) if distribution else "",
        "requires": [] if own or not distribution else [r for r in distribution.requires or () if "extra ==" not in r],
        "hooks": sorted(caller.name for caller in plugins.manager.get_hookcallers(module) or ()) if module else [],
        "commands": list_plugin_commands(plugins.manager).get(name, []),
        "components": [describe_component(component) for component in plugin.components],
    }


def _page(distribution: Distribution) -> str:
    """Return the address of a distribution's documentation, or the next best; empty if it states none."""
    stated = [link.partition(",") for link in distribution.metadata.get_all("Project-URL") or ()]
    links = {label.strip().lower(): address.strip() for label, _, address in stated}
    return next((links[label] for label in PAGES if label in links), "")


def describe_component(component: Component) -> dict[str, Any]:
    """Describe a component, whose class is loaded if it is a method or an evaluator."""
    told: dict[str, Any] = {"kind": KINDS[component.kind], "name": component.full_name, "summary": component.summary}
    told["spec"] = f"{component.name}:{component.spec}" if component.spec else ""
    told["settings"] = (
        [asdict(s) for s in listed_settings(component.config, component.defaults)] if component.config else []
    )
    if component.kind == "recipes":
        return {**told, "file": str(component.target)}
    told["recipes"] = {recipe: dict(values) for recipe, values in component.recipes.items()}
    try:
        told["digested"] = sorted(plugin_files(component.package, component.modules, component.sources))
        told["digest"] = plugin_digest(component)
        if component.kind in ("methods", "evaluators"):
            cls = component.load()
            told["needs"], told["search_space"] = sorted(cls.needs), dict(getattr(cls, "search_space", {}))
    except (PluginError, LookupError) as error:
        told["problem"] = str(error)
    return told
