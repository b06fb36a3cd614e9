"""Runs and artifacts on disk: content-addressed, whole or absent.

An artifact is a directory `artifacts/<stage>/<key>/` with an `artifact.json` that says what its key was digested from,
so that `storage.reuse` can compare it with what is wanted now. It is written beside (`<key>.partial`, where a killed
training stage finds its checkpoints again), synced and renamed. A lock per key makes two writers of one key safe: the
second waits and takes the first one's.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import shutil
import stat
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

from afarm.core.errors import DataError, StoreError
from afarm.core.seeding import digest
from afarm.storage.checkpoints import CHECKPOINTS
from afarm.storage.contents import (
    META,
    digest_content,
    first_few,
    inspect_files,
    metadata_digest,
    other_than,
    read_metadata,
    record_files,
    strangers,
)
from afarm.storage.disk import (
    give_rights,
    json_text,
    last_change,
    require_writable,
    storage_errors,
    sync,
    sync_tree,
    write_json,
)
from afarm.storage.peak_memory import begin_peak, peak_memory
from afarm.storage.runs import RECORD, read_run, run_directories
from afarm.storage.shared_store import SharedStore

HELD = 256
"""Artifacts that a process keeps others from deleting, the newest: each takes an open file."""

ASK_AGAIN = 10.0
"""Seconds after which a shared store is asked again for an artifact that it had not."""

LEFT_BY = ".left_by"
"""The file of an unfinished artifact that names the code that writes it."""


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
    return digest("artifact", key_fields, length=16)


class Store:
    """The directory tree under `--output-dir`."""

    def __init__(
        self, root: Path, notify: Callable[[str], None] = lambda text: None, shared: SharedStore | None = None
    ):
        """Open the tree at `root`, with `shared` behind it; `notify` tells of waits for other processes."""
        self.root = root
        self.shared = shared
        self._asked: dict[tuple[str, str], float] = {}
        self.notify = notify
        self.artifacts = root / "artifacts"
        self.runs = root / "runs"
        self._held: dict[Path, int] = {}
        weakref.finalize(self, lambda held: [*map(os.close, held.values())], self._held)

    def create(self) -> Store:
        """Make the directories that are missing. Raises `StoreError` if they cannot be written."""
        require_writable(self.root, make=(self.artifacts, self.runs))
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
        self._require_directories(stage, key)
        try:
            return _read_artifact(stage, key, path)
        except (FileNotFoundError, NotADirectoryError):
            return self.find(stage, key) if self._fetched(stage, key) else None
        except (OSError, ValueError) as error:
            raise StoreError(f"the artifact {path} is damaged: {META}: {error}; {self._way_out}") from error

    def _fetched(self, stage: str, key: str) -> bool:
        """Fetch an artifact from the shared store, whole or not at all. Raises `StoreError` if damaged there."""
        last = self._asked.get((stage, key), -ASK_AGAIN)
        if self.shared is None or time.monotonic() - last < ASK_AGAIN:
            return False
        final = self.artifacts / stage / key
        with storage_errors(final):
            final.parent.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(dir=final.parent, prefix=f".{key}.fetched-") as passing:
                copy = Path(passing) / key
                copy.mkdir()
                if not self.shared.fetch(stage, key, copy):
                    self._asked[stage, key] = time.monotonic()
                    return False
                try:
                    damages = self.damages(_read_artifact(stage, key, copy))
                except (OSError, ValueError) as error:
                    damages = [f"{META}: {error}"]
                if damages:
                    raise self.shared.broken(stage, key, f"damaged: {first_few(damages)}")
                sync_tree(copy)
                with suppress(OSError):  # another process has put it there meanwhile
                    copy.rename(final)
            sync(final.parent)
        return (final / META).is_file()

    def _publish(self, artifact: Artifact) -> Artifact:
        if self.shared is not None:
            self.shared.publish(artifact.stage, artifact.key, artifact.path, artifact.content)
        return artifact

    def _misplaced(self, stage: str, key: str) -> str:
        """Name what is in the place of the directory of an artifact or of its kind of stage; empty if none is."""
        for path in (self.artifacts / stage, self.artifacts / stage / key):
            if what := other_than(path, stat.S_IFDIR):
                return f"{path} is {what}, no directory of afarm's"
        return ""

    def _require_directories(self, stage: str, key: str) -> None:
        """Raise `StoreError` if an artifact's directory is something else: a link would lead out of the store."""
        for name in (key, f"{key}.partial"):
            if what := self._misplaced(stage, name):
                raise StoreError(f"{what}, and is not used; {self._way_out}")

    @property
    def _way_out(self) -> str:
        where = shlex.quote(str(self.root))
        return (
            f"`afarm artifacts verify --remove --output-dir {where}` deletes what is damaged, and the same run makes "
            "it again (answers of judges are in the ledger: none is bought twice)"
        )

    def damages(self, artifact: Artifact, every_byte: bool = False) -> list[str]:
        """List an artifact's damages; files of recorded size and times are read only if `every_byte` is."""
        recorded = artifact.meta["files"]
        if artifact_key(artifact.key_fields) != artifact.key:
            return [f"{META} is not as it was written"]
        damages, moved = inspect_files(artifact.path, recorded, every_byte)
        if moved and not damages:
            with suppress(StoreError):  # a store that may only be read is digested each time
                write_json(artifact.path / META, {**artifact.meta, "files": {**recorded, **moved}})
        return damages

    def require_sound(self, artifact: Artifact) -> None:
        """Raise `StoreError` with stage, damages and the way out if an artifact is not as it was made."""
        if damages := self.damages(artifact):
            label = artifact.meta["label"] or artifact.stage
            raise StoreError(
                f"the artifact of stage {label!r} in {artifact.path} was changed after it was made, and is not used: "
                f"{first_few(damages)}. {self._way_out}"
            )

    def make(
        self,
        stage: str,
        key_fields: Mapping[str, Any],
        write: Callable[[Path], Mapping[str, Any]],
        versions: Mapping[str, str] | None = None,
        *,
        label: str = "",
        code: str = "",
        spend: Callable[[], Mapping[str, float]] = dict,
    ) -> tuple[Artifact, bool]:
        """Make the artifact of `key_fields`, or reuse it; the second value says if it was there already.

        A directory left by a killed or failed `write` is handed to the next one as it is: what is in it may be used
        (checkpoints) or overwritten. Raises `StoreError` if what would be reused is damaged, and if the disk is full
        or cannot be written; then nothing half-written counts.

        Args:
            stage: the kind of stage, which is the artifact's folder.
            key_fields: what its key digests, as JSON values by name.
            write: fills a directory and returns a summary.
            versions: of libraries; recorded, no part of the key.
            label: the stage's name in a run; recorded, no part of the key.
            code: names the code that writes, if the key does not: what other code has left is begun afresh.
            spend: asked for what was spent once the artifact is written; recorded, no part of the key.
        """
        key = artifact_key(key_fields)
        if artifact := self._find_sound(stage, key):
            return self._publish(artifact), True
        final, partial = self.artifacts / stage / key, self.partial(stage, key)
        with storage_errors(final), self._locked(stage, key):
            if artifact := self._find_sound(stage, key):  # another process made it while we waited for the lock
                return self._publish(artifact), True
            _begin_unfinished(partial, code)
            created, started, peak_is_known = time.time(), time.perf_counter(), begin_peak()
            summary = dict(write(partial))
            (partial / LEFT_BY).unlink(missing_ok=True)
            shutil.rmtree(partial / CHECKPOINTS, ignore_errors=True)
            for name, what in strangers(partial).items():
                raise StoreError(
                    f"stage {label or stage!r} has written {name}, which is {what}: an artifact holds files and "
                    f"folders alone. Write a file instead; the unfinished artifact is {partial}"
                )
            give_rights(partial)
            files = record_files(partial)
            written: dict[str, Any] = {
                "stage": stage,
                "label": label,
                "key": key,
                "key_fields": dict(key_fields),
                "content": digest_content(files),
                "files": files,
                "created": created,
                "seconds": round(time.perf_counter() - started, 6),  # not 0.0, which would be no time at all
                **peak_memory(peak_is_known),
                "spend": dict(spend()),
                "summary": summary,
                "versions": dict(versions or {}),
            }
            written["digest"] = metadata_digest(json.loads(json_text(written)))
            write_json(partial / META, written)
            meta = read_metadata(partial)
            self._hold(partial, final)
            sync_tree(partial)
            if final.exists():  # a directory without its metadata: the remains of a deletion
                shutil.rmtree(final)
            partial.rename(final)
            sync(final.parent)
        return self._publish(Artifact(stage, key, final, meta["content"], key_fields, meta)), False

    def _find_sound(self, stage: str, key: str) -> Artifact | None:
        """Find an artifact that is as it was made, and hold it: what is in use is not deleted meanwhile."""
        self._require_directories(stage, key)
        path = self.artifacts / stage / key
        if not path.is_dir() and not self._fetched(stage, key):
            return None
        self._hold(path, path)
        try:
            artifact = self.find(stage, key)
            if artifact is None:  # deleted meanwhile, or what a deletion has left
                self._let_go(path)
            else:
                self.require_sound(artifact)
        except StoreError:
            self._let_go(path)
            raise
        return artifact

    def _hold(self, directory: Path, name: Path) -> None:
        """Lock `directory`, which is or will be `name`, for reading, until `release`; nothing waits for that."""
        if name in self._held:
            return
        with suppress(OSError):  # a file system without locks, or too many open files
            descriptor = os.open(directory, os.O_RDONLY)
            self._held[name] = descriptor
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        while len(self._held) > HELD:
            self._let_go(next(iter(self._held)))

    def _let_go(self, name: Path) -> None:
        if name in self._held:
            os.close(self._held.pop(name))

    def release(self) -> None:
        """Let others delete what was made or reused here."""
        for name in list(self._held):
            self._let_go(name)

    @contextmanager
    def _locked(self, stage: str, key: str) -> Iterator[None]:
        directory = self.artifacts / stage
        directory.mkdir(parents=True, exist_ok=True)
        with self._open_lock(directory / f".{key}.lock") as handle:
            if not _try_lock(handle):
                self.notify(f"{stage} {key[:8]}: another process is making it; waiting for that one")
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    @staticmethod
    def _open_lock(path: Path) -> IO[bytes]:
        """Open a lock. Raises `StoreError` if it is no file: a link would have another one opened."""
        if what := other_than(path, stat.S_IFREG):
            raise StoreError(f"the lock {path} is {what}: delete it, then run the same command again")
        return path.open("ab")

    def inspect(self, stage: str, key: str) -> tuple[str, list[str]]:
        """Read every byte of an artifact; return its label, empty if it is unreadable, and its damages."""
        if what := self._misplaced(stage, key):
            return "", [what]
        try:
            artifact = self.find(stage, key)
        except StoreError as error:
            return "", [f"{META} cannot be read: {error.__cause__}"]
        if artifact is None:
            return "", [f"{META} is missing"] if (self.artifacts / stage / key).is_dir() else []
        return artifact.meta["label"], self.damages(artifact, every_byte=True)

    def remove(self, stage: str, key: str) -> bool:
        """Delete an artifact, and return True; return False, and leave it, if an open run uses it.

        What a kill leaves of it counts as absent. Of what is no directory of the store it deletes the link or file
        alone: never what lies elsewhere. Raises `StoreError` if it cannot be deleted.
        """
        path = self.artifacts / stage / key
        if self._misplaced(stage, ""):
            path = self.artifacts / stage
        if self._misplaced(stage, key):
            with storage_errors(path):
                path.unlink()
            return True
        with storage_errors(path), self._locked(stage, key):
            if _is_held(path):
                return False
            (path / META).unlink(missing_ok=True)
            shutil.rmtree(path)
        return True

    def keys(self, stage: str) -> list[str]:
        """List the keys of finished artifacts, damaged ones too; [""] if the stage has no directory."""
        if self._misplaced(stage, ""):
            return [""]
        return sorted(
            path.name
            for path in (self.artifacts / stage).glob("[!.]*")
            if self._misplaced(stage, path.name) or path.suffix != ".partial"
        )

    def stages(self) -> list[str]:
        return sorted(path.name for path in self.artifacts.glob("*") if not path.name.startswith("."))

    def of_stage(self, stage: str, label: str | None = None) -> list[Artifact]:
        """List the finished artifacts of a kind of stage, or those made under `label`, the oldest first.

        Damaged ones are left out: no run that uses others stops for them.
        """
        artifacts = []
        for key in self.keys(stage):
            with suppress(StoreError):
                if (artifact := self.find(stage, key)) and label in (None, artifact.meta["label"]):
                    artifacts.append(artifact)
        return sorted(artifacts, key=lambda a: a.meta["created"])

    def all(self) -> list[Artifact]:
        """List every finished artifact that is not damaged, by stage and age."""
        return [artifact for stage in self.stages() for artifact in self.of_stage(stage)]

    def partials(self) -> list[Path]:
        """List what killed or running stages have left unfinished."""
        directories = [self.artifacts / stage for stage in self.stages() if not self._misplaced(stage, "")]
        left = [path for directory in directories for path in directory.glob("*.partial")]
        return sorted(path for path in left if not self._misplaced(path.parent.name, path.name))

    def abandoned(self, before: float) -> list[Path]:
        """List the unfinished ones that nobody writes now or has written to since `before`, in Unix seconds."""
        return [path for path in self.partials() if not self._is_locked(path) and last_change(path) <= before]

    def _is_locked(self, partial: Path) -> bool:
        lock = partial.with_name(f".{partial.stem}.lock")
        if not lock.exists():
            return False
        with self._open_lock(lock) as handle:
            return not _try_lock(handle)

    def uses(self) -> dict[str, set[str]]:
        """Map finished runs to the names of their artifacts. Raises `StoreError` for a damaged record."""
        used: dict[str, set[str]] = {}
        for run in run_directories(self.runs):
            try:
                used[run.name] = read_run(run).artifacts
            except DataError as error:
                raise StoreError(f"{run / RECORD} is damaged ({error}): fix or delete it") from error
        return used

    def in_use(self) -> set[str]:
        """Collect the names of the artifacts that a finished run refers to."""
        return set().union(*self.uses().values())

    def run_dir(self, name: str) -> Path:
        path = self.runs / name
        with storage_errors(path):
            path.mkdir(parents=True, exist_ok=True)
        return path


