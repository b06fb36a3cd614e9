"""Settings listed: of the run and of each component, with defaults and descriptions."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from afarm.core.config import LoraConfig, changes_result
from afarm.core.errors import ConfigError, did_you_mean
from afarm.core.hooks import KINDS
from afarm.core.plugins import Plugins
from afarm.core.registry import Component
from afarm.experiment.recipe import in_a_section
from afarm.experiment.setting_errors import nearest_setting
from afarm.experiment.settings import RunConfig

RUN = "run"
"""The name of the run's own settings in lists; they have no section in a recipe."""


@dataclass(frozen=True, slots=True)
class ListedSetting:
    """A setting by its dotted name; its default is text, `changes_result` False for memory and speed."""

    name: str
    default: str
    changes_result: bool
    description: str


def listed_settings(
    config: type[BaseModel], values: Mapping[str, Any] | None = None, prefix: str = ""
) -> Iterator[ListedSetting]:
    """Yield every setting of `config`, with dotted names for the configs in it.

    `values` are defaults of one component's own. LoRA's settings are one setting, unset by default.
    """
    for name, info in config.model_fields.items():
        kind = info.annotation
        options = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
        inner = next((o for o in options if isinstance(o, type) and issubclass(o, BaseModel)), None)
        default = (values or {}).get(name, info.get_default(call_default_factory=True))
        changes = changes_result(info)
        if inner is None or type(None) in options:
            text = "required" if default is PydanticUndefined else value_text(default)
            yield ListedSetting(f"{prefix}{name}", text, changes, str(info.description))
        if inner is not None and inner is not LoraConfig:
            of_default = vars(default) if isinstance(default, BaseModel) else {}
            for row in listed_settings(inner, of_default, f"{prefix}{name}."):
                yield ListedSetting(row.name, row.default, changes and row.changes_result, row.description)


def value_text(value: Any) -> str:
    """Write a value as in `--set`; "unset" for None."""
    if value is None:
        return "unset"
    value = str(value) if isinstance(value, date) else value
    return value if isinstance(value, str) and value and "\n" not in value else json.dumps(value, ensure_ascii=False)


def sections(plugins: Plugins) -> dict[str, list[Component]]:
    """Return the components that have settings by the shortest name of their section."""
    found: dict[str, list[Component]] = {}
    for component in plugins.registry:
        if component.config is not None:
            name = min(plugins.registry.list_names(component), key=len)
            found.setdefault(name, []).append(component)
    return found


def section_settings(name: str, plugins: Plugins) -> dict[str, list[ListedSetting]]:
    """Return the settings of a section by what has them, such as "method ppo"; `run` names the run's own.

    A name with a dot, such as `ppo.kl_coef`, returns that setting alone. Raises `ConfigError` if there is no such
    section or setting.
    """
    section, _, wanted = name.partition(".")
    registry, own = plugins.registry, ""
    components = [c for c in registry if section in registry.list_names(c) and c.config is not None]
    if section == RUN or section in RunConfig.model_fields:
        listed = {RUN: list(listed_settings(RunConfig))}
    elif components:
        listed = {
            f"{KINDS[c.kind]} {c.full_name}": list(listed_settings(c.config, c.defaults))
            for c in components
            if c.config
        }
    elif ambiguous := registry.explain_ambiguous(section):
        raise ConfigError(f"section {ambiguous}")
    else:
        named = sections(plugins)
        near = in_a_section(section, named) or did_you_mean(
            section, [RUN, *RunConfig.model_fields, *named], "`afarm settings`"
        )
        raise ConfigError([f"no settings are called {section!r}.{plugins.why_unknown(section, near)}"])
    if section in RunConfig.model_fields:  # the run's are listed under their full names
        own, wanted = f"{section}.", name
    found = {
        owner: [row for row in rows if not wanted or row.name == wanted or row.name.startswith(f"{wanted}.")]
        for owner, rows in listed.items()
    }
    if not any(found.values()):
        known = {row.name.removeprefix(own) for rows in listed.values() for row in rows if row.name.startswith(own)}
        raise ConfigError([f"no setting is called {name!r}.{nearest_setting(wanted.removeprefix(own), known)}"])
    return {owner: rows for owner, rows in found.items() if rows}
