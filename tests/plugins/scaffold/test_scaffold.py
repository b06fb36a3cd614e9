"""`afarm plugin new`: a package of each kind is written, loads and is typed.

`tests/contrib/test_install.py` installs and runs them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from clean_environment import run

from afarm.cli import main
from afarm.core.errors import AfarmError
from afarm.core.plugins import choose_plugins, discover_with
from afarm_plugins.scaffold.kinds import KINDS
from afarm_plugins.scaffold.package import write_package


def make_all(folder: Path) -> list[Path]:
    return [write_package(kind, f"my-{kind}", folder).folder for kind in KINDS]


@pytest.fixture
def own_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    for name in [name for name in sys.modules if name.startswith("afarm_my_")]:
        del sys.modules[name]


def test_each_kind_is_a_plugin_of_one_file(tmp_path: Path, own_path: None) -> None:
    files = [next(folder.glob("afarm_*.py")) for folder in make_all(tmp_path)]
    found = discover_with(files)
    of_files = [plugin for plugin in found.found if plugin.package.startswith("afarm_my_")]
    assert len(of_files) == len(KINDS)
    assert [plugin.notes for plugin in of_files] == [[]] * len(KINDS)
    brought = {(c.kind, c.name) for plugin in of_files for c in plugin.components}
    assert brought == {(made.registered, f"my-{kind}") for kind, made in KINDS.items() if made.registered}
    assert "torch" not in {name for file in files for name in vars(sys.modules[file.stem])}


def test_the_command_prints_what_to_try(
    tmp_path: Path, own_path: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["plugin", "new", "command", "My_tally"])
    *_, first, second, third = capsys.readouterr().out.splitlines()
    assert (second.strip(), third.strip()) == ("pip install -e '.[test]' && pytest", "afarm plugins My_tally")
    monkeypatch.chdir(tmp_path / "afarm-my-tally")
    try:
        with pytest.raises(SystemExit, match=r"^1$"):  # no run is stored here
            main(first.split()[1:])
    finally:
        choose_plugins()
    assert "afarm-runs" in capsys.readouterr().err


WRONG = {
    ("methd", "mine"): "no kind of plugin 'methd'. Did you mean 'method'",
    ("method", "ppo"): "there is a method 'ppo' already",
    ("method", "seed"): "'seed' is no component name",
    ("command", "leaderboard"): "there is a command 'leaderboard' already",
    ("study", "plugins"): "there is a Python module 'afarm_plugins' already",
    ("judge", "there"): "exists already, and is left as it is",
    **{("method", name): "cannot be called" for name in ("9th", "a b", "a/b", "../a", "-a", "é", "", "a--b", "a-")},
}


@pytest.mark.parametrize(("kind", "name"), WRONG)
def test_a_name_that_cannot_be_used_is_refused(kind: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "afarm-there").mkdir()
    (tmp_path / "afarm-there" / "mine.txt").write_text("kept")
    with pytest.raises(AfarmError, match=WRONG[kind, name]):
        write_package(kind, name, tmp_path, commands=["leaderboard"])
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*")] == ["afarm-there/mine.txt"]


@pytest.mark.slow
def test_each_kind_passes_strict_type_checks(tmp_path: Path) -> None:
    packages = make_all(tmp_path)
    (tmp_path / "mypy.ini").write_text(
        "[mypy]\nstrict = True\n[mypy-torch.*,transformers.*,trl.*,peft.*,datasets.*,accelerate.*,plotly.*,numpy.*]\n"
        "follow_imports = skip\n"  # their types take a minute, and `pyproject.toml` leaves them in
    )
    files = [file for package in packages for file in (*package.glob("*.py"), *package.glob("tests/*.py"))]
    assert len(files) == 2 * len(KINDS)
    told = run(sys.executable, "-m", "mypy", "--config-file", "mypy.ini", *files, cwd=tmp_path)
    assert told.startswith(f"Success: no issues found in {len(files)} source files")
