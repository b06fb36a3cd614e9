"""Runs and artifacts on disk: content-addressed, whole or absent.

An artifact is a directory `artifacts/<stage>/<key>/` with an `artifact.json` that says what its key was digested from,
so that `storage.reuse` can compare it with what is wanted now. It is written beside (`<key>.partial`, where a killed
training stage finds its checkpoints again), synced and renamed. A lock per key makes two writers of one key safe: the
second waits and takes the first one's.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from afarm.core.errors import DataError, StoreError
from afarm.core.seeding import digest
from afarm.storage.checkpoints import CHECKPOINTS
from afarm.storage.disk import (
    last_change,
    output_dir_errors,
    require_writable,
    storage_errors,
    sync,
    sync_tree,
    write_json,
)
from afarm.storage.runs import RECORD, read_run, run_directories

META = "artifact.json"

NOT_CONTENT = frozenset({META, "metrics.jsonl", "trackers"})
"""Names of files and folders of an artifact that its content digest leaves out: metadata and logs."""


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
    """Digest `key_fields` to the key of the artifact made from them."""
    return digest("artifact", key_fields, length=16)


def content_digest(directory: Path) -> str:
    """Digest the names and bytes of all files below `directory`, without logs, metadata and hidden files.

    Hidden files are what a kill leaves of a file that was being written beside.
    """
    total = hashlib.blake2b(digest_size=12)
    files = (p for p in directory.rglob("*") if p.is_file() and not p.name.startswith("."))
    for path in sorted(p for p in files if NOT_CONTENT.isdisjoint(p.relative_to(directory).parts)):
        total.update(str(path.relative_to(directory)).encode() + b"\0")
        with path.open("rb") as handle:
            total.update(hashlib.file_digest(handle, "sha256").digest())
    return total.hexdigest()


class Store:
    """The directory tree under `--output-dir`."""

    def __init__(self, root: Path, notify: Callable[[str], None] = lambda text: None):
        """`notify` is called with what a user should hear of: that another process is waited for."""
        self.root = root
        self.notify = notify
        self.artifacts = root / "artifacts"
        self.runs = root / "runs"

    def create(self) -> Store:
        """Make the directories that are missing. Raises `StoreError` if they cannot be written."""
        with output_dir_errors(self.root):
            for directory in (self.artifacts, self.runs):
                directory.mkdir(parents=True, exist_ok=True)
        require_writable(self.root)
        return self

    @property
    def ledger_path(self) -> Path:
        return self.root / "ledger.sqlite"

    def partial(self, stage: str, key: str) -> Path:
        """Return where an artifact is while it is made."""
        return self.artifacts / stage / f"{key}.partial"

    def find(self, stage: str, key: str) -> Artifact | None:
        """Return the finished artifact, or None. Raises `StoreError` if it is damaged."""
        path = self.artifacts / stage / key
        try:
            meta = json.loads((path / META).read_text(encoding="utf-8"))
            # Development versions before 0.1 called them otherwise: listed and collected, never reused (other keys).
            fields = meta["made_from"] if "made_from" in meta else meta["key_fields"]
            return Artifact(stage, key, path, meta["content"], fields, meta)
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
        """Make the artifact of `key_fields`, or reuse it; the second value says if it was there already.

        A directory left by a killed or failed `write` is handed to the next one as it is: what is in it may be used
        (checkpoints) or overwritten. Raises `StoreError` if the disk is full or cannot be written; then nothing
        half-written counts.

        Args:
            stage: the kind of stage, which is the artifact's folder.
            key_fields: what its key digests, as JSON values by name.
            write: fills a directory and returns a summary.
            versions: of libraries; recorded, no part of the key.
            label: the stage's name in a run; recorded, no part of the key.
            spend: asked for what was spent once the artifact is written; recorded, no part of the key.
        """
        key = artifact_key(key_fields)
        if artifact := self.find(stage, key):
            return artifact, True
        final, partial = self.artifacts / stage / key, self.partial(stage, key)
        with storage_errors(final), self._locked(stage, key):
            if artifact := self.find(stage, key):  # another process made it while we waited for the lock
                return artifact, True
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
            sync(final.parent)
        return Artifact(stage, key, final, meta["content"], key_fields, meta), False

    @contextmanager
    def _locked(self, stage: str, key: str) -> Iterator[None]:
        directory = self.artifacts / stage
        directory.mkdir(parents=True, exist_ok=True)
        with (directory / f".{key}.lock").open("w") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.notify(f"{stage} {key[:8]}: another process is making it; waiting for that one")
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def of_stage(self, stage: str, label: str | None = None) -> list[Artifact]:
        """List the finished artifacts of a kind of stage, or those made under `label`, the oldest first."""
        keys = [m.parent.name for m in (self.artifacts / stage).glob(f"*/{META}") if m.parent.suffix != ".partial"]
        artifacts = [artifact for key in keys if (artifact := self.find(stage, key))]
        labelled = [a for a in artifacts if label is None or a.meta.get("label") == label]
        return sorted(labelled, key=lambda a: a.meta["created"])

    def all(self) -> list[Artifact]:
        """List every finished artifact, by stage and age."""
        return [artifact for stage in sorted(self.artifacts.glob("*/")) for artifact in self.of_stage(stage.name)]

    def partials(self) -> list[Path]:
        """List what killed or running stages have left unfinished."""
        return sorted(self.artifacts.glob("*/*.partial"))

    def abandoned(self, before: float) -> list[Path]:
        """List the unfinished ones that nobody writes now or has written to since `before`, in Unix seconds."""
        return [path for path in self.partials() if not self._is_locked(path) and last_change(path) <= before]

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
        """Map each finished run to the names of the artifacts it refers to.

        Raises `StoreError` if a run's record is damaged: taken for a run that uses nothing, its artifacts would be
        collected.
        """
        used: dict[str, set[str]] = {}
        for run in run_directories(self.runs):
            try:
                used[run.name] = read_run(run).artifacts
            except (DataError, KeyError, TypeError) as error:
                raise StoreError(f"{run / RECORD} is damaged ({error}): fix or delete it") from error
        return used

    def in_use(self) -> set[str]:
        """Collect the names of the artifacts that a finished run refers to."""
        return set().union(*self.uses().values())

    def run_dir(self, name: str) -> Path:
        """Return the directory of the run `name`, made if it is missing."""
        path = self.runs / name
        with storage_errors(path):
            path.mkdir(parents=True, exist_ok=True)
        return path
