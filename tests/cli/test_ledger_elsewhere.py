"""`--ledger FILE`: the answers of judges in a place of one's own, and what is said of a place that will not do."""

from __future__ import annotations

import importlib.metadata
import os
import re
from pathlib import Path

import pytest
from said import Afarm

from afarm.core.errors import StoreError
from afarm.judging.sqlite_database import require_usable

PASSWORD = "hunter2"


def test_a_ledger_file_can_lie_elsewhere(afarm: Afarm, tmp_path: Path) -> None:
    assert afarm("run", "--recipe", "light.yaml", "--ledger", "shared/answers.sqlite").code == 0
    assert [path.relative_to(tmp_path) for path in tmp_path.rglob("*.sqlite")] == [Path("shared/answers.sqlite")]
    assert afarm("ledger", "--ledger", "shared/answers.sqlite").code == 0
    refused = afarm("run", "--recipe", "light.yaml", "--ledger", "mysql://lab/afarm")
    assert "name a file, or postgresql://HOST/DATABASE" in refused.err
    typo = afarm("run", "--recipe", "light.yaml", "--ledger", f"postgres:/me:{PASSWORD}@lab/afarm")
    assert "--ledger postgres:… is no URL: name a file, or postgresql://HOST/DATABASE" in typo.err
    assert typo.code == 1
    assert PASSWORD not in typo.err
    assert not Path("postgres:").exists()


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ("full", "the ledger .*/full is a directory"),
        ("full/file/ledger.sqlite", r"the ledger .*/full/file/ledger\.sqlite cannot be made: .*/full/file is a file"),
    ],
)
def test_a_ledger_that_cannot_be_written_is_named_before_anything_is_made(
    place: str, problem: str, afarm: Afarm, tmp_path: Path
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    said = afarm("run", "--recipe", "light.yaml", "--ledger", place)
    assert said.code == 1
    assert re.search(f"{problem}.*; name another file with --ledger", " ".join(said.err.split())), said.err
    assert not list(Path("afarm-runs").glob("artifacts/*/*")), "nothing was made in vain"


def test_rights_that_a_ledger_needs_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may write anywhere: what the system says of rights is given here."""
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    with pytest.raises(StoreError, match=f"cannot be written: {tmp_path} gives you no right to"):
        require_usable(tmp_path / "ledger.sqlite")
    (tmp_path / "ledger.sqlite").touch()
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "ledger.sqlite")
    with pytest.raises(StoreError, match=r"ledger\.sqlite cannot be written: it gives you no right to"):
        require_usable(tmp_path / "ledger.sqlite")


def test_without_the_plugins_of_servers_all_else_works_and_what_installs_them_is_named(
    afarm: Afarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = importlib.metadata.entry_points(group="afarm")
    rest = [point for point in installed if point.name not in ("postgres", "object_store")]
    assert len(rest) == len(installed) - 2
    monkeypatch.setattr("afarm.core.plugins._entry_points", lambda places: rest)
    run = ["run", "--recipe", "light.yaml"]
    assert [afarm(*command).code for command in (run, ["ledger"], ["artifacts", "gc"])] == [0, 0, 0]
    assert afarm("ledger-copy", "copy.sqlite").code == 2
    for option, place, extra in (
        ("--ledger", f"postgresql://me:{PASSWORD}@lab/afarm", "postgres"),
        ("--store", "s3://lab/afarm", "store"),
        ("--store", "shared", "store"),
    ):
        refused = afarm(*run, option, place)
        assert refused.code == 1
        assert re.search(rf"pip install .*\[{extra}\]'", refused.err)
        assert PASSWORD not in refused.err
    assert not Path("shared").exists()
