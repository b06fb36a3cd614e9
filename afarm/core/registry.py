"""Names of components, each with a lazy target.

A name is `name` or `package/name`. First-party plugins own their bare names. A third party's component is always
reachable as `package/name`, and by its bare name as long as nothing first-party and no other package has that name;
an ambiguous bare name is an error that names both, raised only when it is used.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from afarm.core.errors import PluginError, did_you_mean
from afarm.core.hooks import KINDS

if TYPE_CHECKING:
    from afarm.core.config import Config

FIRST_PARTY = "afarm"


@dataclass(frozen=True, slots=True)
class Component:
    """One registered component: its name, its plugin, and the place of its class (not yet imported).

    `spec` names what may follow the name after a colon ("FILE"); empty if nothing may. `defaults` replace the
    config's own, so that one class and config serve several names.
    """

    kind: str
    name: str
    package: str
    plugin: str
    target: Any
    config: type[Config] | None = None
    summary: str = ""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    spec: str = ""
    modules: tuple[str, ...] = ()
    """The modules of its entry point and of its target: an artifact's key digests them with their distribution."""
    sources: tuple[str | Path, ...] = ()
    """More modules, files and folders for the key."""

    @property
    def full_name(self) -> str:
        return self.name if self.package == FIRST_PARTY else f"{self.package}/{self.name}"

    def load(self) -> Any:
        """Import the class. Raises `PluginError` naming the missing extra or the broken target."""
        if not isinstance(self.target, str):
            return self.target
        module_name, _, attribute = self.target.partition(":")
        try:
            return getattr(importlib.import_module(module_name), attribute)
        except ModuleNotFoundError as error:
            missing = (error.name or "").split(".")[0]
            extra = _EXTRA_OF.get(missing)
            remedy = f"install it with: pip install 'afarm[{extra}]'" if extra else f"install {missing!r}"
            raise PluginError(
                f"{KINDS[self.kind]} {self.full_name!r} needs {missing!r}, which is not installed; {remedy}"
            ) from error
        except (ImportError, AttributeError, ValueError) as error:
            raise PluginError(
                f"{KINDS[self.kind]} {self.full_name!r} of plugin {self.plugin!r} cannot be loaded from "
                f"{self.target!r}: {error}"
            ) from error

    def settings(self, values: Mapping[str, Any] | None = None) -> Config | None:
        """Build this component's config from `values` over its own defaults; None if it takes none."""
        return None if self.config is None else self.config.model_validate({**self.defaults, **(values or {})})


_EXTRA_OF = {
    **dict.fromkeys(["torch", "transformers", "trl", "peft", "accelerate", "datasets", "gguf", "safetensors"], "train"),
    **dict.fromkeys(["openai", "anthropic", "genai_prices", "bpe_openai"], "judges"),
    "plotly": "report",
    "ray": "ray",
    **dict.fromkeys(["numpy", "scipy", "sklearn", "statsmodels", "ppi_py"], "evaluation"),
}


def name_package(name: str) -> str:
    """Say what an unknown `package/name` needs; empty for other names."""
    if not (named := re.fullmatch(r"([A-Za-z0-9][\w.-]*)/[^/]*", name, re.ASCII)):
        return ""
    command = f"; install it with: pip install {named[1]}" if named[1].startswith("afarm-") else ""
    return f" The package {named[1]!r} is not installed, or brings no such name{command}."  # or it is an owner's


class Registry:
    """Components by kind and name."""

    def __init__(self) -> None:
        self._components: dict[str, dict[str, Component]] = {kind: {} for kind in KINDS}

    def register(self, component: Component) -> None:
        """Add a component. Raises `PluginError` if its package has one of that name, or the name is malformed."""
        name = component.name
        if not name.isprintable() or not name or "/" in name or ":" in name or name != name.strip():
            raise PluginError(f"{name!r} is no component name: it must be one line without '/', ':' or outer spaces")
        taken = self._components[component.kind].get(component.full_name)
        if taken is not None:
            raise PluginError(
                f"{KINDS[component.kind]} {component.full_name!r} is registered twice, by {taken.plugin!r} "
                f"and {component.plugin!r}"
            )
        self._components[component.kind][component.full_name] = component

    def get(self, kind: str, name: str, hints: str = "", also: Sequence[str] = ()) -> Component:
        """Look up a component by kind and name (bare, or `package/name`); text after a colon is ignored.

        Raises `PluginError` if it is unknown, naming the nearest names (also of what is not registered, in `also`) and
        adding `hints`; if it is ambiguous, naming all candidates; and if it has a spec but takes none.
        """
        name, colon, _ = name.partition(":")
        components = self._components[kind]
        candidates = [components[name]] if name in components else [c for c in components.values() if c.name == name]
        if not candidates:
            writable = [c.full_name if "/" in name else self.list_names(c)[-1] for c in components.values()]
            near = did_you_mean(name, [*also, *writable])
            if not near.endswith("?"):
                near = name_package(name) or near
            raise PluginError(f"unknown {KINDS[kind]} {name!r}.{near}{hints}")
        if len(candidates) > 1:
            names = " or ".join(repr(c.full_name) for c in candidates)
            raise PluginError(f"{KINDS[kind]} {name!r} is ambiguous: write {names}")
        [component] = candidates
        if colon and not component.spec and kind != "judges":
            raise PluginError(f"{KINDS[kind]} {component.full_name!r} takes nothing after a colon")
        return component

    def list_names(self, component: Component) -> list[str]:
        """List the names that `component` is found under: its full name, and its bare name if that is unique."""
        rivals = [c for c in self._components[component.kind].values() if c.name == component.name]
        return [component.full_name] if len(rivals) > 1 else list(dict.fromkeys([component.full_name, component.name]))

    def __iter__(self) -> Iterator[Component]:
        for components in self._components.values():
            yield from components.values()

    def discard(self, plugin: str) -> None:
        """Remove everything that `plugin` registered."""
        for components in self._components.values():
            for name in [n for n, c in components.items() if c.plugin == plugin]:
                del components[name]
