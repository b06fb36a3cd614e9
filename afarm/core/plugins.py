"""Discovery of plugins, one at a time, so that a broken one takes nothing down with it.

`discover()` loads every entry point of the group `afarm`, first-party and third-party alike, and the files that
`choose_plugins` was given. pluggy validates and calls the hooks, one plugin's apart from another's. A plugin that fails
to import, implements a hook that does not exist, or registers nonsense is recorded with its cause and left out.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import Distribution, EntryPoint, EntryPoints
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

import pluggy

from afarm.core.errors import ConfigError, PluginError, did_you_mean
from afarm.core.hooks import GROUP, KINDS, Hooks, hook_names
from afarm.core.plugin_files import PluginFile, add_files, contain
from afarm.core.registry import FIRST_PARTY, Component, Registry, name_package

if TYPE_CHECKING:
    from afarm.core.config import Config


@dataclass(slots=True)
class Plugin:
    """One entry point: what it brings, or why it could not be loaded."""

    name: str
    package: str
    version: str
    module: str
    components: list[Component] = field(default_factory=list)
    error: str = ""
    notes: list[str] = field(default_factory=list)
    """What it did while it was loaded that a plugin must not do."""

    @property
    def why_absent(self) -> str:
        return self.error if self.error == DISABLED else f"failed to load: {self.error}"


DISABLED = "is disabled with --disable-plugin"
"""The `error` of a plugin that the user has left out."""

_choice: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
_made: list[tuple[Plugins, bool, set[str], list[Any]]] = []  # by the last calls of `discover`, and from what
_notes: dict[str, list[str]] = {}
"""The notes on each plugin that this process has loaded: only the first time is its module run."""


@dataclass(slots=True)
class Plugins:
    """The plugins of an environment. Made anew by each `discover()`: there is no global manager."""

    manager: pluggy.PluginManager
    registry: Registry
    found: list[Plugin]

    def copy(self) -> Plugins:
        return Plugins(self.manager, Registry(self.registry), [*self.found])

    @property
    def broken(self) -> list[Plugin]:
        return [p for p in self.found if p.error]

    def get(self, kind: str, name: str, also: Sequence[str] = ()) -> Component:
        """Look up a component. As `Registry.get`, but an error also names plugins that failed to load."""
        return self.registry.get(kind, name, also, self.why_unknown)

    def broken_owner(self, name: str) -> Plugin | None:
        """Return the plugin that failed to load and is of the package in `name`, is called so or quotes it."""
        package, _, bare = name.rpartition("/")
        in_quotes = re.compile(rf"""["']{re.escape(bare)}["']""")
        named = [p for p in self.broken if not package or name_as_pip(p.package) == name_as_pip(package)]
        likely = (p for p in named if p.name == bare or in_quotes.search(read_source(p.module)))
        return next(likely, named[0] if named and package else None)

    def why_unknown(self, name: str, near: str = "") -> str:
        """Say why `name` is unknown: its plugin failed to load, else names `near` it, or others that failed."""
        if owner := self.broken_owner(name):
            return f"\nPlugin {owner.name!r} ({owner.package}) {owner.why_absent}"
        near, count = name_package(name, near), sum(plugin.error != DISABLED for plugin in self.broken)
        if not count or "/" in name or near.endswith("?"):
            return near
        return f"{near} {count} plugin{'s' * (count > 1)} failed to load: `afarm plugins` says why."


def installed_entry_points() -> EntryPoints:
    """Return afarm's entry points and chosen files'; read again once a folder of `sys.path` has changed."""
    places = map(os.path.abspath, sys.path)
    stamps = ((place, os.stat(place).st_mtime_ns if os.path.isdir(place) else 0) for place in places)
    return _with_files(_entry_points(tuple(stamps)), _choice[0])


def _with_files(points: EntryPoints, files: Iterable[str | Path]) -> EntryPoints:
    """Add the entry points of files; a file whose module an installed plugin is adds nothing."""
    there = {point.module for point in points}
    return EntryPoints([*points, *(point for point in add_files(files) if point.module not in there)])


def choose_plugins(files: Iterable[str | Path] = (), disabled: Iterable[str] = ()) -> None:
    """Choose this process's plugins: those installed and `files`, without those named as `disabled`.

    A plugin is disabled by its name or its package's. Raises as `discover_with`, and `ConfigError` for unknown names.
    """
    global _choice
    _choice, wanted = ((), ()), (tuple(map(os.path.abspath, files)), tuple(disabled))
    if any(wanted):
        known = {name for plugin in discover_with(wanted[0]).found for name in _names(plugin)}
        for name in wanted[1]:
            if name_as_pip(name) not in known:
                near = did_you_mean(name, known, "`afarm plugins`")
                raise ConfigError(f"--disable-plugin {name}: no such plugin.{near}")
        _choice = wanted


def chosen_plugins() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the files and the names that `choose_plugins` was given, for other processes."""
    return _choice


def discover_with(files: str | Path | Iterable[str | Path]) -> Plugins:
    """Load the installed plugins and those of `files`.

    Raises `ConfigError` for a file that cannot be a plugin, `PluginError` for one that fails to load.
    """
    points = _with_files(installed_entry_points(), [files] if isinstance(files, str | Path) else files)
    plugins, own = discover(points), {point.dist.name for point in points if isinstance(point.dist, PluginFile)}
    if failed := [p for p in plugins.broken if p.package in own and p.error != DISABLED]:
        raise PluginError("\n".join(f"plugin file {p.package} {p.why_absent}" for p in failed))
    return plugins


def _names(plugin: Plugin) -> set[str]:
    """The names by which a plugin can be disabled."""
    names = {plugin.name, f"{plugin.package}/{plugin.name}", plugin.package}
    return {name_as_pip(name) for name in names - {FIRST_PARTY}}


@lru_cache(maxsize=2)
def _entry_points(places: tuple[tuple[str, int], ...]) -> EntryPoints:
    return importlib.metadata.entry_points(group=GROUP)


def name_as_pip(package: str) -> str:
    """Return a package's name in the one form in which pip compares it."""
    return re.sub(r"[-_.]+", "-", package).lower()


def unmet_requirement(distribution: Distribution) -> str:
    """Say that a plugin's distribution needs another afarm than this; empty if it does not."""
    if name_as_pip(distribution.name) == FIRST_PARTY or not distribution.requires:
        return ""
    from packaging.requirements import InvalidRequirement, Requirement  # only now: most start without
    from packaging.version import Version

    own = importlib.metadata.version(FIRST_PARTY)
    for line in distribution.requires:
        with suppress(InvalidRequirement):
            needed = Requirement(line)
            if name_as_pip(needed.name) != FIRST_PARTY or (needed.marker and not needed.marker.evaluate({"extra": ""})):
                continue
            if not needed.specifier.contains(Version(own).base_version):
                return f"{distribution.name} needs {FIRST_PARTY}{needed.specifier}, and this is {FIRST_PARTY} {own}"
    return ""


def read_source(module: str) -> str:
    """Return the source of an entry point's module, which is not imported; empty if it cannot be read."""
    try:
        spec = importlib.util.find_spec(module.partition(":")[0])  # imports the package that it lies in
        file = Path(spec.origin or "") if spec else Path()
        return file.read_text(encoding="utf-8", errors="replace") if file.suffix == ".py" else ""
    except (Exception, SystemExit):
        return ""


def discover(
    entry_points: Iterable[EntryPoint] | None = None,
    *,
    check_configs: bool = True,
    kinds: Iterable[str] = KINDS,
) -> Plugins:
    """Load all plugins of the environment, or of `entry_points`. Never raises for a plugin's fault.

    Without `check_configs`, which takes nearly as long as all the rest, a config that pydantic cannot build passes:
    enough if only the names are wanted. Only these `kinds` of components are registered: none for the commands alone.
    """
    points = list(installed_entry_points() if entry_points is None else entry_points)
    points.sort(key=lambda p: (p.value.partition(".")[0] != "afarm_plugins", p.name, p.value))
    for plugins, checked, of, place in _made:  # of the same modules and for as much: a command asks several times
        if checked >= check_configs and of >= {*kinds} and place == _loaded_from(points):
            return plugins.copy()
    plugins, alone = Plugins(_Manager(), Registry(), []), _Manager()
    packages: dict[Distribution | None, tuple[str, str, str]] = {None: ("unknown", "", "")}
    for point in points:
        if point.dist and point.dist not in packages:
            dist = point.dist  # each look at it parses METADATA anew
            packages[dist] = dist.name, dist.version, unmet_requirement(dist)
        package, version, unmet = packages[point.dist]
        plugin = Plugin(point.name, package, version, point.value)
        if _choice[1] and _names(plugin) & {*map(name_as_pip, _choice[1])}:
            plugin.error = DISABLED
        elif unmet:
            plugin.error = f"PluginError: {unmet}: install versions that fit"
        else:
            _load(plugin, point, plugins, alone, check_configs, kinds)
        plugins.found.append(plugin)
    if not plugins.broken:
        _made.insert(0, (plugins.copy(), check_configs, {*kinds}, _loaded_from(points)))
        del _made[8:]
    return plugins


def _loaded_from(points: Iterable[EntryPoint]) -> list[Any]:
    return [_choice[1], *((point, point.dist, sys.modules.get(point.module)) for point in points)]


def load_by_scheme(kind: str, scheme: str, unknown: str) -> Any:
    """Import the class that a plugin registers for URLs of `scheme`; `unknown` says that none does.

    A URL names the same place whatever plugins a farm was given, so all that are installed are asked. Raises
    `ConfigError` if no plugin brings the scheme, and `PluginError` if its class cannot be loaded.
    """
    plugins = discover(check_configs=False, kinds=(kind,))
    try:
        component = plugins.get(kind, scheme)
    except PluginError as error:
        raise ConfigError(f"{unknown}{plugins.why_unknown(scheme)}") from error
    return component.load()


class _Manager(pluggy.PluginManager):
    def __init__(self) -> None:
        super().__init__(GROUP)
        self.add_hookspecs(Hooks)

    def parse_hookimpl_opts(self, plugin: Any, name: str) -> Any:
        # Only functions can be marked: to look closely at all names of a module took half of a discovery.
        functions = (FunctionType, MethodType, classmethod, staticmethod)
        skipped = isinstance(plugin, ModuleType) and not isinstance(vars(plugin).get(name), functions)
        return None if skipped else super().parse_hookimpl_opts(plugin, name)


def _load(
    plugin: Plugin, point: EntryPoint, plugins: Plugins, alone: _Manager, check_configs: bool, kinds: Iterable[str]
) -> None:
    name = f"{plugin.package}:{plugin.name}"
    plugin.notes = _notes.setdefault(name, [])
    try:
        with contain(f"plugin {plugin.name!r}", plugin.notes, " while it is loaded"):
            module = point.load()
            _register_alone(alone, module, name)
            for kind in kinds:
                register = _register(kind, plugin, name, plugins.registry, module)
                getattr(alone.hook, f"register_{kind}")(register=register)
        if check_configs:
            for config in {component.config for component in plugin.components if component.config}:
                config.model_rebuild()  # builds it, if it is not built yet
        plugins.manager.register(module, name)
    except (Exception, SystemExit) as error:
        plugin.error = ": ".join(filter(None, [type(error).__name__, " ".join(str(error).split())]))
        plugin.error += _place(error, point.module)
        plugin.components.clear()
        plugins.registry.discard(name)
    finally:
        alone.unregister(name=name)


def _place(error: BaseException, module: str) -> str:
    """Return the file and line of a plugin's own that raised an error; empty if none did."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if module.partition(".")[0] in Path(f.filename).with_suffix("").parts]
    return f" ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""


def _register_alone(alone: _Manager, module: Any, name: str) -> None:
    """Register a plugin in `alone`, which holds no other. Raises `TypeError` for wrong hooks."""
    try:
        alone.register(module, name)
        alone.check_pending()
    except pluggy.PluginValidationError as error:
        if unknown := [caller.name for caller in alone.get_hookcallers(module) or () if not caller.has_spec()]:
            meant = did_you_mean(unknown[0], hook_names())
            raise TypeError(f"implements unknown hook {unknown[0]!r}.{meant}") from error
        raise TypeError("; ".join(str(error).splitlines())) from error
    marked = {caller.name for caller in alone.get_hookcallers(module) or ()}
    if unmarked := [hook for hook in hook_names() if hook not in marked and hasattr(module, hook)]:
        raise TypeError(f"defines {unmarked[0]!r} without marking it with @afarm.hookimpl")
    if not marked:
        raise TypeError("marks no hook with @afarm.hookimpl")
    for caller in alone.get_hookcallers(module) or ():
        if lacking := {*caller.spec.argnames} - {*caller.get_hookimpls()[0].argnames} if caller.spec else ():
            raise TypeError(f"{caller.name}() must take the argument {min(lacking)!r}: without it nothing is brought")


def _register(kind: str, plugin: Plugin, plugin_name: str, registry: Registry, module: Any) -> Callable[..., None]:
    # An entry point may name an object inside a module.
    own = module.__name__ if isinstance(module, ModuleType) else type(module).__module__

    def register(
        name: str,
        target: Any,
        *,
        config: type[Config] | None = None,
        summary: str = "",
        defaults: dict[str, Any] | None = None,
        spec: str = "",
        sources: Collection[str | Path] = (),
        recipes: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        if wrong := _wrong_type(kind, name, target, config, summary, defaults, spec, sources, recipes):
            raise PluginError(f"register_{kind}: register({name!r}, …): {wrong}")
        home = target.__module__ if isinstance(target, type) else own  # that of a recipe is a path
        modules = (own, target.partition(":")[0] if isinstance(target, str) else home)
        more = (config, summary, defaults or {}, spec, tuple(dict.fromkeys(modules)), tuple(sources), recipes or {})
        registry.register(component := Component(kind, name, plugin.package, plugin_name, target, *more))
        plugin.components.append(component)

    return register


def _wrong_type(
    kind: str, name: Any, target: Any, config: Any, summary: Any, defaults: Any, spec: Any, sources: Any, recipes: Any
) -> str:
    """Explain which argument of `register` has a wrong type; empty if none has."""
    from afarm.core.config import Config  # who registers nothing, as for commands alone, does without

    several = isinstance(sources, Collection) and not isinstance(sources, str)
    sources_fit = several and all(isinstance(s, str) or (isinstance(s, Path) and s.is_absolute()) for s in sources)
    config_fits = config is None or (isinstance(config, type) and issubclass(config, Config))
    target_fits = isinstance(target, type) or (isinstance(target, str) and ":" in target)
    aim = "a class or 'package.module:Class'"
    if kind == "recipes":
        target_fits = isinstance(target, Path) and target.is_absolute() and target.is_file()
        aim = "the absolute Path of a YAML file that is there"
    fields = set(config.model_fields) if config and config_fits else set()
    defaults_fit = defaults is None or (isinstance(defaults, Mapping) and fields >= {*defaults})
    mapped = recipes is None or isinstance(recipes, Mapping)
    recipes_fit = mapped and all(isinstance(own, Mapping) and fields >= {*own} for own in (recipes or {}).values())
    folder = Path(__file__).parents[1] / "recipes"  # a recipe of the user's is matched by its path, which ends in .yaml
    named = [str(recipe) for recipe in recipes or ()] if mapped else []
    strange = [r for r in named if not r.endswith((".yaml", ".yml")) and not (folder / f"{r}.yaml").is_file()]
    rules = (
        (isinstance(name, str), "the name must be text", name),
        (target_fits, f"the target must be {aim}", target),
        (config_fits, "config must be a subclass of afarm.Config", config),
        (isinstance(summary, str), "the summary must be text", summary),
        (isinstance(spec, str), "spec must be text that says what may follow the name after a colon", spec),
        (defaults_fit, "defaults must map settings that the config has to values", defaults),
        (recipes_fit, "recipes must map names of recipes to settings that the config has", recipes),
        (not strange, "recipes must be named as `afarm recipes` lists them", strange),
        (sources_fit, "sources must be a list of names of modules and absolute Paths", sources),
    )
    return next((f"{rule}, not {value!r}" for fits, rule, value in rules if not fits), "")
