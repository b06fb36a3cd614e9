"""Plugins of one file, and what code of others may not do while it is loaded or called."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from hashlib import sha256
from importlib.metadata import Distribution, EntryPoint
from pathlib import Path
from typing import Any

from afarm.core.errors import ConfigError
from afarm.core.hooks import GROUP

_imported: dict[Path, str] = {}
"""The digests of the files that this process imported, as they were then."""


class PluginFile(Distribution):
    """A file in the place of a distribution: `mine.py` is its name, a digest of its text its version."""

    def __init__(self, path: Path):
        self.path, self.digest = path, sha256(path.read_bytes()).hexdigest()[:8]

    def read_text(self, filename: str) -> str | None:
        return f"Name: {self.path.name}\nVersion: {self.digest}\n" if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Any:
        return self.path.parent / path


def add_files(files: Iterable[str | Path]) -> list[EntryPoint]:
    """Return the entry points of plugins of one file, whose folders are put at the end of `sys.path`.

    Raises `ConfigError` for a file that is not there, is no module, or is hidden by another module of its name.
    """
    return [_entry_point(Path(file).absolute()) for file in files]


def _entry_point(path: Path) -> EntryPoint:
    which, name = f"--plugin-file {path}", path.stem
    if not path.is_file():
        raise ConfigError(f"{which} {'is a directory' if path.is_dir() else 'does not exist'}: name a Python file")
    if path.suffix != ".py" or not name.isidentifier():
        raise ConfigError(f"{which}: name it as a Python module, in letters, digits and '_', such as mine.py")
    file = PluginFile(path)
    if _imported.setdefault(path, file.digest) != file.digest:
        raise ConfigError(f"{which} was edited since this process loaded it: restart Python, or the kernel")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
        importlib.invalidate_caches()
    found = importlib.util.find_spec(name)
    if found is None or not found.origin or not path.samefile(found.origin):
        raise ConfigError(f"{which}: another module is called {name!r} ({found and found.origin}): rename the file")
    point = EntryPoint(name, name, GROUP)
    vars(point)["dist"] = file
    return point


GENERATORS: Mapping[str, tuple[str, str, Callable[[Any], Any]]] = {
    "random": ("getstate", "setstate", lambda module: None),
    "numpy.random": (
        *("get_state", "set_state"),
        lambda module: None if module.get_bit_generator().seed_seq else module.RandomState().get_state(),
    ),
    "torch": ("get_rng_state", "set_rng_state", lambda module: module.Generator().get_state()),
}
"""Global generators by module: what reads and sets one, and its state before it was seeded; None if it was not."""


class _Noted:
    """Hands text for stdout on to stderr."""

    def __init__(self, note: Callable[[str], None]):
        self._note = note

    def write(self, text: str) -> int:
        if text:
            self._note("prints to stdout{} (shown on stderr)")
        return sys.stderr.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr, name)


def _plain(state: Any) -> Any:
    """Return a state without arrays, whose comparison is no truth value."""
    parts = state if isinstance(state, tuple) else (state,)
    return [part.tolist() if hasattr(part, "tolist") else part for part in parts]


@contextmanager
def contain(who: str, notes: list[str], when: str = "", restored: str = "restored") -> Iterator[None]:
    """Keep stdout and the global random generators from code of others.

    What it tries is added to `notes`, and is said on stderr once: that `who` does it, `when`, and how the state of a
    generator was `restored`.
    """

    def note(what: str) -> None:
        if (told := what.format(when)) not in notes:
            notes.append(told)
            sys.stderr.write(f"{who} {told}\n")

    loaded = {name: module for name in GENERATORS if (module := sys.modules.get(name))}
    before = {name: getattr(module, GENERATORS[name][0])() for name, module in loaded.items()}
    try:
        with redirect_stdout(_Noted(note)):
            yield
    finally:
        for name, (read, restore, unseeded) in GENERATORS.items():
            if module := sys.modules.get(name):
                state = before[name] if name in before else unseeded(module)
                if state is not None and _plain(state) != _plain(getattr(module, read)()):
                    note(f"changes the global random state of {name}{{}} ({restored})")
                    getattr(module, restore)(state)
