"""Finding plugins, one at a time, so that a broken one takes nothing down with it.

`discover()` loads every entry point of the group `afarm`, first-party and third-party alike. A plugin that fails to
import, implements a hook that does not exist, or registers nonsense is recorded with its cause and left out.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pluggy

from afarm.config import Config
from afarm.errors import did_you_mean
from afarm.hookspecs import GROUP, KINDS, Hooks, hook_names
from afarm.registry import FIRST_PARTY, Component, Registry

if TYPE_CHECKING:
    import typer


@dataclass(slots=True)
class Plugin:
    """One entry point: what it brings, or why it could not be loaded."""

    name: str
    package: str
    version: str
    module: str
    components: list[Component] = field(default_factory=list)
    error: str = ""


@dataclass(slots=True)
class Plugins:
    """Everything that was found. Made anew by each `discover()`: there is no global manager."""

    manager: pluggy.PluginManager
    registry: Registry
    found: list[Plugin]

    @property
    def broken(self) -> list[Plugin]:
        return [p for p in self.found if p.error]

    def get(self, kind: str, name: str) -> Component:
        """Like `Registry.get`; an unknown name's message also lists the plugins that failed to load."""
        return self.registry.get(kind, name, self.causes)

    @property
    def causes(self) -> str:
        """A line for each plugin that failed to load: why a name may be unknown."""
        return "".join(f"\nPlugin {p.name!r} ({p.package}) failed to load: {p.error}" for p in self.broken)

    def add_commands(self, app: typer.Typer) -> list[str]:
        """Let each plugin add its commands to `app`, beside those that are there. Returns what went wrong, a sentence
        for each that failed."""
        problems = []
        for name, module in self.manager.list_name_plugin():
            if hook := getattr(module, "register_commands", None):
                there = [*app.registered_commands, *app.registered_groups]
                try:
                    hook(app=app)
                except Exception as error:
                    problems.append(f"plugin {name!r} could not add its commands: {type(error).__name__}: {error}")
                taken = {_command_name(entry) for entry in there}
                registered: list[list[Any]] = [app.registered_commands, app.registered_groups]
                for entries in registered:
                    for entry in [e for e in entries if e not in there and _command_name(e) in taken]:
                        entries.remove(entry)
                        problems.append(f"plugin {name!r} may not replace the command {_command_name(entry)!r}")
        return problems


def _command_name(entry: Any) -> str | None:
    """What a command or a group of commands is called on the command line."""
    from typer.main import get_command_name, solve_typer_info_defaults
    from typer.models import TyperInfo

    if isinstance(entry, TyperInfo):
        return solve_typer_info_defaults(entry).name
    return entry.name or get_command_name(entry.callback.__name__)


def discover(entry_points: Iterable[importlib.metadata.EntryPoint] | None = None) -> Plugins:
    """Load all plugins of the environment (or those given). Never raises for a plugin's fault."""
    manager = pluggy.PluginManager(GROUP)
    manager.add_hookspecs(Hooks)
    plugins = Plugins(manager, Registry(), [])
    points = importlib.metadata.entry_points(group=GROUP) if entry_points is None else entry_points
    for point in sorted(points, key=lambda p: (p.value.partition(".")[0] != "afarm_plugins", p.name, p.value)):
        plugins.found.append(_load(point, plugins))
    return plugins


def _load(point: importlib.metadata.EntryPoint, plugins: Plugins) -> Plugin:
    dist = point.dist
    plugin = Plugin(point.name, dist.name if dist else "unknown", dist.version if dist else "", point.value)
    name = f"{plugin.package}:{plugin.name}"
    try:
        module = point.load()
        if problem := _hook_problem(module):
            raise TypeError(problem)
        plugins.manager.register(module, name)
        _collect(module, plugin, name, plugins)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a plugin may raise anything at import, SystemExit included
        plugin.error = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        plugin.components.clear()
        plugins.registry.discard(name)
        if plugins.manager.has_plugin(name):
            plugins.manager.unregister(name=name)
    return plugin


def _hook_problem(module: Any) -> str:
    """What is wrong with a plugin's hooks, checked apart for each plugin: an unknown hook, or no hook at all."""
    marked = [n for n in dir(module) if getattr(getattr(module, n, None), f"{GROUP}_impl", None) is not None]
    known = hook_names()
    for name in marked:
        if name not in known:
            return f"implements unknown hook {name!r}.{did_you_mean(name, known)}"
    if unmarked := [n for n in known if n not in marked and hasattr(module, n)]:
        return f"defines {unmarked[0]!r} without marking it with @afarm.hookimpl"
    return "" if marked else "marks no hook with @afarm.hookimpl"


def _collect(module: Any, plugin: Plugin, name: str, plugins: Plugins) -> None:
    """Call this plugin's register hooks, so that what each brings is known to be its own."""
    for kind in KINDS:
        hook = getattr(module, f"register_{kind}", None)
        if hook is None:
            continue
        hook(register=_register(kind, plugin, name, plugins.registry, _sources(module)))


def _register(
    kind: str, plugin: Plugin, plugin_name: str, registry: Registry, sources: tuple[Path, ...]
) -> Callable[..., None]:
    def register(
        name: str,
        target: Any,
        *,
        config: type[Config] | None = None,
        summary: str = "",
        defaults: dict[str, Any] | None = None,
    ) -> None:
        """`target` is a class or `"package.module:Class"`; `defaults` are config values under this name."""
        component = Component(
            kind,
            name,
            plugin.package,
            plugin_name,
            target,
            config,
            summary,
            defaults or {},
            _add_target(sources, target),
        )
        registry.register(component)
        plugin.components.append(component)

    return register


def _sources(module: Any) -> tuple[Path, ...]:
    """The files a plugin consists of: its own package folder (its top one for a third party), or its single file.

    First-party plugins share the top package `afarm_plugins`, so theirs is the folder of their own.
    """
    if not isinstance(module, ModuleType):  # an entry point may name an object inside a module
        module = sys.modules[type(module).__module__]
    parts = module.__name__.split(".")
    top = ".".join(parts[:2]) if parts[0] == "afarm_plugins" else parts[0]
    return _source_of(top)


def _source_of(module_name: str) -> tuple[Path, ...]:
    spec = importlib.util.find_spec(module_name)
    if spec is None:
        return ()
    if spec.submodule_search_locations:
        return tuple(Path(p) for p in spec.submodule_search_locations)
    return (Path(spec.origin),) if spec.origin else ()


def _add_target(sources: tuple[Path, ...], target: Any) -> tuple[Path, ...]:
    module = target.partition(":")[0] if isinstance(target, str) else target.__module__
    parts = module.split(".")
    if parts[0] in ("afarm_plugins", FIRST_PARTY):
        return sources
    return tuple(dict.fromkeys([*sources, *_source_of(parts[0])]))
