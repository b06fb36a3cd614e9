"""Artifacts that machines share through an object store or a directory, behind each one's own store.

An artifact lies there as `<stage>/<key>/<upload>/…`. The last object, `<stage>/<key>/published.json`, names the upload
and publishes it: what is half uploaded is never seen. It is created only if there is none (S3: `If-None-Match: *`), so
of several writers one wins; the upload of a loser is deleted.
"""

from __future__ import annotations

import json
import platform
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from afarm.core.errors import ConfigError, StoreError
from afarm.storage.contents import META, recorded_files
from afarm.storage.text import without_keys

LAST = "published.json"
"""The object that publishes an artifact."""


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
            self._obstore.put(self._objects, path, directory / name)
        own = {"upload": upload, "content": content, "host": platform.node(), "created": time.time(), "files": names}
        try:
            self._obstore.put(self._objects, f"{stage}/{key}/{LAST}", json.dumps(own).encode(), mode="create")
        except self._obstore.exceptions.AlreadyExistsError:
            self._obstore.delete(self._objects, there)
            return self._published(stage, key) or own
        return own

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
