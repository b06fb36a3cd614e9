"""Artifacts that machines share through an object store or a directory, behind each one's own store.

An artifact lies there as `<stage>/<key>/<upload>/…`. The last object, `<stage>/<key>/published.json`, names the upload
and publishes it: what is half uploaded is never seen. It is created only if there is none (S3: `If-None-Match: *`), so
of several writers one wins; the upload of a loser is deleted.
"""

from __future__ import annotations

import json
import platform
import re
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from afarm.core.errors import ConfigError, StoreError
from afarm.storage.contents import META, recorded_files
from afarm.storage.text import without_keys

LAST = "published.json"
"""The object that publishes an artifact."""

UPLOADED = re.compile(r"([^/]+/[^/]+/[0-9a-f]{32})/.+")
"""An object of an upload, which is the first group."""

ABANDONED = 86400.0
"""Seconds without a new object after which an upload that is not published counts as abandoned."""

LONGEST = ABANDONED / 2
"""Seconds that one object of an upload may take: of what took longer, others may be deleted by now."""


class SharedStore:
    """A folder of an object store or of a file system, with artifacts of all machines that use it."""

    def __init__(self, url: str):
        """Open the folder. Raises `ConfigError` if nothing here knows such a URL."""
        self.url, self.name = url, without_keys(url)
        try:
            import obstore
            from obstore.exceptions import BaseError
            from obstore.store import LocalStore, from_url
        except ImportError as error:
            raise ConfigError("--store needs obstore: pip install 'afarm[store]'") from error
        self._obstore: Any = obstore
        try:
            self._objects = from_url(url) if "://" in url else LocalStore(Path(url).absolute(), mkdir=True)
        except (BaseError, ValueError, OSError) as error:
            said = without_keys(str(error).splitlines()[0])
            forms = "s3://BUCKET/FOLDER, gs://BUCKET/FOLDER or a directory"
            raise ConfigError(f"--store {self.name} cannot be opened ({said}): name {forms}") from error

    def fetch(self, stage: str, key: str, directory: Path) -> bool:
        """Copy an artifact into `directory`, and return True; return False if it is not published.

        Raises `StoreError` if the folder cannot be read.
        """
        with self._explained("read"):
            published = self._published(stage, key)
            if published is None:
                return False
            for name in published["files"]:
                if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                    raise ValueError(f"{stage}/{key} names a file {name!r} outside of it")
                (directory / name).parent.mkdir(parents=True, exist_ok=True)
                with (directory / name).open("wb") as file:
                    for chunk in self._obstore.get(self._objects, f"{stage}/{key}/{published['upload']}/{name}"):
                        file.write(chunk)
            return True

    def publish(self, stage: str, key: str, directory: Path, content: str) -> None:
        """Publish the artifact in `directory`, unless it is there.

        Raises `StoreError` if another content is published under this key, and if the folder cannot be written.
        """
        with self._explained("written"):
            published = self._published(stage, key) or self._upload(stage, key, directory, content)
        if published["content"] != content:
            raise StoreError(
                f"{stage}/{key} was made on {published['host']} with another content than on {platform.node()}: the "
                f"machines differ in what no key knows (libraries, processors). To go on with the one in {self.name}, "
                f"delete {directory} and give the same command again"
            )

    def _upload(self, stage: str, key: str, directory: Path, content: str) -> Mapping[str, Any]:
        """Upload an artifact and publish it; return what is published, by another writer if that was faster."""
        upload, names = uuid.uuid4().hex, [*recorded_files(directory), META]
        there = [f"{stage}/{key}/{upload}/{name}" for name in names]
        for name, path in zip(names, there, strict=True):
            begun = time.monotonic()
            self._obstore.put(self._objects, path, directory / name)
            if time.monotonic() - begun > LONGEST:
                raise StoreError(
                    f"{stage}/{key}: {name} took more than {LONGEST / 3600:.0f} hours to reach the store {self.name}, "
                    "after which an upload may be taken for abandoned: give the same command again"
                )
        own = {"upload": upload, "content": content, "host": platform.node(), "created": time.time(), "files": names}
        try:
            self._obstore.put(self._objects, f"{stage}/{key}/{LAST}", json.dumps(own).encode(), mode="create")
        except self._obstore.exceptions.AlreadyExistsError:
            self._obstore.delete(self._objects, there)
            return self._published(stage, key) or own
        return own

    @contextmanager
    def marked(self, mark: str) -> Iterator[None]:
        """Keep an object of that name in the folder, for `require_mark` of other machines.

        Raises `StoreError` if the folder cannot be written.
        """
        with self._explained("written"):
            self._obstore.put(self._objects, mark, b"", mode="create")
        try:
            yield
        finally:
            with self._explained("written"):
                self._obstore.delete(self._objects, mark)

    def require_usable(self) -> None:
        """Raise `StoreError` if the folder cannot be read and written, as an object shows that does not stay."""
        with self.marked(mark := f"probe-{uuid.uuid4().hex}"), self._explained("read"):
            self._obstore.head(self._objects, mark)

    def require_mark(self, mark: str) -> None:
        """Raise `StoreError` if this folder is not the marked one, or not written, or written over."""
        try:
            with self._explained("read"):
                self._obstore.head(self._objects, mark)
        except StoreError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            raise StoreError(
                f"what the command writes to the store {self.name} is not there: name one that all machines share"
            ) from error
        with self._explained("written"):
            try:
                self._obstore.put(self._objects, mark, b"", mode="create")
            except self._obstore.exceptions.AlreadyExistsError:
                return
        raise StoreError(
            f"the store {self.name} writes over what is there, so of two writers of one artifact both would publish: "
            "use one that refuses it (S3: If-None-Match)"
        )

    def abandoned(self, seconds: float = ABANDONED) -> dict[str, int]:
        """Find uploads, never published, without a new object for so long: their folders, with their bytes.

        By the store's own clock. Raises `StoreError` if the folder cannot be read and written.
        """
        uploads = defaultdict[str, list[Mapping[str, Any]]](list)
        with self._explained("read"):
            for listed in self._obstore.list(self._objects):
                for found in listed:
                    if match := UPLOADED.fullmatch(found["path"]):
                        uploads[match[1]].append(found)
            now = self._now() if uploads else None
            silent = {
                upload: sum(found["size"] for found in objects)
                for upload, objects in uploads.items()
                if all((now - found["last_modified"]).total_seconds() > seconds for found in objects)
            }
            return {upload: size for upload, size in silent.items() if not self._is_published(upload)}

    def delete_upload(self, upload: str) -> None:
        """Delete what `abandoned` found. Raises `StoreError` if the folder cannot be written."""
        with self._explained("written"):
            for listed in self._obstore.list(self._objects, prefix=upload):
                self._obstore.delete(self._objects, [found["path"] for found in listed])

    def _is_published(self, upload: str) -> bool:
        stage, key, name = upload.split("/")
        published = self._published(stage, key)
        return published is not None and published["upload"] == name

    def _now(self) -> Any:
        """Read the store's clock, with which it dates its objects: off an object made for that."""
        name = f"clock-{uuid.uuid4().hex}"
        self._obstore.put(self._objects, name, b"")
        try:
            return self._obstore.head(self._objects, name)["last_modified"]
        finally:
            self._obstore.delete(self._objects, name)

    def _published(self, stage: str, key: str) -> Mapping[str, Any] | None:
        """Read what the last object says; None if there is none."""
        try:
            said: Mapping[str, Any] = json.loads(
                bytes(self._obstore.get(self._objects, f"{stage}/{key}/{LAST}").bytes())
            )
        except FileNotFoundError:
            return None
        return said

    @contextmanager
    def _explained(self, verb: str) -> Iterator[None]:
        try:
            yield
        except (self._obstore.exceptions.BaseError, ValueError, TypeError, KeyError, OSError) as error:
            said = without_keys(" ".join(str(error).split())[:500])
            raise StoreError(
                f"the store {self.name} cannot be {verb}: {said}. See to it that the bucket is there, and that this "
                "machine has credentials that may read and write it: the same command then goes on"
            ) from error
