"""Shared stores that plugins bring, found by the scheme of a URL."""

from __future__ import annotations

import importlib.metadata
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import afarm
from afarm.core.errors import ConfigError, PluginError, StoreError
from afarm.storage.artifacts import Store
from afarm.storage.shared_store import SharedStore, open_shared_store


class CopyingStore(SharedStore):
    """A folder that artifacts are copied to."""

    def __init__(self, url: str):
        self.url = self.name = url
        self.folder = Path(url.partition("://")[2])

    def fetch(self, stage: str, key: str, directory: Path) -> bool:
        if (self.folder / stage / key).is_dir():
            shutil.copytree(self.folder / stage / key, directory, dirs_exist_ok=True)
            return True
        return False

    def publish(self, stage: str, key: str, directory: Path, content: str) -> None:
        shutil.copytree(directory, self.folder / stage / key, dirs_exist_ok=True)

    def broken(self, stage: str, key: str, what: str) -> StoreError:
        return StoreError(f"{stage}/{key} is {what}")

    def require_usable(self) -> None:
        self.folder.mkdir(exist_ok=True)

    @contextmanager
    def marked(self, mark: str) -> Iterator[None]:
        yield

    def require_mark(self, mark: str) -> None:
        pass

    def abandoned(self, seconds: float = 0.0) -> dict[str, int]:
        return {}

    def delete_upload(self, upload: str) -> None:
        pass


class Plugin:
    """A module of a third party's, with a class that is a store and one that is none."""

    @staticmethod
    @afarm.hookimpl
    def register_stores(register: afarm.Register) -> None:
        register("copy", CopyingStore)
        register("none", dict)


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    points = list(importlib.metadata.entry_points(group="afarm"))
    own = importlib.metadata.EntryPoint("own", f"{__name__}:Plugin", "afarm")
    monkeypatch.setattr("afarm.core.plugins._entry_points", lambda places: [*points, own])


def write(directory: Path) -> dict[str, object]:
    (directory / "weights").write_text("a")
    return {}


def refuse(directory: Path) -> dict[str, object]:
    raise AssertionError("it is made again")


@pytest.mark.parametrize("scheme", ["copy", "COPY"])
def test_a_store_is_opened_by_the_plugin_that_brings_its_scheme(scheme: str, tmp_path: Path) -> None:
    url = f"{scheme}://{tmp_path}/shared"
    made, _ = Store(tmp_path / "one", shared=open_shared_store(url)).create().make("made", {"seed": 1}, write)
    found, reused = Store(tmp_path / "two", shared=open_shared_store(url)).create().make("made", {"seed": 1}, refuse)
    assert reused
    assert found.content == made.content
    assert (tmp_path / "shared" / "made" / made.key / "weights").is_file()


def test_what_a_store_holds_damaged_is_not_used(tmp_path: Path) -> None:
    shared = open_shared_store(f"copy://{tmp_path}/shared")
    made, _ = Store(tmp_path / "one", shared=shared).create().make("made", {"seed": 1}, write)
    (tmp_path / "shared" / "made" / made.key / "weights").write_text("b")
    with pytest.raises(StoreError, match="is damaged: weights has other bytes"):
        Store(tmp_path / "two", shared=shared).create().make("made", {"seed": 1}, refuse)


def test_a_place_that_no_plugin_opens_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--store ftp://….*: name s3://.*pip install 'afarm\[store\]'") as refused:
        open_shared_store("ftp://me:hunter2@lab")
    assert "hunter2" not in str(refused.value)
    with pytest.raises(ConfigError, match="--store is empty: name s3://"):
        open_shared_store(" ")
    with pytest.raises(PluginError, match=r"is no class of afarm\.SharedStore"):
        open_shared_store("none://lab")
