"""`afarm plugins NAME`: one plugin in full."""

from __future__ import annotations

import json
from contextlib import suppress
from importlib.metadata import Distribution
from typing import Any

from afarm.cli.plugin_commands import list_plugin_commands
from afarm.core.errors import PluginError, did_you_mean
from afarm.core.hooks import KINDS
from afarm.core.plugins import Plugin, Plugins, installed_entry_points, name_as_pip
from afarm.core.registry import FIRST_PARTY, Component
from afarm.experiment.plugin_code import plugin_digest, plugin_files
from afarm.experiment.setting_list import listed_settings

PAGES = ("documentation", "homepage", "repository")
"""The links of a distribution's metadata that can be its page, the best first."""


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
