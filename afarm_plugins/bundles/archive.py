"""The file of a bundle: a zip whose first member, the manifest, says what it is about.

A bundle may come from anybody. Nothing of it is executed or unpickled, and it is refused, before a file is written, if
it names a place outside, holds a link, or is larger than is allowed. A file that was cut off or damaged is seen by
zip's own checksums.
"""

from __future__ import annotations

import json
import re
import stat
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from afarm import DataError, StoreError, open_user_file
from afarm.results import is_plain_path

MANIFEST = "manifest.json"
FORMAT = 1

LARGEST = 4 * 2**30
"""Bytes that a bundle may hold when it is unpacked."""

LARGEST_MANIFEST = 2**20

MOST_FILES = 200_000

ODD = re.compile(r"[\x00-\x1f\x7f:*?\"<>|]")
"""Characters that names of members have not: some system cannot write them."""

DATE = (1980, 1, 1, 0, 0, 0)
"""The date of all members: equal contents are equal bytes."""


def write_archive(path: Path, about: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
    """Write a bundle of `files` by their names, with a manifest that says what it is `about`.

    Raises `StoreError` if the file cannot be written.
    """
    manifest = json.dumps({"format": FORMAT, **about}, indent=1, ensure_ascii=False).encode()
    try:
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in [(MANIFEST, manifest), *sorted(files.items())]:
                member = zipfile.ZipInfo(name, DATE)
                member.external_attr = 0o644 << 16
                archive.writestr(member, data, zipfile.ZIP_DEFLATED)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror or error}") from error


def unpack_archive(path: Path, directory: Path, largest: int = LARGEST) -> dict[str, Any]:
    """Unpack a bundle into an empty directory and return its manifest.

    Raises `DataError` naming what is wrong with it. A damaged file is seen when it is written, all else before.
    """
    try:
        with open_user_file(path) as file, zipfile.ZipFile(file) as archive:
            _require_plain_members(path, archive, largest)
            manifest = json.loads(archive.read(MANIFEST))
            if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
                raise DataError(f"{path}: its {MANIFEST} is not of format {FORMAT}: install the afarm that made it")
            archive.extractall(directory)
            return manifest
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError) as error:
        raise DataError(f"{path}: is no bundle, or was cut off: {error}. Have it sent again") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: is no bundle: {error}") from error


def _require_plain_members(path: Path, archive: zipfile.ZipFile, largest: int) -> None:
    """Raise `DataError` without a manifest, and for a member that must not be there."""
    sizes = {member.filename: member.file_size for member in archive.infolist()}
    if MANIFEST not in sizes:
        raise DataError(f"{path}: is no bundle: it has no {MANIFEST}; `afarm bundle` makes one")
    if sizes[MANIFEST] > LARGEST_MANIFEST:
        raise DataError(f"{path}: its {MANIFEST} is larger than {LARGEST_MANIFEST:,} bytes")
    if len(archive.infolist()) != len({name.casefold() for name in sizes}):
        raise DataError(f"{path}: names a file twice")
    if len(sizes) > MOST_FILES:
        raise DataError(f"{path}: has more than {MOST_FILES:,} files")
    for member in archive.infolist():
        name = member.filename
        if not is_inside(name):
            raise DataError(f"{path}: names a file outside of its directory: {name!r:.80}")
        kind = stat.S_IFMT(member.external_attr >> 16)
        if kind not in (0, stat.S_IFREG) or member.is_dir():
            raise DataError(f"{path}: {name!r:.80} is no plain file")
    if (total := sum(sizes.values())) > largest:
        raise DataError(f"{path}: would unpack to {total:,} bytes, more than {largest:,}")


def is_inside(name: str) -> bool:
    """Tell if a member's name is a plain path below the directory that it is unpacked to."""
    return is_plain_path(name) and not ODD.search(name)
