"""Finding plugins, one at a time, so that a broken one takes nothing down with it.

`discover()` loads every entry point of the group `afarm`, first-party and third-party alike. A plugin that fails to
import, implements a hook that does not exist, or registers nonsense is recorded with its cause and left out.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pluggy

from afarm.core.config import Config
from afarm.core.errors import PluginError, did_you_mean
from afarm.core.hooks import GROUP, KINDS, Hooks, hook_names
from afarm.core.registry import FIRST_PARTY, Component, Registry

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

    def may_bring(self, name: str) -> bool:
        """Whether `name` is near this plugin's name or its package's, or has a word of theirs (`package/name` does)."""
        own = [self.name.lower(), self.package.lower()]
        words = set(_words(self.name) + _words(self.package)) - {GROUP, "unknown"}
        return bool(words & set(_words(name)) or get_close_matches(name.lower(), own, cutoff=0.7))


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
        """Like `Registry.get`; an unknown name's message also says which plugins failed to load (`why_unknown`), and
        suggests no others where one of those is called like it."""
        base = name.partition(":")[0].lower()
        named = any({base, base.partition("/")[0]} & {p.name.lower(), p.package.lower()} for p in self.broken)
        return self.registry.get(kind, name, self.why_unknown(name), suggest=not named)

    def why_unknown(self, name: str) -> str:
        """Lines for a message that `name` is unknown: each plugin that failed to load and by its own name may be the
        one that brings it, with its error, and how many others failed."""
        suspects = [p for p in self.broken if p.may_bring(name)]
        lines = [f"Plugin {p.name!r} ({p.package}) failed to load: {p.error}" for p in suspects]
        if others := len(self.broken) - len(suspects):
            counted = f"{others} {'other ' if suspects else ''}plugin{'s' if others > 1 else ''}"
            lines.append(f"{counted} failed to load: afarm plugins")
        return "".join(f"\n{line}" for line in lines)

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


def _words(name: str) -> list[str]:
    return re.findall(r"[^\W_]+", name.lower())


def _command_name(entry: Any) -> str | None:
    """What a command or a group of commands is called on the command line."""
    from typer.main import get_command_name, solve_typer_info_defaults
    from typer.models import TyperInfo

    if isinstance(entry, TyperInfo):
        return solve_typer_info_defaults(entry).name
    return entry.name or get_command_name(entry.callback.__name__)


def discover(
    entry_points: Iterable[importlib.metadata.EntryPoint] | None = None, *, check_configs: bool = True
) -> Plugins:
    """Load all plugins of the environment (or those given). Never raises for a plugin's fault.

    Without `check_configs`, which takes nearly as long as all the rest, a config that pydantic cannot build passes:
    enough where only the names or the commands are wanted.
    """
    manager = pluggy.PluginManager(GROUP)
    manager.add_hookspecs(Hooks)
    plugins = Plugins(manager, Registry(), [])
    points = importlib.metadata.entry_points(group=GROUP) if entry_points is None else entry_points
    for point in sorted(points, key=lambda p: (p.value.partition(".")[0] != "afarm_plugins", p.name, p.value)):
        plugins.found.append(_load(point, plugins, check_configs))
    return plugins


def _load(point: importlib.metadata.EntryPoint, plugins: Plugins, check_configs: bool) -> Plugin:
    dist = point.dist
    plugin = Plugin(point.name, dist.name if dist else "unknown", dist.version if dist else "", point.value)
    name = f"{plugin.package}:{plugin.name}"
    try:
        module = point.load()
        if problem := _hook_problem(module):
            raise TypeError(problem)
        plugins.manager.register(module, name)
        _collect(module, plugin, name, plugins)
        if check_configs:
            for config in {component.config for component in plugin.components if component.config}:
                config.model_rebuild()  # builds it, where it is not built yet
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
        spec: str = "",
    ) -> None:
        """`target` is a class or `"package.module:Class"`; the rest is as `afarm.core.registry.Component` has it."""
        if wrong := _wrong_type(name, target, config, summary, defaults, spec):
            raise PluginError(f"register_{kind}: register({name!r}, …): {wrong}")
        component = Component(
            kind,
            name,
            plugin.package,
            plugin_name,
            target,
            config,
            summary,
            defaults or {},
            spec,
            _add_target(sources, target),
        )
        registry.register(component)
        plugin.components.append(component)

    return register


def _wrong_type(name: Any, target: Any, config: Any, summary: Any, defaults: Any, spec: Any) -> str:
    """What is wrong with the types that `register` was given, whose callers nothing has checked; empty if nothing."""
    if not isinstance(name, str):
        return f"the name must be text, not {name!r}"
    if not isinstance(target, str | type):
        return f"the target must be a class or 'package.module:Class', not {target!r}"
    if config is not None and not (isinstance(config, type) and issubclass(config, Config)):
        return f"config must be a subclass of afarm.Config, not {config!r}"
    if not isinstance(summary, str):
        return f"the summary must be text, not {summary!r}"
    if not isinstance(spec, str):
        return f"spec must be text that says what may follow the name after a colon, not {spec!r}"
    if defaults is not None and not isinstance(defaults, Mapping):
        return f"defaults must be a mapping of settings, not {defaults!r}"
    return ""


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
