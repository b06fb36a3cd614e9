"""Unfinished artifacts: the directory that a stage writes, and what a killed one has left there."""

from __future__ import annotations

import shutil
from pathlib import Path

from afarm.core.errors import StoreError
from afarm.storage.contents import strangers

LEFT_BY = ".left_by"
"""The file that names the code that writes."""


def begin_unfinished(partial: Path, code: str) -> None:
    """Make the directory, or go on with one that the same `code` has left; another's is deleted.

    `code` is empty if the artifact's key names it. Raises `StoreError` for a link or a pipe, which no stage leaves:
    written through, it would change what lies elsewhere.
    """
    left_by = partial / LEFT_BY
    if code != (left_by.read_text("utf-8") if left_by.is_file() and not left_by.is_symlink() else ""):
        shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True, exist_ok=True)
    for name, what in strangers(partial).items():
        raise StoreError(f"{partial / name} is {what}, which no stage leaves: delete {partial} to start afresh")
    if code:
        left_by.write_text(code, encoding="utf-8")
