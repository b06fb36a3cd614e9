"""Contents of artifacts: which files they are, their digests, and what has happened to them since.

`artifact.json` lists each file with its size, the time of its last change and its digest. An artifact is reused if
sizes and times are as they were; a file whose time has moved (the store was copied, say) is digested once, and its new
time is remembered. Logs and metadata are no content.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

META = "artifact.json"
"""The metadata of an artifact, in its directory."""

NOT_CONTENT = frozenset({META, "metrics.jsonl", "trackers"})
"""Names of files and folders of an artifact that its content digest leaves out: metadata and logs."""

Recorded = Mapping[str, Mapping[str, Any]]
"""By the path of each file its "size" in bytes, its last change "modified" in nanoseconds, and its "sha256"."""


def content_files(directory: Path) -> dict[str, Path]:
    """Map the files of an artifact by their paths, without logs, metadata and hidden files.

    Hidden files are what a kill leaves of a file that was being written beside.
    """
    files = (path for path in directory.rglob("*") if path.is_file() and not path.name.startswith("."))
    named = {path.relative_to(directory): path for path in files}
    return {name.as_posix(): named[name] for name in sorted(named) if NOT_CONTENT.isdisjoint(name.parts)}


def record_files(directory: Path) -> dict[str, dict[str, Any]]:
    """Record the files of a finished artifact as `Recorded`."""
    return {name: _record(path) for name, path in content_files(directory).items()}


def content_of(recorded: Recorded) -> str:
    """Digest the names and digests of recorded files: an artifact's content."""
    total = hashlib.blake2b(digest_size=12)
    for name in sorted(recorded, key=lambda name: name.split("/")):
        total.update(name.encode() + b"\0" + bytes.fromhex(recorded[name]["sha256"]))
    return total.hexdigest()


def content_digest(directory: Path) -> str:
    """Digest the names and bytes of all files of an artifact."""
    return content_of(record_files(directory))


@dataclass(slots=True)
class Inspection:
    """Damages of an artifact, one line each, and new records of sound files whose time has moved."""

    damages: list[str] = field(default_factory=list)
    moved: dict[str, dict[str, Any]] = field(default_factory=dict)


def inspect_files(directory: Path, recorded: Recorded, every_byte: bool = False) -> Inspection:
    """Compare the files in `directory` with the recorded ones.

    With `every_byte` each is digested, otherwise only those whose time of change has moved.
    """
    present = content_files(directory)
    inspection = Inspection([f"{name} is missing" for name in sorted(recorded.keys() - present.keys())])
    inspection.damages += [f"{name} was added" for name in sorted(present.keys() - recorded.keys())]
    for name in sorted(present.keys() & recorded.keys()):
        before, stat = recorded[name], present[name].stat()
        moved = stat.st_mtime_ns != before["modified"]
        if stat.st_size != before["size"]:
            inspection.damages.append(f"{name} has {stat.st_size:,} bytes, not {before['size']:,}")
        elif every_byte or moved:
            now = _record(present[name])
            if now["sha256"] != before["sha256"]:
                inspection.damages.append(f"{name} has other bytes than were written")
            elif moved:
                inspection.moved[name] = now
    return inspection


def _record(path: Path) -> dict[str, Any]:
    stat = path.stat()
    return {"size": stat.st_size, "modified": stat.st_mtime_ns, "sha256": file_digest(path)}


def file_digest(path: Path) -> str:
    """Digest the bytes of a file with SHA-256."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
