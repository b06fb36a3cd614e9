"""`afarm plugin new`: a package of each kind is written, installs with plain pip, passes its test, and runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from places import ROOT

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


# --------------------------------------------------------------------------------------------------- as pip installs it


def run(*command: Path | str, cwd: Path, env: dict[str, str] | None = None) -> str:
    environment = {**os.environ, **(env or {})}
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout


TINY = [
    "start=model",  # it is sampled as it is: no SFT, which takes most of the time
    *("rows={sft: 16, preference: 24, unlabeled: 8, validation: 8, evaluation: 8}", "sft.num_train_epochs=1"),
    *("sample.max_new_tokens=8", "evaluate.max_new_tokens=8", "my-method.prompts=8", "my-method.max_new_tokens=8"),
    "evaluate={annotator: my-annotator, evaluators: [win_rate, my-evaluator]}",
]


@pytest.mark.slow
@pytest.mark.xdist_group("install")
def test_each_kind_installs_with_pip_passes_its_test_and_runs(tmp_path: Path) -> None:
    """One environment for all, which finds afarm and what it stands on beside it."""
    packages, beside = make_all(tmp_path), next(path for path in sys.path if path.endswith("site-packages"))
    venv.create(tmp_path / "environment", with_pip=True)
    python = tmp_path / "environment" / "bin" / "python"
    [site] = (tmp_path / "environment").glob("lib/*/site-packages")
    (site / "beside.pth").write_text(f"{ROOT}\n{beside}\n")
    offline = ("--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check")
    run(python, "-m", "pip", "install", "-q", *offline, *packages, cwd=tmp_path, env={"PYTHONPATH": beside})

    listed = json.loads(run(python, "-m", "afarm", "plugins", "--json", cwd=tmp_path))
    mine = {row["plugin"]: row for row in listed if row["package"].startswith("afarm-my-")}
    assert {name: (row["error"], row["notes"]) for name, row in mine.items()} == {f"my-{k}": ("", []) for k in KINDS}
    assert f"{len(KINDS)} passed" in run(python, "-m", "pytest", "-q", *(p / "tests" for p in packages), cwd=tmp_path)

    def afarm(*words: str) -> str:
        return run(python, "-m", "afarm", *words, cwd=tmp_path)

    chosen = [word for kind in ("method", "annotator", "judge", "reward-model") for word in (f"--{kind}", f"my-{kind}")]
    record = json.loads(afarm("run", "--json", *chosen, *(word for setting in TINY for word in ("--set", setting))))
    figures = {result["evaluator"]: result["metrics"] for result in record["results"]}
    assert 0 <= figures["my-evaluator"]["my_evaluator_win_rate"] <= 100
    assert record["judged_by"] == "the formula my-judge:shorter, margin 0"
    assert [row["win_rate"] for row in json.loads(afarm("my-command", "--json"))] == [figures["win_rate"]["win_rate"]]
    assert "4 runs" in afarm("study", "my-study", "--seeds", "1,2", "--dry-run")
    assert "keeps what its interface promises" in afarm("plugins", "--check", "my-dataset")


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
