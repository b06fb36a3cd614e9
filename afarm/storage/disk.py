"""Files: read as text, written whole, digested, and what goes wrong with the disk turned into advice."""

from __future__ import annotations

import errno
import gzip
import hashlib
import json
import math
import os
import shutil
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath
from typing import IO, Any, TextIO

from afarm.core.errors import AfarmError, DataError, StoreError

NOT_FINITE = ("NaN", "Infinity", "-Infinity")
"""The names of the numbers that JSON has not, as in the JSON form of protocol buffers; `float` reads them."""

GZIP = b"\x1f\x8b"
"""The bytes that every gzip file begins with."""

_DISK_TROUBLE = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO, errno.EFBIG}


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn errors about disk space and permissions, also libraries', into a `StoreError` with advice."""
    try:
        yield
    except AfarmError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno not in _DISK_TROUBLE:
            raise
        free: float | None = None
        with suppress(OSError):
            free = shutil.disk_usage(path.parent).free
        if isinstance(error, OSError):
            is_own = error.filename is None or Path(error.filename) == _beside(path)
            what, cause = path if is_own else error.filename, error.strerror
        elif os.strerror(errno.ENOSPC) in str(error) or free == 0:
            # safetensors and torch have errors of their own for a full disk, and torch's do not even name it.
            what, cause = path, os.strerror(errno.ENOSPC)
        else:
            raise
        raise StoreError(
            f"{what} cannot be written: {cause}{'' if free is None else f' ({free / 2**20:.0f} MiB free)'}; nothing "
            "finished is lost: make room or fix the rights, then run the same command to go on"
        ) from error


@contextmanager
def open_text(path: Path, place: Callable[[], str], newline: str | None = None) -> Iterator[IO[str]]:
    """Open a text file, plain or gzipped whatever its name, as UTF-8 with or without a byte order mark.

    Problems until it is closed raise `DataError`, naming the `place` reached.
    """
    try:
        with path.open("rb") as file:
            opened: Any = gzip.open if file.read(len(GZIP)) == GZIP else open
        with opened(path, "rt", encoding="utf-8-sig", newline=newline) as handle:
            yield handle
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise DataError(f"{path}: {place()}: its gzip is damaged or cut short ({error}); copy it anew") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: line {_undecodable_line(path, opened)}: no UTF-8 text: save it as UTF-8") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error


def _undecodable_line(path: Path, opened: Callable[..., IO[bytes]]) -> int:
    """Return the line, counted from 1, of the first byte that is no UTF-8: readers are ahead."""
    number = 1
    with suppress(UnicodeDecodeError), opened(path, "rb") as handle:
        for line in handle:
            line.decode("utf-8")
            number += 1
    return number


def give_rights(directory: Path) -> None:
    """Give the files and folders in `directory` its own rights: safetensors writes for the owner alone."""
    rights = stat.S_IMODE(directory.stat().st_mode)
    for path in directory.rglob("*"):
        if not path.is_symlink():  # of a tracker's: it would give rights to what lies elsewhere
            path.chmod(rights if path.is_dir() else rights & 0o666)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path to write; it replaces `path` at the end, or after an error is deleted."""
    beside = _beside(path)
    try:
        yield beside
        beside.replace(path)
    finally:
        with suppress(OSError):  # if nothing can be written, nothing is left to delete
            beside.unlink(missing_ok=True)


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


@contextmanager
def writing(path: Path) -> Iterator[TextIO]:
    """Open `path` to be written whole or not at all; half surrogate pairs become backslash escapes."""
    if not path.parent.is_dir():
        raise StoreError(f"{path} cannot be written: there is no directory {path.parent}")
    with (
        storage_errors(path),
        replacing(path) as beside,
        storage_errors(path),  # within too: the free space that it tells is that before what was written is deleted
        beside.open("w", encoding="utf-8", errors="backslashreplace") as handle,
    ):
        yield handle


def require_writable(root: Path, make: Iterable[Path] = ()) -> None:
    """Make directories in `root`. Raises `StoreError` unless files can be written there, or will be."""
    try:
        for directory in make:
            directory.mkdir(parents=True, exist_ok=True)
        nearest = next(path for path in (root, *root.absolute().parents) if path.exists())
        probe = nearest / f".probe-{os.getpid()}"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise StoreError(
            f"the output directory {root} cannot be written: {error.strerror}; choose another with --output-dir"
        ) from error


def decode_json(text: str | bytes) -> Any:
    """Parse JSON. Raises `ValueError`, also for what is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def json_text(value: Any, **options: Any) -> str:
    """Write `value` as JSON with the options of `json.dumps`, NaN and infinities by their names.

    What a diverged run logs is real, and whoever looks for the cause wants to see it.
    """
    options = {"ensure_ascii": False, **options}
    try:
        return json.dumps(value, allow_nan=False, **options)
    except ValueError:
        return json.dumps(_named(value), allow_nan=False, **options)


