"""Files that people name: regular files alone are opened, and in a replay those of its bundle."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BufferedReader, TextIOWrapper
from pathlib import Path

_closed: list[tuple[str, Sequence[Path]]] = []


@contextmanager
def close_files(reason: str, besides: Sequence[Path] = ()) -> Iterator[None]:
    """Refuse, with this reason, every model that is named, and every file not below `besides`."""
    _closed.append((reason, besides))
    try:
        yield
    finally:
        _closed.pop()


def why_closed(named: Path | str | None) -> str:
    """Say why nothing of this name is opened; empty outside `close_files`.

    It is a file's or a model's, or None for code."""
    if not _closed:
        return ""
    reason, besides = _closed[-1]
    if named is None:
        return f"not opened: {reason}"
    path = Path(os.path.abspath(named))
    return "" if any(path.is_relative_to(os.path.abspath(place)) for place in besides) else f"not opened: {reason}"


def why_unopened(path: Path) -> str:
    """Say why a file that somebody names is not opened, though there is one; empty if it may be."""
    if not (problem := why_closed(path)) and path.exists() and not (path.is_file() or path.is_dir()):
        return "no regular file but a pipe or a device: save its contents to a file first"
    return problem


def open_user_file(path: Path | str) -> BufferedReader:
    """Open a file that somebody names, for reading.

    Raises `OSError`, whose `strerror` says why it cannot be read."""
    path = Path(path).expanduser()
    if problem := why_unopened(path):
        raise OSError(errno.EINVAL, problem, str(path))
    return path.open("rb")


def read_user_text(path: Path | str) -> str:
    """Return the text of a file that somebody names.

    Raises as `open_user_file` does, and `UnicodeDecodeError`."""
    with TextIOWrapper(open_user_file(path), encoding="utf-8") as handle:
        return handle.read()
