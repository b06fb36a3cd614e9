"""The part of a plugin's code that goes into the keys of what the plugin makes.

Of a third party's component these are all files of its distribution, wherever its modules lie: those that pip recorded
or, if it is installed in editable mode, the modules and packages that it declares. To them come the top-level modules
of its entry point and of its target, and what `register(…, sources=…)` names. Of a namespace package that several
distributions share it is the own portion. What lies beside the modules of an editable project and is no part of it
(tests, setup.py) does not count unless they import it. First-party plugins share a distribution, so each has the folder
of its own: who edits PPO trains no DPO again.

Nothing is imported here, and names are those that Python imports by: a wheel and an editable installation of the same
files have one digest.
"""

from __future__ import annotations

import ast
import importlib.metadata
import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path, PurePath
from urllib.parse import urlparse
from urllib.request import url2pathname

from afarm.core.errors import PluginError
from afarm.core.registry import FIRST_PARTY, Component
from afarm.experiment.result_numbers import numbered
from afarm.storage.disk import is_source, source_digest, source_files

PLUGINS = "afarm_plugins"
"""The package of the first-party plugins, in which each has a folder."""


BESIDE = {
    *("setup", "conftest", "test", "tests", "unit_test", "unit_tests", "example", "examples", "exercise", "exercises"),
    *("benchmark", "benchmarks", "build", "dist", "ci", "bin", "scripts", "tools", "tasks", "manage", "noxfile"),
    *("doc", "docs", "documentation", "manpages", "news", "newsfragments", "changelog", "htmlcov", "toxfile"),
    *("debian", "pavement", "dodo", "fabfile", "conanfile"),
}
"""Modules and packages beside those of a project, as setuptools leaves them out of a flat layout."""


@cache
def find_package(module: str) -> str:
    """Return the outermost package of a single distribution, or the folder of a first-party plugin.

    That is the top-level package of `module`, or the first below namespace packages.
    """
    first, *inner = module.split(".")
    name = first
    while inner and (name == PLUGINS or _is_namespace(name)):
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
    files = {} if distribution in ("", FIRST_PARTY) else _distribution_files(distribution, modules)
    for module in modules:
        if find_package(module) != FIRST_PARTY:
            files |= _module_files(find_package(module))
    for source in sources:
        named = source_files(source, source.parent) if isinstance(source, Path) else _module_files(source)
        if not named:
            kind = "file or folder" if isinstance(source, Path) else "module"
            raise LookupError(f"{str(source)!r}, is no {kind}")
        files |= named
    return files


def _distribution_files(name: str, modules: Sequence[str]) -> dict[str, Path]:
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
        folders = [*_linked_folders(links), *_project_folder(distribution)]
        for module in declared:
            files |= _module_files(module, folders)
        for folder in () if declared else _linked_folders(links):
            for path in _top_level(folder, _reached(folder, modules)):
                files |= source_files(path, folder)
    return files


def _project_folder(distribution: importlib.metadata.Distribution) -> Iterator[Path]:
    """Yield the folder that an editable distribution was installed from, if pip recorded it."""
    with suppress(ValueError, KeyError, TypeError, AttributeError):
        url = urlparse(json.loads(distribution.read_text("direct_url.json") or "{}")["url"])
        if url.scheme == "file":
            yield Path(url2pathname(url.path))


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


def _top_level(folder: Path, reached: Collection[str]) -> Iterator[Path]:
    """Yield the modules and packages in a folder, not what else lies there (runs, documentation, tests).

    What the plugin's modules have `reached` counts in any case.
    """
    for path in sorted(folder.iterdir()):
        is_module = path.suffix == ".py" or (path / "__init__.py").is_file()
        beside = path.stem.lower() in BESIDE or path.stem.startswith("test_") or path.stem.endswith("_test")
        if (is_module and not beside) or path.stem in reached:
            yield path


def _reached(folder: Path, modules: Iterable[str]) -> set[str]:
    """Collect the top-level names in a folder that `modules` import, at any depth."""
    reached: set[str] = set()
    waiting = {module.partition(".")[0] for module in modules}
    while waiting:
        name = waiting.pop()
        inside = [folder / f"{name}.py", *(folder / name).rglob("*.py")]
        if name not in reached and any(path.is_file() for path in inside):
            reached.add(name)
            waiting |= {imported for path in inside if path.is_file() for imported in _imported(path)}
    return reached


def _imported(path: Path) -> Iterator[str]:
    """Yield the top-level names that a file imports; none if it is no Python."""
    with suppress(SyntaxError, ValueError, RecursionError):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import):
                yield from (alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and not node.level:
                yield str(node.module).partition(".")[0]


def _module_files(name: str, own: Sequence[Path] = ()) -> dict[str, Path]:
    """Map the files of a module or of a whole package; none if there is no such module.

    Of a namespace package these are the portions in the folders `own`, if any are given.
    """
    files: dict[str, Path] = {}
    shared = bool(own) and _is_namespace(name)
    for root in _roots(name):
        if shared and not any(root.resolve().is_relative_to(folder.resolve()) for folder in own):
            continue
        if place := _place(root):
            files |= source_files(place, root.parents[name.count(".")])
    return files


def _place(path: Path) -> Path | None:
    """Return `path` or, for a module in an archive, the archive; None if it is not there."""
    nearest = next(place for place in (path, *path.parents) if place.exists())
    return nearest if nearest == path or nearest.is_file() else None


def _is_namespace(name: str) -> bool:
    """Tell if a package has no file of its own, so that several distributions may have portions of it."""
    return _located(name)[1]


def _roots(name: str) -> list[Path]:
    """List the folders of a package, or the file of a module; empty if there is none."""
    return _located(name)[0]


def _located(name: str) -> tuple[list[Path], bool]:
    """Find a module's places, and if it is a namespace package, without importing what it lies in."""
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
