"""Artifacts that machines share through an object store or a directory, behind each one's own store.

An artifact lies there as `<stage>/<key>/<upload>/…`. The last object, `<stage>/<key>/published.json`, names the upload
and publishes it: what is half uploaded is never seen. It is created only if there is none (S3: `If-None-Match: *`), so
of several writers one wins; the upload of a loser is deleted.
"""

from __future__ import annotations

import json
import platform
import re
import shlex
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any
from urllib.parse import unquote

from afarm import ConfigError, SharedStore, StoreError
from afarm.results import META, is_plain_path, recorded_files, without_keys

LAST = "published.json"
"""The object that publishes an artifact."""

UPLOADED = re.compile(r"([^/]+/[^/]+/[0-9a-f]{32})/.+")
"""An object of an upload, which is the first group."""

LONGEST = SharedStore.abandoned_after / 2
"""Seconds that one object of an upload may take: of what took longer, others may be deleted by now."""


FORMS = "s3://BUCKET/FOLDER, gs://BUCKET/FOLDER or a directory"
"""The places that a store can be at, as a message names them."""


class ObjectStore(SharedStore):
    """A folder of an object store or of a file system, with artifacts of all machines that use it."""

    def __init__(self, url: str):
        """Open the folder, made with its first object. Raises `ConfigError` if obstore cannot publish there."""
        self.url, self.directory = url, _parse_directory(url)
        self.name = str(self.directory) if url.lower().startswith("file:") else without_keys(url)
        try:
            import obstore
            from obstore.exceptions import BaseError
            from obstore.store import HTTPStore, MemoryStore, from_url
        except ImportError as error:
            raise ConfigError("--store needs obstore: pip install 'afarm[store]'") from error
        self._obstore: Any = obstore
        self._opened: Any = None
        try:
            if self.directory is None:
                self._opened = from_url(url)
            elif self.directory.exists() and not self.directory.is_dir():
                raise NotADirectoryError("it is a file")
        except (BaseError, ValueError, OSError) as error:
            raise ConfigError(
                f"--store {self.name} cannot be opened ({_first_sentence(error)}): name {FORMS}"
            ) from error
        if isinstance(self._opened, HTTPStore | MemoryStore):
            raise ConfigError(f"--store {self.name} cannot be opened (afarm cannot publish there): name {FORMS}")

    @property
    def _objects(self) -> Any:
        """The folder as obstore has it. Raises `FileNotFoundError` for a directory that is not there."""
        if self._opened is None and self.directory is not None:
            if not self.directory.is_dir():
                raise FileNotFoundError(f"there is no directory {self.directory}")
            self._opened = self._obstore.store.LocalStore(self.directory)
        return self._opened

    def _put(self, path: str, content: bytes | Path, **mode: str) -> None:
        if self.directory is not None:
            self.directory.mkdir(parents=True, exist_ok=True)
        self._obstore.put(self._objects, path, content, **mode)

    def fetch(self, stage: str, key: str, directory: Path) -> bool:
        with self._explained("read"):
            published = self._published(stage, key)
            if published is None:
                return False
            for name in published["files"]:
                path = f"{stage}/{key}/{published['upload']}/{name}"
                try:
                    found = self._obstore.get(self._objects, path)
                except FileNotFoundError as error:
                    raise self.broken(stage, key, f"incomplete: {path} is missing there") from error
                (directory / name).parent.mkdir(parents=True, exist_ok=True)
                with (directory / name).open("wb") as file:
                    for chunk in found:
                        file.write(chunk)
            return True

    def broken(self, stage: str, key: str, what: str) -> StoreError:
        """Return the error that a published artifact is `what`, with the folder to delete in the store."""
        if self.directory is not None:
            deleted = f"`rm -r {shlex.quote(str(self.directory / stage / key))}`"
        else:
            deleted = f"all below {self.name.rstrip('/')}/{stage}/{key}/"
        return StoreError(
            f"the artifact {stage}/{key} in the store {self.name} is {what}. It is not used. Delete its folder in the "
            f"store ({deleted}), then give the same command again: that makes and publishes it again"
        )

    def publish(self, stage: str, key: str, directory: Path, content: str) -> None:
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
            self._put(path, directory / name)
            if time.monotonic() - begun > LONGEST:
                raise StoreError(
                    f"{stage}/{key}: {name} took more than {LONGEST / 3600:.0f} hours to reach the store {self.name}, "
                    "after which an upload may be taken for abandoned: give the same command again"
                )
        own = {"upload": upload, "content": content, "host": platform.node(), "created": time.time(), "files": names}
        try:
            self._put(f"{stage}/{key}/{LAST}", json.dumps(own).encode(), mode="create")
        except self._obstore.exceptions.AlreadyExistsError:
            self._obstore.delete(self._objects, there)
            return self._published(stage, key) or own
        return own

    @contextmanager
    def marked(self, mark: str) -> Iterator[None]:
        with self._explained("written"):
            self._put(mark, b"", mode="create")
        try:
            yield
        finally:
            with self._explained("written"):
                self._obstore.delete(self._objects, mark)

    def require_usable(self) -> None:
        """Write and read an object that does not stay. A missing directory need only be possible to make."""
        if self.directory is not None and not self.directory.exists():
            nearest = next(path for path in self.directory.parents if path.exists())
            with self._explained("written"), TemporaryFile(dir=nearest):
                return
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
                self._put(mark, b"", mode="create")
            except self._obstore.exceptions.AlreadyExistsError:
                return
        raise StoreError(
            f"the store {self.name} writes over what is there, so of two writers of one artifact both would publish: "
            "use one that refuses it (S3: If-None-Match)"
        )

    def abandoned(self, seconds: float = SharedStore.abandoned_after) -> dict[str, int]:
        """See `SharedStore.abandoned`. Times are by the store's own clock."""
        if self.directory is not None and not self.directory.exists():
            raise StoreError(f"there is no store at {self.name}: name one that is there with --store")
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
        self._put(name, b"")
        try:
            return self._obstore.head(self._objects, name)["last_modified"]
        finally:
            self._obstore.delete(self._objects, name)

    def _published(self, stage: str, key: str) -> Mapping[str, Any] | None:
        """Read what the last object says; None if there is none. Raises `StoreError` if it is damaged."""
        path = f"{stage}/{key}/{LAST}"
        try:
            said = bytes(self._obstore.get(self._objects, path).bytes())
        except FileNotFoundError:
            return None
        try:
            published: Mapping[str, Any] = json.loads(said)
            for field, kind in {"upload": str, "content": str, "host": str, "files": list}.items():
                if not isinstance(published[field], kind):
                    raise TypeError(f"{field!r} is of another type")
            for name in (published["upload"], *published["files"]):
                if not is_plain_path(name):
                    raise ValueError(f"it names a file {name!r} outside of it")
        except KeyError as error:
            raise self.broken(stage, key, f"damaged: {path} has no {error}") from error
        except (ValueError, TypeError, RecursionError) as error:
            raise self.broken(stage, key, f"damaged: {path} cannot be used: {error}") from error
        return published

    @contextmanager
    def _explained(self, verb: str) -> Iterator[None]:
        try:
            yield
        except (self._obstore.exceptions.BaseError, ValueError, NotImplementedError, OSError) as error:
            raise StoreError(
                f"the store {self.name} cannot be {verb}: {_first_sentence(error)}. {self._way_out(error)}: the same "
                "command then goes on"
            ) from error

    def _way_out(self, error: Exception) -> str:
        if self.directory is not None:
            return f"See to it that {self.directory} can be a directory, with rights to read and write it"
        if "BadScheme" in str(error):
            return "Its endpoint is http://, not encrypted: if that is meant, set AWS_ALLOW_HTTP=true on every machine"
        return "See to it that the bucket is there, and that this machine has credentials that may read and write it"


def _parse_directory(url: str) -> Path | None:
    """Return the directory of `--store`; None for a URL. Raises `ConfigError` for a misspelt one."""
    match = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):(/*)(.*)", url, re.DOTALL)
    if match is None:
        return Path(url).absolute()
    scheme, slashes, rest = match[1].lower(), match[2], match[3]
    if scheme == "file":
        if len(slashes) == 3:
            return Path("/", unquote(rest))
        raise ConfigError(f"--store {url}: name the directory itself, /{unquote(rest)}")
    if len(slashes) > 1:
        return None
    if slashes or scheme in ("s3", "gs"):
        meant = f"{scheme}://{rest}" if scheme in ("s3", "gs") else FORMS
        raise ConfigError(f"--store {without_keys(url)}: name {meant} (a directory of that name is ./{scheme}:…)")
    return Path(url).absolute()


def _first_sentence(error: Exception) -> str:
    """Return what an error of obstore's says, without its debug text and the markup of a server's answer."""
    said = str(error).partition("Debug source:")[0]
    told = re.search("<Message>([^<]*)", said)
    line = f"{said.partition('<')[0]}{told[1] if told else ''}"
    return without_keys(" ".join(line.split())[:500]).rstrip(".: ")