def _named(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {name: _named(each) for name, each in value.items()}
    return [_named(each) for each in value] if isinstance(value, list | tuple) else value


def write_json(path: Path, value: Any) -> None:
    """Write `value` as JSON, whole or not at all. Raises `StoreError` if the disk is full or not writable."""
    with writing(path) as handle:
        handle.write(json_text(value, indent=2) + "\n")
        handle.flush()
        os.fsync(handle.fileno())


def write_whole(path: Path, text: str, remedy: str) -> None:
    """Write `text` whole or not at all, half surrogates as "?". Raises `StoreError` with the `remedy`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as beside:
            beside.write_bytes(text.encode("utf-8", "replace"))
    except OSError as error:
        raise StoreError(f"{path}: cannot be written ({error.strerror}); {remedy}") from error


def sync_tree(directory: Path) -> None:
    """Force all files below `directory` to the disk, so that no crash loses what a rename publishes."""
    for path in directory.rglob("*"):
        if stat.S_IFMT(path.lstat().st_mode) in (stat.S_IFREG, stat.S_IFDIR):  # trackers make links, also to nothing
            sync(path)
    sync(directory)


def sync(path: Path) -> None:
    """Force one file, or a directory's list of names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_source(path: PurePath) -> bool:
    """Tell if a file is code or its data: no bytecode, and nothing hidden, such as editors keep."""
    return path.suffix not in {".pyc", ".pyo"} and not any(
        part == "__pycache__" or part.startswith(".") for part in path.parts
    )


def source_files(source: Path, root: Path) -> dict[str, Path]:
    """Map the Python files and packaged data at or below `source`, by their path from `root`."""
    files = [source] if source.is_file() else (path for path in source.rglob("*") if path.is_file())
    named = ((path.relative_to(root), path) for path in files)
    return {name.as_posix(): path for name, path in named if is_source(name)}


def source_digest(files: Mapping[str, Path]) -> str:
    total = hashlib.blake2b(digest_size=12)
    for name, path in sorted(files.items()):
        with path.open("rb") as handle:
            total.update(name.encode() + b"\0" + hashlib.file_digest(handle, "sha256").digest())
    return total.hexdigest()


def tree_size(directory: Path) -> int:
    """Count the bytes of all files below `directory`, not of what links lead to."""
    return sum(status.st_size for status in _statuses(directory) if stat.S_ISREG(status.st_mode))


def last_change(directory: Path) -> float:
    """Return when anything in `directory` was last changed, in Unix seconds."""
    return max((status.st_mtime for status in _statuses(directory)), default=0.0)


def _statuses(directory: Path) -> Iterator[os.stat_result]:
    """Yield the status of `directory` and of all below it, but for what is deleted meanwhile."""
    paths = [] if directory.is_symlink() else directory.rglob("*")
    for path in [directory, *paths]:
        with suppress(FileNotFoundError, NotADirectoryError):
            yield path.lstat()
