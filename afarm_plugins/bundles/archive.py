"""The file of a bundle: a zip whose first member lists all others with their sizes and digests.

A bundle may come from anybody. Nothing of it is executed or unpickled, and it is refused, before a file is written, if
it names a place outside, holds a link, is larger than it says or than is allowed, or is not whole.
"""

from __future__ import annotations

import hashlib
import json
import re
import stat
import zipfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from afarm import DataError, StoreError
from afarm.results import is_plain_path

MANIFEST = "manifest.json"
FORMAT = 1

LARGEST = 4 * 2**30
"""Bytes that a bundle may hold when it is unpacked."""

LARGEST_MANIFEST = 64 * 2**20

MOST_FILES = 200_000

BLOCK = 2**20

ODD = re.compile(r"[\x00-\x1f\x7f:*?\"<>|]")
"""Characters that names of members have not: some system cannot write them."""

DATE = (1980, 1, 1, 0, 0, 0)
"""The date of all members: equal contents are equal bytes."""


def write_archive(path: Path, about: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
    """Write a bundle of `files` by their names, with a manifest that says what it is `about`.

    Raises `StoreError` if the file cannot be written.
    """
    listed = {name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in files.items()}
    manifest = {"format": FORMAT, **about, "files": dict(sorted(listed.items()))}
    try:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            _add(archive, MANIFEST, json.dumps(manifest, indent=1, ensure_ascii=False).encode())
            for name in sorted(files):
                _add(archive, name, files[name])
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror or error}") from error


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    member = zipfile.ZipInfo(name, DATE)
    member.compress_type = zipfile.ZIP_DEFLATED
    member.external_attr = 0o644 << 16
    archive.writestr(member, data)


def unpack_archive(path: Path, directory: Path, largest: int = LARGEST) -> dict[str, Any]:
    """Unpack a bundle into an empty directory and return its manifest.

    Raises `DataError` naming what is wrong with it; files that were written by then are whole and listed.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            manifest = _manifest(path, archive)
            files = manifest["files"]
            _require_members(path, archive, files, largest)
            for name, listed in files.items():
                _unpack(path, archive, name, listed, directory)
            return manifest
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise DataError(f"{path}: is no bundle, or was cut off: {error}. Have it sent again") from error
    except ValueError as error:
        raise DataError(f"{path}: is no bundle: {error}") from error


def _manifest(path: Path, archive: zipfile.ZipFile) -> dict[str, Any]:
    members = {member.filename: member for member in archive.infolist()}
    if MANIFEST not in members:
        raise DataError(f"{path}: is no bundle: it has no {MANIFEST}; `afarm bundle` makes one")
    if members[MANIFEST].file_size > LARGEST_MANIFEST:
        raise DataError(f"{path}: its {MANIFEST} is larger than {LARGEST_MANIFEST:,} bytes")
    with archive.open(MANIFEST) as handle:
        manifest = json.loads(handle.read(LARGEST_MANIFEST + 1).decode("utf-8"))
    files = manifest.get("files") if isinstance(manifest, dict) else None
    fits = isinstance(files, dict) and all(
        isinstance(one, dict) and isinstance(one.get("size"), int) and isinstance(one.get("sha256"), str)
        for one in files.values()
    )
    if not fits or manifest.get("format") != FORMAT:
        raise DataError(f"{path}: its {MANIFEST} is not of format {FORMAT}: install the afarm that made it")
    return dict(manifest)


def _require_members(path: Path, archive: zipfile.ZipFile, files: Mapping[str, Any], largest: int) -> None:
    """Raise `DataError` for a member that is not what the manifest lists, or that must not be there."""
    names = [member.filename for member in archive.infolist()]
    if len(names) != len({name.casefold() for name in names}):
        raise DataError(f"{path}: names a file twice")
    if len(names) > MOST_FILES:
        raise DataError(f"{path}: has more than {MOST_FILES:,} files")
    for member in archive.infolist():
        name = member.filename
        if not is_inside(name):
            raise DataError(f"{path}: names a file outside of its directory: {name!r:.80}")
        kind = stat.S_IFMT(member.external_attr >> 16)
        if kind not in (0, stat.S_IFREG) or member.is_dir():
            raise DataError(f"{path}: {name!r:.80} is no plain file")
        if name != MANIFEST and (name not in files or member.file_size != files[name]["size"]):
            raise DataError(f"{path}: {name!r:.80} is not as its {MANIFEST} lists it")
    if missing := files.keys() - set(names):
        raise DataError(f"{path}: {min(missing)!r:.80} is listed and not there")
    if (total := sum(member.file_size for member in archive.infolist())) > largest:
        raise DataError(f"{path}: would unpack to {total:,} bytes, more than {largest:,}")


def is_inside(name: str) -> bool:
    """Tell if a member's name is a plain path below the directory that it is unpacked to."""
    return is_plain_path(name) and not ODD.search(name)


def _unpack(path: Path, archive: zipfile.ZipFile, name: str, listed: Mapping[str, Any], directory: Path) -> None:
    """Write one member, as many bytes as it may have. Raises `DataError` if they are others than listed."""
    target = directory.joinpath(*PurePosixPath(name).parts)
    target.parent.mkdir(parents=True, exist_ok=True)
    found, left = hashlib.sha256(), int(listed["size"])
    with archive.open(name) as source, target.open("wb") as sink:
        while block := source.read(min(BLOCK, left + 1)):
            left -= len(block)
            if left < 0:
                break
            found.update(block)
            sink.write(block)
    if left or found.hexdigest() != listed["sha256"]:
        target.unlink()
        raise DataError(f"{path}: {name!r:.80} was changed or cut off: its digest is not the one listed")
