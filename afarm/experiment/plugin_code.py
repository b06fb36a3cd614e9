"""The part of a plugin's code that goes into the keys of what the plugin makes.

Of a third party's component these are the files of its distribution that pip recorded. If it is installed in editable
mode, they are the top-level packages of its entry point and target, and what those import from the same folder. What
`register(…, sources=…)` names is added. First-party plugins share a distribution, so each has a folder of its own:
editing PPO does not retrain DPO.

Nothing is imported here, and names are those that Python imports by: a wheel and an editable installation of the same
files have one digest.
"""

from __future__ import annotations

import ast
import importlib.metadata
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from functools import cache
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path

from afarm.core.errors import PluginError
from afarm.core.registry import FIRST_PARTY, Component
from afarm.experiment.release_numbers import numbered
from afarm.storage.disk import is_source, source_digest, source_files

PLUGINS = "afarm_plugins"
"""The package of the first-party plugins, in which each has a folder."""

SHARED = ("site-packages", "dist-packages")
"""Folders in which packages of many distributions lie side by side."""


@cache
def find_package(module: str) -> str:
    """Return the outermost package of a single distribution, or the folder of a first-party plugin.

    That is the top-level package of `module`, or the first below namespace packages.
    """
    first, *inner = module.split(".")
    name = first
    while inner and (name == PLUGINS or _located(name)[1]):
        name = f"{name}.{inner.pop(0)}"
    return name if name == first or _roots(name) else first


def plugin_digest(component: Component) -> str:
    """Digest a component's code, once per process: code that is edited later is not the code that runs.

    Raises `PluginError` if it names sources that are not there.
    """
    try:
        return files_digest(component.package, component.modules, component.sources)
    except LookupError as error:
        raise PluginError(f"plugin {component.plugin!r}: a source of {component.full_name!r}, {error}") from error


def plugin_identity(component: Component) -> str:
    """Return what stands for a component's code in keys.

    For a first-party plugin in a release that is a number, else a digest.

    Raises `PluginError` as `plugin_digest` does.
    """
    folders = sorted({*map(find_package, component.modules)}) if component.package == FIRST_PARTY else []
    numbers = [numbered(folder) for folder in folders if folder.startswith(f"{PLUGINS}.")]
    return ", ".join(numbers) if any(numbers) else plugin_digest(component)


@cache
def files_digest(distribution: str, modules: tuple[str, ...], sources: tuple[str | Path, ...] = ()) -> str:
    """Digest the files of a distribution, of the top-level packages of `modules`, and of `sources`.

    Raises `LookupError` for sources that are not there.
    """
    return source_digest(plugin_files(distribution, modules, sources))


def plugin_files(distribution: str, modules: Sequence[str], sources: Sequence[str | Path] = ()) -> dict[str, Path]:
    """Map the files that `files_digest` digests by the path from where Python finds them."""
    packages = {find_package(module) for module in modules} - {FIRST_PARTY}
    files: dict[str, Path] = {}
    if distribution not in ("", FIRST_PARTY):
        files = _recorded_files(distribution)
        packages |= set() if files else _imported_beside(packages)
    for package in packages:
        files |= _module_files(package)
    for source in sources:
        named = source_files(source, source.parent) if isinstance(source, Path) else _module_files(source)
        if not named:
            kind = "file or folder" if isinstance(source, Path) else "module"
            raise LookupError(f"{str(source)!r}, is no {kind}")
        files |= named
    return files


def _recorded_files(name: str) -> dict[str, Path]:
    """Map the modules and data of an installed distribution; none if it is editable, or if there is none."""
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return {}
    # Without RECORD, `files` are those of a source tree: tests and the read-me as well.
    recorded = distribution.files or [] if distribution.read_text("RECORD") else []
    files = {}
    for path in recorded:
        elsewhere = path.is_absolute() or ".." in path.parts  # scripts
        described = path.parts[0].endswith(".dist-info") or path.name.startswith("__editable__")
        if is_source(path) and not elsewhere and not described and path.suffix != ".pth":
            files[path.as_posix()] = Path(str(path.locate()))
    return {name: path for name, path in files.items() if path.is_file()}


def _imported_beside(packages: Collection[str]) -> set[str]:
    """Return what `packages` import, at any depth, of what lies in the same project folders as they."""

    def folders(package: str) -> dict[Path, Path]:
        return {root: root.parents[package.count(".")] for root in _roots(package)}

    own = {folder for package in packages for folder in folders(package).values() if folder.name not in SHARED}
    reached: set[str] = set()
    waiting = set(packages)
    while waiting:
        package = waiting.pop()
        roots = [root for root, folder in folders(package).items() if folder in own]
        if roots and package not in reached and package != FIRST_PARTY:
            reached.add(package)
            files = [path for root in roots for path in ([root] if root.is_file() else root.rglob("*.py"))]
            waiting |= {find_package(name) for path in files for name in _imported(path)}
    return reached


def _imported(path: Path) -> Iterator[str]:
    """Yield the modules and names that a file imports; none if it is no Python."""
    with suppress(SyntaxError, ValueError, RecursionError):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and not node.level:
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _module_files(name: str) -> dict[str, Path]:
    """Map the files of a module or of a whole package; none if there is no such module."""
    files: dict[str, Path] = {}
    for root in _roots(name):
        files |= source_files(root, root.parents[name.count(".")])
    return files


def _roots(name: str) -> list[Path]:
    """List the folders of a package, or the file of a module; empty if there is none."""
    return _located(name)[0]


def _located(name: str) -> tuple[list[Path], bool]:
    """Find a module's places, without importing what it lies in, and if it is a namespace package.

    That has no file of its own, so that several distributions may have portions of it.
    """
    outer, _, last = name.rpartition(".")
    places = _roots(outer) if outer else []
    portions = [place / last for place in places if (place / last).is_dir()]
    try:
        spec = PathFinder.find_spec(name, [str(place) for place in places]) if outer else find_spec(name)
    except KeyError:  # the outer package is not imported, and a namespace package asks for it
        return portions, True
    except (ImportError, ValueError):  # ValueError: a module that was made rather than imported
        return [], False
    if spec is None:
        return [], False
    if spec.origin is None and spec.submodule_search_locations is not None:
        return portions if outer else [Path(place) for place in spec.submodule_search_locations], True
    found = [*spec.submodule_search_locations] if spec.submodule_search_locations else [spec.origin or ""]
    return [place for place in map(Path, found) if place.is_absolute()], False  # "built-in" is no path
