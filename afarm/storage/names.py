"""Names that come from files, checked before they are part of a path.

A record, a bundle or a store may come from anybody, and `../../.ssh` is a path too. What becomes a path is checked
where it is read, by these functions alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from afarm.core.errors import DataError

LONGEST = 240
"""Bytes of a name: file systems allow 255, and afarm adds endings such as `.partial`."""


def is_plain_name(name: object) -> bool:
    """Tell if `name` is exactly one component of a path, on Windows as well, and not too long."""
    if not isinstance(name, str) or not name.strip(". ") or any(mark in name for mark in "/\\\0"):
        return False
    try:
        return len(name.encode()) <= LONGEST
    except UnicodeEncodeError:  # half a surrogate pair
        return False


def is_plain_path(path: object) -> bool:
    """Tell if `path` is a relative one of plain names, with `/` between them."""
    return isinstance(path, str) and all(map(is_plain_name, path.split("/")))


def require_plain_names(source: object, names: Mapping[str, object]) -> None:
    """Raise `DataError` for the first of `names` that is not plain, by its field of `source`."""
    for field, name in names.items():
        if not is_plain_name(name):
            raise DataError(
                f"{source}: {field} must be the name of one file or folder, not {name!r:.80}; the command that made "
                "it writes it afresh"
            )
