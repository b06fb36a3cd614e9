"""The contrib plugin in a clean environment: installed by plain pip, found and used by the command line, no torch."""

from __future__ import annotations

import json
import shutil
import subprocess
import venv
from pathlib import Path
from typing import Any

import pytest
from places import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("install")]  # one environment for all


@pytest.fixture(scope="module")
def binaries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment with afarm (core dependencies only) and afarm-heuristics.

    Built from a copy of the sources, so that no build folder is left in the checkout.
    """
    place = tmp_path_factory.mktemp("install")
    leave = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
    source = place / "afarm"
    source.mkdir()
    for folder in ("afarm", "afarm_plugins"):
        shutil.copytree(ROOT / folder, source / folder, ignore=leave)
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source / file)
    plugin = shutil.copytree(ROOT / "plugins-contrib" / "afarm-heuristics", place / "afarm-heuristics", ignore=leave)
    venv.create(place / "venv", with_pip=True)
    found = place / "venv" / "bin"
    run(found / "pip", "install", "--quiet", "--disable-pip-version-check", source, plugin)
    return found


def run(*command: Path | str, cwd: Path | None = None) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def write_outputs(path: Path, generator: str, outputs: list[str]) -> Path:
    rows: list[dict[str, Any]] = [
        {"instruction": f"task {number}", "input": "", "output": output, "generator": generator}
        for number, output in enumerate(outputs)
    ]
    path.write_text(json.dumps(rows), encoding="utf-8")
    return path


def test_the_environment_is_clean(binaries: Path) -> None:
    installed = {row["name"].lower() for row in json.loads(run(binaries / "pip", "list", "--format", "json"))}
    assert {"afarm", "afarm-heuristics"} <= installed
    assert not {"torch", "transformers", "numpy"} & installed


def test_the_command_line_lists_the_plugin_under_its_full_names(binaries: Path) -> None:
    listed = json.loads(run(binaries / "afarm", "plugins", "--json"))
    [plugin] = [row for row in listed if row["package"] == "afarm-heuristics"]
    assert (plugin["plugin"], plugin["version"], plugin["error"]) == ("heuristics", "0.1.0", "")
    assert [(c["kind"], c["name"]) for c in plugin["components"]] == [
        ("annotator", "afarm-heuristics/longer"),
        ("evaluator", "afarm-heuristics/length_balance"),
    ]
    assert [row for row in listed if row["error"]] == []


@pytest.mark.parametrize("name", ["longer", "afarm-heuristics/longer"])
def test_the_annotator_judges_two_files_of_outputs(binaries: Path, tmp_path: Path, name: str) -> None:
    """Against "aaa" four times: two longer, one shorter, one equally long, so 2½ wins of 4."""
    mine = write_outputs(tmp_path / "mine.json", "mine", ["bbbb", "bbbbb", "b", "bbb"])
    theirs = write_outputs(tmp_path / "theirs.json", "theirs", ["aaa"] * 4)
    command = (binaries / "afarm", "evaluate", mine, "--reference", theirs, "--annotator", name, "--json")
    found = json.loads(run(*command, cwd=tmp_path))
    assert found["system"] == "mine"
    assert found["metrics"]["win_rate"] == 62.5
    assert [found["metrics"][f"n_{what}"] for what in ("wins", "wins_base", "draws")] == [2, 1, 1]


def test_settings_of_the_plugin_are_set_on_the_command_line(binaries: Path, tmp_path: Path) -> None:
    """Within a margin of 1 character, 4 against 3 is a draw."""
    mine = write_outputs(tmp_path / "mine.json", "mine", ["bbbb", "bbbbb", "b", "bbb"])
    theirs = write_outputs(tmp_path / "theirs.json", "theirs", ["aaa"] * 4)
    command = (binaries / "afarm", "evaluate", mine, "--reference", theirs, "--annotator", "longer")
    found = json.loads(run(*command, "--set", "longer.margin=1", "--json", cwd=tmp_path))
    assert [found["metrics"][f"n_{what}"] for what in ("wins", "wins_base", "draws")] == [1, 1, 2]


def test_training_without_torch_says_what_to_install(binaries: Path, tmp_path: Path) -> None:
    done = subprocess.run([str(binaries / "afarm"), "sft"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert "pip install 'afarm[train]'" in done.stderr
    assert "Traceback" not in done.stderr
