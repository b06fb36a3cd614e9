"""Runs and artifacts on disk: content-addressed, whole or absent.

An artifact is a directory `artifacts/<stage>/<key>/` with an `artifact.json` that says what its key was digested from,
so that `why` can compare it with what is wanted now. It is written beside (`<key>.partial`, where a killed training
stage finds its checkpoints again), synced and renamed. A lock per key makes two writers of one key safe: the second
waits and takes the first one's.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from afarm.core.errors import AfarmError, StoreError
from afarm.core.seeding import digest

META = "artifact.json"


@dataclass(frozen=True, slots=True)
class Artifact:
    """A finished artifact. `content` digests its files; `key_fields` is what its key digests, by name."""

    stage: str
    key: str
    path: Path
    content: str
    key_fields: Mapping[str, Any]
    meta: Mapping[str, Any]

    @property
    def name(self) -> str:
        return f"{self.stage}/{self.key}"


def artifact_key(key_fields: Mapping[str, Any]) -> str:
    """The key of an artifact made from these ingredients."""
    return digest("artifact", key_fields, length=16)


def require_writable(root: Path) -> None:
    """Raises `StoreError` where nothing can be written in `root` or, while it is missing, where it would be made."""
    nearest = next(path for path in (root, *root.absolute().parents) if path.exists())
    probe = nearest / f".probe-{os.getpid()}"
    with _output_errors(root):
        probe.write_bytes(b"")
        probe.unlink()


@contextmanager
def _output_errors(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"the output directory {root} cannot be written: {error.strerror}; choose another with --output-dir"
        ) from error


class Store:
    """The directory tree under `--output-dir`."""

    def __init__(self, root: Path, create: bool = True, tell: Callable[[str], None] = lambda text: None):
        """Creates `root` where it is missing, unless told to leave it as it is. Raises `StoreError` where it cannot be
        written. `tell` is told what a user should hear of: that another process is waited for."""
        self.root = root
        self.tell = tell
        self.artifacts = root / "artifacts"
        self.runs = root / "runs"
        if not create:
            return
        with _output_errors(root):
            for directory in (self.artifacts, self.runs):
                directory.mkdir(parents=True, exist_ok=True)
        require_writable(root)

    @property
    def ledger_path(self) -> Path:
        return self.root / "ledger.sqlite"

    def partial(self, stage: str, key: str) -> Path:
        """Where an artifact is while it is made."""
        return self.artifacts / stage / f"{key}.partial"

    def find(self, stage: str, key: str) -> Artifact | None:
        """The finished artifact, or None."""
        path = self.artifacts / stage / key
        try:
            meta = json.loads((path / META).read_text(encoding="utf-8"))
            return Artifact(stage, key, path, meta["content"], meta["key_fields"], meta)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreError(
                f"the artifact {path} is damaged ({error}); delete that directory to make it again"
            ) from error

    def make(
        self,
        stage: str,
        key_fields: Mapping[str, Any],
        write: Callable[[Path], Mapping[str, Any]],
        versions: Mapping[str, str] | None = None,
        *,
        label: str = "",
        spend: Callable[[], Mapping[str, float]] = dict,
    ) -> tuple[Artifact, bool]:
        """The artifact made from these ingredients, and whether it was there already.

        Where it is missing, `write(directory)` fills a directory and returns a summary. A directory left by a killed
        or failed `write` is handed to the next one as it is: what is in it may be used (checkpoints) or overwritten.
        The `versions` of libraries, its `label` and what was spent on it (asked once it is written) are recorded with
        it, and are no part of its key.
        Raises `StoreError` where the disk is full or cannot be written; then nothing half-written counts.
        """
        key = artifact_key(key_fields)
        if found := self.find(stage, key):
            return found, True
        final, partial = self.artifacts / stage / key, self.partial(stage, key)
        with storage_errors(final), self._locked(stage, key):
            if found := self.find(stage, key):  # another process made it while we waited for the lock
                return found, True
            partial.mkdir(parents=True, exist_ok=True)
            started = time.time()
            summary = dict(write(partial))
            shutil.rmtree(partial / CHECKPOINTS, ignore_errors=True)
            meta: dict[str, Any] = {
                "stage": stage,
                "label": label,
                "key": key,
                "key_fields": key_fields,
                "content": content_digest(partial),
                "created": started,
                "seconds": round(time.time() - started, 3),
                "spend": dict(spend()),
                "summary": summary,
                "versions": dict(versions or {}),
            }
            write_json(partial / META, meta)
            sync_tree(partial)
            if final.exists():  # a directory without its metadata: the remains of a deletion
                shutil.rmtree(final)
            partial.rename(final)
            _sync(final.parent)
        return Artifact(stage, key, final, meta["content"], key_fields, meta), False

    @contextmanager
    def _locked(self, stage: str, key: str) -> Iterator[None]:
        directory = self.artifacts / stage
        directory.mkdir(parents=True, exist_ok=True)
        with (directory / f".{key}.lock").open("w") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.tell(f"{stage} {key[:8]}: another process is making it; waiting for that one")
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def of_stage(self, stage: str, label: str | None = None) -> list[Artifact]:
        """Every finished artifact of a kind of stage, or only those made under `label`; the oldest first."""
        keys = [m.parent.name for m in (self.artifacts / stage).glob(f"*/{META}") if m.parent.suffix != ".partial"]
        found = [artifact for key in keys if (artifact := self.find(stage, key))]
        fitting = [a for a in found if label is None or a.meta.get("label") == label]
        return sorted(fitting, key=lambda a: a.meta["created"])

    def all(self) -> list[Artifact]:
        """Every finished artifact, by stage and age."""
        return [artifact for stage in sorted(self.artifacts.glob("*/")) for artifact in self.of_stage(stage.name)]

    def partials(self) -> list[Path]:
        """What killed or running stages have left unfinished."""
        return sorted(self.artifacts.glob("*/*.partial"))

    def abandoned(self, before: float) -> list[Path]:
        """The unfinished ones that nobody writes now, nor has written to since the time `before` (in Unix seconds)."""
        return [path for path in self.partials() if not self._is_locked(path) and _newest(path) <= before]

    def _is_locked(self, partial: Path) -> bool:
        lock = partial.with_name(f".{partial.stem}.lock")
        if not lock.exists():
            return False
        with lock.open("a") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def uses(self) -> dict[str, set[str]]:
        """For each finished run, the names of the artifacts that it refers to. Raises `StoreError` where its record is
        damaged."""
        found: dict[str, set[str]] = {}
        for record in sorted(self.runs.glob("*/run.json")):
            try:
                run = json.loads(record.read_text(encoding="utf-8"))
                found[record.parent.name] = {f"{s['kind']}/{s['key']}" for s in run["stages"]}
            except (OSError, ValueError, KeyError, TypeError) as error:
                # Taken for a run that uses nothing, its artifacts would be collected.
                raise StoreError(f"{record} is damaged ({error}): mend or delete it") from error
        return found

    def in_use(self) -> set[str]:
        """Names of the artifacts that a finished run refers to."""
        return set().union(*self.uses().values())

    def run_dir(self, name: str) -> Path:
        path = self.runs / name
        with storage_errors(path):
            path.mkdir(parents=True, exist_ok=True)
        return path


# ------------------------------------------------------------------------------------------------------ checkpoints

CHECKPOINTS = "checkpoints"


class DirectoryCheckpoints:
    """Implements `afarm.core.interfaces.Checkpoints` in one directory, keeping the newest."""

    def __init__(self, directory: Path):
        self.directory = directory / CHECKPOINTS

    def save(self, step: int, write: Callable[[Path], None]) -> None:
        """See `afarm.core.interfaces.Checkpoints.save`."""
        with storage_errors(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
            beside = self.directory / f".{step}.tmp"
            shutil.rmtree(beside, ignore_errors=True)
            beside.mkdir()
            write(beside)
            sync_tree(beside)
            final = self.directory / f"step-{step:08d}"
            shutil.rmtree(final, ignore_errors=True)
            beside.rename(final)
            _sync(self.directory)
            for older in self._finished()[:-1]:
                shutil.rmtree(older, ignore_errors=True)

    def latest(self) -> tuple[int, Path] | None:
        """See `afarm.core.interfaces.Checkpoints.latest`."""
        finished = self._finished()
        return (int(finished[-1].name.removeprefix("step-")), finished[-1]) if finished else None

    def _finished(self) -> list[Path]:
        return sorted(self.directory.glob("step-*")) if self.directory.is_dir() else []


class MetricsFile:
    """`metrics.jsonl` of a training stage: one line a step. A resumed stage drops what comes after its checkpoint."""

    def __init__(self, path: Path, resume_from: int | None = None):
        self.path = path
        kept: list[str] = []
        if resume_from is not None and path.exists():
            kept = [line for line in _whole_lines(path) if json.loads(line)["step"] <= resume_from]
        beside = path.with_name(f".{path.name}.tmp")
        with storage_errors(path):
            beside.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
            beside.replace(path)
        self.kept = frozenset(kept)

    def __call__(self, step: int, metrics: Mapping[str, float]) -> None:
        line = json.dumps({"step": step, **metrics})
        if line in self.kept:  # told again by what was resumed at its very end
            return
        with storage_errors(self.path), self.path.open("a", encoding="utf-8") as handle:
            handle.write(line + "\n")


def _whole_lines(path: Path) -> list[str]:
    """The lines of a file whose last one may have been cut short by a kill."""
    text = path.read_text(encoding="utf-8")
    return text[: text.rfind("\n") + 1].splitlines()


# ------------------------------------------------------------------------------------------------------------ files


_DISK_TROUBLE = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO, errno.EFBIG}


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn errors about disk and rights, the operating system's and libraries', into a `StoreError` that says what to
    do."""
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
            what, cause = error.filename or path, error.strerror
        elif os.strerror(errno.ENOSPC) in str(error) or free == 0:
            # safetensors and torch have errors of their own for a full disk, and torch's do not even name it.
            what, cause = path, os.strerror(errno.ENOSPC)
        else:
            raise
        raise StoreError(
            f"{what} cannot be written: {cause}{'' if free is None else f' ({free / 2**20:.0f} MiB free)'}; nothing "
            "finished is lost: make room or mend the rights, then run the same command to go on"
        ) from error


