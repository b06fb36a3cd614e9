"""Plugins of one file, the choice of plugins that a command line makes, and what a plugin may not do as it loads."""

from __future__ import annotations

import importlib.util
import pickle
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from hashlib import sha256
from importlib.metadata import Distribution, EntryPoint
from pathlib import Path
from typing import Any, NamedTuple

from afarm.core.errors import ConfigError
from afarm.core.hooks import GROUP


class Choice(NamedTuple):
    """Files that are plugins, by their absolute paths, and the names of plugins that are left out."""

    files: tuple[str, ...] = ()
    disabled: tuple[str, ...] = ()


class PluginFile(Distribution):
    """A file in the place of a distribution: `mine.py` is its name, the digest of its text its version.

    What it needs stands in its header of dependencies (PEP 723), if it has one.
    """

    def __init__(self, path: Path):
        self.path, self.source = path, path.read_bytes()

    def read_text(self, filename: str) -> str | None:
        """Return the metadata; None for other files."""
        if filename != "METADATA":
            return None
        lines = [f"Name: {self.path.name}", f"Version: {sha256(self.source).hexdigest()[:8]}"]
        header = re.search(rb"^# /// script\n((?:#.*\n)*?)# ///$", self.source, re.MULTILINE)
        if header:
            import tomllib

            text = re.sub(r"^# ?", "", header[1].decode(), flags=re.MULTILINE)
            lines += [f"Requires-Dist: {needed}" for needed in tomllib.loads(text).get("dependencies", [])]
        return "\n".join([*lines, ""])

    def locate_file(self, path: Any) -> Any:
        """Return the place of a file beside it."""
        return self.path.parent / path


_imported: dict[Path, bytes] = {}
"""The files that this process imported, as they were then."""


def add_files(files: Iterable[str]) -> list[EntryPoint]:
    """Return the entry points of plugins of one file, which can be imported from then on as modules beside them can.

    Raises `ConfigError` for a file that is not there, or whose name is another module's.
    """
    return [*_entry_points(map(Path, files))]


def _entry_points(paths: Iterable[Path]) -> Iterator[EntryPoint]:
    for path in paths:
        which = f"--plugin-file {path}"
        if not path.is_file():
            raise ConfigError(f"{which} {'is a directory' if path.is_dir() else 'does not exist'}: name a Python file")
        if path.suffix != ".py" or not path.stem.isidentifier():
            raise ConfigError(f"{which}: name it as a Python module, in letters, digits and '_', such as mine.py")
        file = PluginFile(path)
        if _imported.setdefault(path, file.source) != file.source:
            raise ConfigError(f"{which} was edited since this process loaded it: restart Python, or the kernel")
        if str(path.parent) not in sys.path:
            sys.path.append(str(path.parent))
            importlib.invalidate_caches()
        found = importlib.util.find_spec(path.stem)
        if found is None or not found.origin or not path.samefile(found.origin):
            other = found.origin if found else None
            raise ConfigError(f"{which}: another module is called {path.stem!r} ({other}): rename the file")
        point = EntryPoint(path.stem, path.stem, GROUP)
        vars(point)["dist"] = file
        yield point


class _Noted:
    """In the place of stdout: hands text on to stderr, and notes that there was some."""

    def __init__(self, plugin: str, notes: list[str]):
        self._plugin, self._notes = plugin, notes

    def write(self, text: str) -> int:
        if text:
            _note(PRINTS, self._plugin, self._notes)
        return sys.stderr.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr, name)


PRINTS = "prints to stdout while it is loaded (shown on stderr)"
DRAWS = "changes the global random state of {} while it is loaded (restored)"


def _note(what: str, plugin: str, notes: list[str]) -> None:
    if what not in notes:
        notes.append(what)
        sys.stderr.write(f"plugin {plugin!r} {what}\n")


GENERATORS: Mapping[str, tuple[Callable[[Any], Any], Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    "random": (lambda m: m.getstate(), lambda m: None, lambda m, state: m.setstate(state)),
    "numpy.random": (
        lambda m: m.get_state(),
        lambda m: None if m.get_bit_generator().seed_seq else m.RandomState().get_state(),  # None: never seeded
        lambda m, state: m.set_state(state),
    ),
    "torch": (
        lambda m: m.get_rng_state(),
        lambda m: m.Generator().get_state(),
        lambda m, state: m.set_rng_state(state),
    ),
}
"""Global generators by their modules: how to read one, to make the state it is imported with, and to set it.

A state of None is one that need not be restored.
"""


@contextmanager
def contained(plugin: str, notes: list[str]) -> Iterator[None]:
    """Keep stdout and global random generators from a plugin that is loaded, and note in `notes` what it tried."""
    before = {name: read(sys.modules[name]) for name, (read, _, _) in GENERATORS.items() if sys.modules.get(name)}
    try:
        with redirect_stdout(_Noted(plugin, notes)):
            yield
    finally:
        for name, (read, first, restore) in GENERATORS.items():
            if module := sys.modules.get(name):
                state = before[name] if name in before else first(module)
                if state is not None and pickle.dumps(state) != pickle.dumps(read(module)):
                    _note(DRAWS.format(name), plugin, notes)
                    restore(module, state)
