"""Contents of artifacts: which files they are, their digests, and what has happened to them since.

`artifact.json` lists each file with its size, the times of its last changes and its digest. An artifact is reused if
sizes and times are as they were. Of its two times anyone can set the first again (`touch`), the second (ctime) the
system alone sets: who restores size and first time is found by the second. A file with another time (the store was
copied, say) is digested once, and its new times are remembered.

Logs are recorded as well, but are no content: they hold times, and what is made from the artifact need not be made
again for those.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from afarm.core.seeding import digest
from afarm.storage.disk import decode_json

META = "artifact.json"
"""The metadata of an artifact, in its directory."""

UNRECORDED = frozenset({META, "trackers"})
"""Names of files and folders of an artifact that are not recorded: metadata, and what trackers may still send."""

NOT_CONTENT = UNRECORDED | {"metrics.jsonl"}
"""Names of files and folders of an artifact that its content digest leaves out: metadata and logs."""

Recorded = Mapping[str, Mapping[str, Any]]
"""By the path of each file its "size" in bytes, its "sha256", and its times "modified" and "changed" (ctime), in ns."""


def _own_paths(directory: Path) -> Iterator[tuple[str, Path]]:
    """Yield the paths of an artifact with their names in it, but not what is unrecorded."""
    for path in directory.rglob("*"):
        name = path.relative_to(directory)
        if UNRECORDED.isdisjoint(name.parts):
            yield name.as_posix(), path


def recorded_files(directory: Path) -> dict[str, Path]:
    """Map an artifact's files by path, without metadata and hidden files, which a killed write leaves."""
    files = {name: path for name, path in _own_paths(directory) if not path.name.startswith(".") and path.is_file()}
    return {name: files[name] for name in sorted(files, key=lambda name: name.split("/"))}


def strangers(directory: Path) -> dict[str, str]:
    """Map what in an artifact is neither file nor folder, hidden too, to its kind: "a symbolic link", say."""
    return {name: what for name, path in _own_paths(directory) if (what := other_than(path, stat.S_IFREG))}


def other_than(path: Path, wanted: int) -> str:
    """Name the kind of a path that is neither `wanted` (`S_IFREG`, `S_IFDIR`) nor a folder; else empty."""
    kinds = {stat.S_IFLNK: "a symbolic link", stat.S_IFIFO: "a named pipe", stat.S_IFREG: "a file"}
    try:
        kind = stat.S_IFMT(path.lstat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    return "" if kind in (wanted, stat.S_IFDIR) else kinds.get(kind, "a device or socket")


def record_files(directory: Path) -> dict[str, dict[str, Any]]:
    return {name: _record(path) for name, path in recorded_files(directory).items()}


def digest_content(recorded: Recorded) -> str:
    """Digest the names and digests of recorded files, without logs: an artifact's content."""
    total = hashlib.blake2b(digest_size=12)
    for parts in sorted(name.split("/") for name in recorded):
        if NOT_CONTENT.isdisjoint(parts):
            name = "/".join(parts)
            total.update(name.encode() + b"\0" + bytes.fromhex(recorded[name]["sha256"]))
    return total.hexdigest()


def content_digest(directory: Path) -> str:
    """Digest the names and bytes of all files of an artifact, without logs."""
    return digest_content(record_files(directory))


def inspect_files(
    directory: Path, recorded: Recorded, every_byte: bool = False
) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """Compare files with their records; return damages, a line each, and new records of sound moved files."""
    odd = strangers(directory)
    present = {name: path for name, path in recorded_files(directory).items() if name not in odd}
    damages = [f"{name} is {what}, no file of afarm's" for name, what in sorted(odd.items())]
    damages += [f"{name} is missing" for name in sorted(recorded.keys() - present.keys() - odd.keys())]
    damages += [f"{name} was added" for name in sorted(present.keys() - recorded.keys())]
    moved = {}
    for name in sorted(present.keys() & recorded.keys()):
        before, status = recorded[name], present[name].stat()
        other_times = _times(status) != {"modified": before["modified"], "changed": before["changed"]}
        if status.st_size != before["size"]:
            damages.append(f"{name} has {status.st_size:,} bytes, not {before['size']:,}")
        elif every_byte or other_times:
            now = _record(present[name])
            if now["sha256"] != before["sha256"]:
                damages.append(f"{name} has other bytes than were written")
            elif other_times:
                moved[name] = now
    return damages, moved


def first_few(damages: list[str]) -> str:
    """Name the first three damages in one line, and say how many more there are."""
    return "; ".join(damages[:3]) + (f" and {len(damages) - 3} more" if len(damages) > 3 else "")


def _record(path: Path) -> dict[str, Any]:
    status = path.stat()
    return {"size": status.st_size, **_times(status), "sha256": file_digest(path)}


def _times(status: os.stat_result) -> dict[str, int]:
    return {"modified": status.st_mtime_ns, "changed": status.st_ctime_ns}


def file_digest(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def read_metadata(directory: Path) -> dict[str, Any]:
    """Read an artifact's metadata. Raises `FileNotFoundError`, `NotADirectoryError` or `ValueError`."""
    if what := other_than(directory / META, stat.S_IFREG):
        raise ValueError(f"it is {what}, and not opened")
    read: dict[str, Any] = decode_json((directory / META).read_text(encoding="utf-8"))
    try:
        numbers = [file[name] for file in read["files"].values() for name in ("size", "modified", "changed")]
        is_whole = read["digest"] == metadata_digest(read) and all(type(number) is int for number in numbers)
    except (TypeError, KeyError, AttributeError):  # no object, or one that lacks what afarm writes
        is_whole = False
    if not is_whole:
        raise ValueError("it is not as it was written")
    return read


def metadata_digest(metadata: Mapping[str, Any]) -> str:
    """Digest all that metadata say but for the times of files, which are renewed when a store is moved."""
    files = {name: file["sha256"] for name, file in metadata["files"].items()}
    return digest({**{name: value for name, value in metadata.items() if name != "digest"}, "files": files})