def content_digest(directory: Path, skip: Iterable[str] = (META, "metrics.jsonl", "trackers")) -> str:
    """A digest of the names and bytes of all files below `directory`, logs, metadata and hidden files apart.

    Hidden files are what a kill leaves of a file that was being written beside.
    """
    total = hashlib.blake2b(digest_size=12)
    skipped = set(skip)
    files = (p for p in directory.rglob("*") if p.is_file() and not p.name.startswith("."))
    for path in sorted(p for p in files if skipped.isdisjoint(p.relative_to(directory).parts)):
        total.update(str(path.relative_to(directory)).encode() + b"\0")
        with path.open("rb") as handle:
            total.update(hashlib.file_digest(handle, "sha256").digest())
    return total.hexdigest()


def source_digest(sources: Iterable[Path]) -> str:
    """A digest of the Python files and packaged data under `sources`, bytecode apart."""
    total = hashlib.blake2b(digest_size=12)
    for source in sources:
        for path in [source] if source.is_file() else sorted(p for p in source.rglob("*") if p.is_file()):
            if "__pycache__" in path.parts or path.suffix in {".pyc", ".so"}:
                continue
            total.update(
                str(path.relative_to(source.parent)).encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest()
            )
    return total.hexdigest()


def write_json(path: Path, value: Any) -> None:
    """Write `value` beside and rename, so that readers see the old file or the new one."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with storage_errors(path):
        with beside.open("w", encoding="utf-8", errors="backslashreplace") as handle:
            json.dump(value, handle, indent=2, ensure_ascii=False)
            handle.write("\n")
            _flush(handle)
        beside.replace(path)


def sync_tree(directory: Path) -> None:
    """Force all files below `directory` to the disk, so that a rename never publishes what a crash could lose."""
    for path in directory.rglob("*"):
        _sync(path)
    _sync(directory)


def _flush(handle: TextIO) -> None:
    handle.flush()
    os.fsync(handle.fileno())


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _newest(directory: Path) -> float:
    """When anything in `directory` was last changed, in Unix seconds."""
    return max(path.stat().st_mtime for path in [directory, *directory.rglob("*")])


def tree_size(directory: Path) -> int:
    """Bytes of all files below `directory`."""
    return sum(p.stat().st_size for p in directory.rglob("*") if p.is_file())
