"""The seam behind a store: artifacts that machines share, at a place that a plugin opens."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from pathlib import Path
from typing import ClassVar

from afarm.core.errors import ConfigError, StoreError, require_promise


class SharedStore(ABC):
    """The artifacts of all machines that share a place, by stage and key.

    Built as `Class(url)`, which raises `ConfigError` for a URL that it cannot open. Every method raises `StoreError` if
    the place cannot be read or written, with the way out.
    """

    abandoned_after: ClassVar[float] = 86400.0
    """Seconds without a new object after which an upload that is not published counts as abandoned."""

    url: str
    """The place, as the workers of a launch open it too."""

    name: str
    """The place as it is shown to people, without keys."""

    @abstractmethod
    def __init__(self, url: str):
        """Open the place."""

    @abstractmethod
    def fetch(self, stage: str, key: str, directory: Path) -> bool:
        """Copy an artifact into `directory`; False if it is not published. Raises `StoreError` if incomplete."""

    @abstractmethod
    def publish(self, stage: str, key: str, directory: Path, content: str) -> None:
        """Publish the artifact in `directory`, whole or not at all, unless it is there.

        Of several writers one publishes. Raises `StoreError` if another content is published under this key.
        """

    @abstractmethod
    def broken(self, stage: str, key: str, what: str) -> StoreError:
        """Return the error that a published artifact is `what`, saying what to delete."""

    @abstractmethod
    def require_usable(self) -> None:
        """Raise `StoreError` if the place cannot be read and written."""

    @abstractmethod
    def marked(self, mark: str) -> AbstractContextManager[None]:
        """Keep an object of that name at the place, for `require_mark` of other machines."""

    @abstractmethod
    def require_mark(self, mark: str) -> None:
        """Raise `StoreError` if this is not the marked place, or if what is there can be written over."""

    @abstractmethod
    def abandoned(self, seconds: float = abandoned_after) -> dict[str, int]:
        """Find uploads, never published, without a new object for so long: their names, with their bytes."""

    @abstractmethod
    def delete_upload(self, upload: str) -> None:
        """Delete what `abandoned` found."""


def open_shared_store(url: str) -> SharedStore:
    """Open a store by the plugin for its URL's scheme, none for a directory. Raises `ConfigError`."""
    from afarm.core.plugins import load_by_scheme

    places = "name s3://BUCKET/FOLDER, gs://BUCKET/FOLDER or a directory"
    if not url.strip():
        raise ConfigError(f"--store is empty: {places}, or leave it out")
    match = re.match("([A-Za-z][A-Za-z0-9+.-]*)://", url)
    scheme = match[1].lower() if match else "directory"
    shown = f"{scheme}://…" if match else "DIR"
    unknown = f"--store {shown}: no plugin opens it: {places} (pip install 'afarm[store]')"
    loaded: type[SharedStore] = load_by_scheme("stores", scheme, unknown)
    fits = isinstance(loaded, type) and issubclass(loaded, SharedStore)
    require_promise(fits, "stores", scheme, f"{loaded!r} is no class of afarm.SharedStore", loaded)
    return loaded(url)
