"""Databases of ledgers that plugins bring, found by the scheme of a URL."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

import afarm
from afarm.core.errors import ConfigError, PluginError
from afarm.judging.database import fixed_place, is_there, is_url
from afarm.judging.ledger import Ledger
from afarm.judging.sqlite_database import SqliteDatabase
from afarm.results import open_ledger


class FolderDatabase(SqliteDatabase):
    """A file of SQLite in the folder that a URL names."""

    def __init__(self, place: str):
        super().__init__(self.file(place))

    @staticmethod
    def file(place: str) -> Path:
        return Path(place.partition("://")[2], "ledger")

    @classmethod
    def is_there(cls, place: Path | str) -> bool:
        return super().is_there(cls.file(str(place)))


class Plugin:
    """A module of a third party's, with a class that is a database and one that is none."""

    @staticmethod
    @afarm.hookimpl
    def register_databases(register: afarm.Register) -> None:
        register("folder", FolderDatabase)
        register("none", dict)
        register("broken", "no_such_module:Database")


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    points = list(importlib.metadata.entry_points(group="afarm"))
    own = importlib.metadata.EntryPoint("own", f"{__name__}:Plugin", "afarm")
    monkeypatch.setattr("afarm.core.plugins._entry_points", lambda places: [*points, own])


def test_a_url_is_opened_by_the_plugin_that_brings_its_scheme(tmp_path: Path) -> None:
    place = f"folder://{tmp_path}"
    assert is_url(place)
    assert fixed_place(place) == place
    assert not is_there(place)
    with open_ledger(place) as none:
        assert none is None
    with Ledger(place) as ledger:
        assert isinstance(ledger.database, FolderDatabase)
        assert ledger.committed("run") == 0.0
    assert is_there(place)
    with open_ledger(place) as opened:
        assert opened is not None
        assert isinstance(opened.database, FolderDatabase)
    assert (tmp_path / "ledger").is_file()


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("none://lab", "is no class of afarm.judging.Database"),
        ("broken://lab", "needs 'no_such_module', which is not installed"),
    ],
)
def test_a_plugin_without_a_database_behind_its_scheme_is_named(place: str, said: str) -> None:
    with pytest.raises(PluginError, match=said):
        Ledger(place)


@pytest.mark.parametrize("place", ["folders://lab", "mysql://me:hunter2@lab/afarm", "mysql:/me:hunter2@lab/afarm"])
def test_a_url_that_no_plugin_opens_is_refused_before_anything_is_made(place: str, tmp_path: Path) -> None:
    for use in (Ledger, is_there, is_url, fixed_place):
        with pytest.raises(ConfigError, match="name a file, or postgresql://HOST/DATABASE") as refused:
            use(place)
        assert "hunter2" not in str(refused.value)


def test_a_file_may_be_called_like_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"a file of that name is \./postgres:…"):
        Ledger("postgres:answers")
    Ledger("./postgres:answers").close()
    assert is_there("./postgres:answers")
    assert (tmp_path / "postgres:answers").is_file()


OTHER = """
import sys
from pathlib import Path
from afarm.judging.sqlite_database import SqliteDatabase
database = SqliteDatabase(Path(sys.argv[1]))
print(database.read("SELECT count(*) FROM paid")[0][0])
database.close()
"""


def test_what_a_process_with_two_connections_writes_stands_whoever_else_opens_and_closes(tmp_path: Path) -> None:
    """A second opening gave up the first one's locks: another process then took SQLite's log away, and rows with it."""
    path = tmp_path / "ledger.sqlite"
    first, second = SqliteDatabase(path), SqliteDatabase(path)

    def others_see() -> int:
        return int(subprocess.run([sys.executable, "-c", OTHER, path], check=True, capture_output=True).stdout)

    first.write(lambda table: table.execute("CREATE TABLE paid (answer)"))
    assert others_see() == 0
    first.write(lambda table: table.execute("INSERT INTO paid VALUES ('yes')"))
    assert others_see() == 1
    first.close()
    second.close()


def test_a_ledger_behind_a_link_is_made_where_it_leads(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "ledger.sqlite")
    SqliteDatabase(tmp_path / "link").close()
    assert (tmp_path / "ledger.sqlite").stat().st_mode & 0o777 == 0o600
