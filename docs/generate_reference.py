"""Writes docs/reference/settings.md from the config classes: `python docs/generate_reference.py`."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from afarm.core.config import Config, changes_result
from afarm.core.hooks import KINDS
from afarm.core.plugins import discover
from afarm.core.registry import FIRST_PARTY, Component
from afarm.experiment.settings import RunConfig

PAGE = Path(__file__).parent / "reference" / "settings.md"

OPENING = """\
# Settings

<!-- Written by docs/generate_reference.py from the config classes; do not edit. -->

Every setting of a run and of the plugins that come with afarm. A recipe (`afarm recipes`) gives them as YAML,
`--set section.setting=value` one by one. The defaults here are those without a recipe; where the paper names a figure
they are the paper's. A recipe of your own may give what differs only, over another: `based_on: toy`, or `based_on:
other.yaml` beside it. A stage is made anew where a setting that changes its result has another value; the others
(memory, speed, logging) reuse what is there.
"""


def page() -> str:
    """The whole page."""
    parts = [OPENING, "## The run", *table(RunConfig, "")]
    sections: dict[Any, list[Component]] = {}
    for component in discover().registry:
        if component.package == FIRST_PARTY and component.config is not None:
            sections.setdefault((component.kind, component.config), []).append(component)
    for (kind, config), components in sections.items():
        others = f" and {len(components) - 1} others" if len(components) > 1 else ""
        parts.append(f"## `{components[0].name}`{others} ({KINDS[kind]})")
        parts.append(first_paragraph(config))
        if len(components) > 1:
            parts.append("One class under several names; each is a section of its own, with these defaults:")
            parts.append("\n".join(f"- `{c.name}`: {own_defaults(c)}" for c in components))
        section = components[0].name if len(components) == 1 else ""
        parts += table(config, f"{section}." if section else "", components[0] if section else None)
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def first_paragraph(config: type[Config]) -> str:
    return (config.__doc__ or "").split("\n\n")[0].replace("\n    ", "\n").strip()


def own_defaults(component: Component) -> str:
    return ", ".join(f"{k} = `{shown(v)}`" for k, v in component.defaults.items()) or "those below"


def table(config: type[BaseModel], prefix: str, component: Component | None = None) -> list[str]:
    """The rows of a config and of the configs in it."""
    rows = ["| setting | default | changes the result | what it is |", "|---|---|---|---|"]
    for name, default, changes, description in settings(config, prefix, component.defaults if component else {}):
        rows.append(f"| `{name}` | {default} | {'yes' if changes else 'no'} | {escaped(description)} |")
    return ["\n".join(rows)]


def settings(
    config: type[BaseModel], prefix: str, values: typing.Mapping[str, Any]
) -> Iterator[tuple[str, str, bool, str]]:
    """(name, default, whether it changes the result, description) of every setting, inner ones with dotted names."""
    for name, info in config.model_fields.items():
        inner, optional = inner_config(info)
        default = values.get(name, info.get_default(call_default_factory=True))
        changes = changes_result(info)
        if inner is None or optional:
            yield (
                f"{prefix}{name}",
                "required" if default is PydanticUndefined else code(default),
                changes,
                str(info.description),
            )
        if inner is not None:
            given = default if isinstance(default, BaseModel) else None
            for row in settings(inner, f"{prefix}{name}.", vars(given) if given else {}):
                yield row[0], row[1], changes and row[2], row[3]


def inner_config(info: FieldInfo) -> tuple[type[BaseModel] | None, bool]:
    """The config that a field holds, if it holds one, and whether it may be None."""
    kind = info.annotation
    options = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    inner = [o for o in options if isinstance(o, type) and issubclass(o, BaseModel)]
    return (inner[0] if inner else None), type(None) in options


def escaped(text: str) -> str:
    """`text` with nothing in it that ends a table's cell or reads as a tag."""
    return text.replace("|", "\\|").replace("<", "\\<")


def code(value: Any) -> str:
    return f"`{shown(value)}`" if value is not None else "none"


def shown(value: Any) -> str:
    text = value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