@contextmanager
def view_store(root: Path, tell: Callable[[str], None] = lambda text: None) -> Iterator[Path]:
    """Yield a directory from which the store at `root` can be read without changing it.

    It is `root` itself if that is writable. Otherwise, and if `root` is missing, it is a temporary directory with links
    to the artifacts and runs and a copy of the ledger, because SQLite writes beside a file that it reads. `tell` is
    called if `root` is not writable.
    """
    ledger = Store(root).ledger_path
    try:
        require_writable(root)
    except StoreError as problem:
        tell(f"Note: {problem}")
    if os.access(root, os.W_OK) and (os.access(ledger, os.W_OK) or not ledger.exists()):
        yield root
        return
    with TemporaryDirectory() as passing:
        view = Store(Path(passing))
        for directory, seen in zip((root / "artifacts", root / "runs"), (view.artifacts, view.runs), strict=True):
            if directory.is_dir():
                seen.symlink_to(directory.resolve())
        for ending in ("", "-wal"):
            if os.path.isfile(f"{ledger}{ending}"):
                shutil.copyfile(f"{ledger}{ending}", f"{view.ledger_path}{ending}")
        yield view.root


def _read_artifact(stage: str, key: str, path: Path) -> Artifact:
    meta = read_metadata(path)
    return Artifact(stage, key, path, meta["content"], meta["key_fields"], meta)


def _begin_unfinished(partial: Path, code: str) -> None:
    """Make the directory, or go on in one that the same `code` left. Raises `StoreError` for links, pipes."""
    left_by = partial / LEFT_BY
    if code != (left_by.read_text("utf-8") if left_by.is_file() and not left_by.is_symlink() else ""):
        shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True, exist_ok=True)
    for name, what in strangers(partial).items():
        raise StoreError(f"{partial / name} is {what}, which no stage leaves: delete {partial} to start afresh")
    if code:
        left_by.write_text(code, encoding="utf-8")


def _try_lock(file: IO[bytes] | int) -> bool:
    """Lock an open file or directory for as long as it is open; False if another one has locked it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_held(directory: Path) -> bool:
    """Tell if an open run reads the artifact in `directory`."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        return not _try_lock(descriptor)
    except OSError:  # a file system without locks
        return False
    finally:
        os.close(descriptor)


def require_sound_directory(directory: Path) -> None:
    """Raise `StoreError` if `directory` is that of an artifact in a store, and damaged."""
    path = directory.resolve()
    if len(path.parents) > 2 and path.parents[1].name == "artifacts":
        store = Store(path.parents[2])
        if artifact := store.find(path.parent.name, path.name):
            store.require_sound(artifact)
