"""The part of a plugin's code that goes into the keys of what the plugin makes.

Of a third party's component these are all files of its distribution, wherever its modules lie: those that pip recorded
or, if it is installed in editable mode, the modules and packages that it declares. To them come the top-level modules
of its entry point and of its target, and what `register(…, sources=…)` names. First-party plugins share a distribution,
so each has the folder of its own: who edits PPO trains no DPO again.

Nothing is imported here, and names are those that Python imports by: a wheel and an editable installation of the same
files have one digest.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path, PurePath

from afarm.core.errors import PluginError
from afarm.core.registry import FIRST_PARTY, Component
from afarm.storage.disk import is_source, source_digest, source_files

PLUGINS = "afarm_plugins"
"""The package of the first-party plugins, in which each has a folder."""


def package_of(module: str) -> str:
    """Return the top-level package of a module, or the folder of the first-party plugin that it lies in."""
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == PLUGINS else parts[0]


def plugin_digest(component: Component) -> str:
    """Digest a component's code, once per process: code that is edited later is not the code that runs.

    Raises `PluginError` if it names sources that are not there.
    """
    try:
        return files_digest(component.package, component.modules, component.sources)
    except LookupError as error:
        raise PluginError(f"plugin {component.plugin!r}: a source of {component.full_name!r}, {error}") from error


@cache
def files_digest(distribution: str, modules: tuple[str, ...], sources: tuple[str | Path, ...] = ()) -> str:
    """Digest the files of a distribution, of the top-level packages of `modules`, and of `sources`.

    Raises `LookupError` for sources that are not there.
    """
    return source_digest(plugin_files(distribution, modules, sources))


def plugin_files(distribution: str, modules: Sequence[str], sources: Sequence[str | Path] = ()) -> dict[str, Path]:
    """Map the files that `files_digest` digests by the path from where Python finds them."""
    files = {} if distribution == FIRST_PARTY else _distribution_files(distribution)
    for module in modules:
        if package_of(module) != FIRST_PARTY:
            files |= _module_files(package_of(module))
    for source in sources:
        named = source_files(source, source.parent) if isinstance(source, Path) else _module_files(source)
        if not named:
            kind = "file or folder" if isinstance(source, Path) else "module"
            raise LookupError(f"{str(source)!r}, is no {kind}")
        files |= named
    return files


def _distribution_files(name: str) -> dict[str, Path]:
    """Map the files of an installed distribution; none if there is no distribution of that name."""
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return {}
    # Without RECORD, `files` are those of a source tree: tests and the read-me as well.
    recorded = distribution.files or [] if distribution.read_text("RECORD") else []
    links = [Path(str(path.locate())) for path in recorded if path.suffix == ".pth"]
    files = {path.as_posix(): Path(str(path.locate())) for path in recorded if _is_recorded_source(path)}
    files = {name: path for name, path in files.items() if path.is_file()}
    if links or not files:
        declared = (distribution.read_text("top_level.txt") or "").split()
        for module in declared:
            files |= _module_files(module)
        for folder in () if declared else _linked_folders(links):
            for path in _top_level(folder):
                files |= source_files(path, folder)
    return files


def _is_recorded_source(path: PurePath) -> bool:
    """Tell if a path of RECORD is a module or its data: no script, metadata or editable link."""
    elsewhere = path.is_absolute() or ".." in path.parts
    editable = path.suffix == ".pth" or path.name.startswith("__editable__")
    return not elsewhere and not editable and not path.parts[0].endswith(".dist-info") and is_source(path)


def _linked_folders(links: Sequence[Path]) -> Iterator[Path]:
    """Yield the folders that .pth files add to the search path."""
    for link in links:
        with suppress(OSError):
            for line in link.read_text(encoding="utf-8").splitlines():
                if line and not line.startswith(("import ", "import\t")) and (link.parent / line).is_dir():
                    yield link.parent / line


def _top_level(folder: Path) -> Iterator[Path]:
    """Yield the modules and packages in a folder, not what else lies there (runs, documentation)."""
    for path in sorted(folder.iterdir()):
        if path.suffix == ".py" or (path / "__init__.py").is_file():
            yield path


def _module_files(name: str) -> dict[str, Path]:
    """Map the files of a module or of a whole package; none if there is no such module."""
    spec = _spec(name)
    if spec is None:
        return {}
    roots = [*spec.submodule_search_locations] if spec.submodule_search_locations else [spec.origin or ""]
    files: dict[str, Path] = {}
    for root in filter(Path.is_absolute, map(Path, roots)):  # "built-in" is no path
        if place := _place(root):
            files |= source_files(place, root.parents[name.count(".")])
    return files


def _place(path: Path) -> Path | None:
    """Return `path` or, for a module in an archive, the archive; None if it is not there."""
    nearest = next(place for place in (path, *path.parents) if place.exists())
    return nearest if nearest == path or nearest.is_file() else None


def _spec(name: str) -> ModuleSpec | None:
    """Find a module without importing the packages that it lies in."""
    top, *inner = name.split(".")
    try:
        spec = find_spec(top)
    except (ImportError, ValueError):  # ValueError: a module that was made rather than imported
        return None
    for part in inner:
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = PathFinder.find_spec(f"{spec.name}.{part}", list(spec.submodule_search_locations))
    return spec
