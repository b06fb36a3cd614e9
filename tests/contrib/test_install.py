"""The wheel: what it holds, the demo run from it, and a contrib plugin beside it in a clean environment."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from pipeline_alone import ALONE
from places import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("install")]  # one environment for all


REPOSITORY = "https://host.example/us/afarm"
LARGEST_WHEEL = 2_600_000
"""Bytes. 1.3 million are the frozen weights of the toy world's base model, which do not compress."""

LEAVE = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as a release has it, built from a copy of the sources, so that no build folder is left behind."""
    source = tmp_path_factory.mktemp("source")
    for folder in ("afarm", "afarm_plugins"):
        shutil.copytree(ROOT / folder, source / folder, ignore=LEAVE)
    for file in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source / file)
    (source / "afarm-runs" / "runs").mkdir(parents=True)  # as runs in a clone leave it
    (source / "afarm-runs" / "runs" / "run.json").write_text("{}")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", source, env={"AFARM_REPOSITORY": REPOSITORY})
    [built] = (source / "dist").iterdir()
    return built


@pytest.fixture(scope="module")
def binaries(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment with afarm (core dependencies only) and afarm-heuristics."""
    place = tmp_path_factory.mktemp("install")
    plugin = shutil.copytree(ROOT / "plugins-contrib" / "afarm-heuristics", place / "afarm-heuristics", ignore=LEAVE)
    found = place / "venv" / "bin"
    if uv := shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"):
        run(uv, "venv", "--quiet", "--python", sys.executable, place / "venv")
        run(uv, "pip", "install", "--quiet", "--python", found / "python", wheel, plugin)
    else:
        venv.create(place / "venv", with_pip=True)
        run(found / "pip", "install", "--quiet", "--disable-pip-version-check", wheel, plugin)
    return found


def run(*command: Path | str, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    environment = {**os.environ, **(env or {})}
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def write_outputs(path: Path, generator: str, outputs: list[str]) -> Path:
    rows: list[dict[str, Any]] = [
        {"instruction": f"task {number}", "input": "", "output": output, "generator": generator}
        for number, output in enumerate(outputs)
    ]
    path.write_text(json.dumps(rows), encoding="utf-8")
    return path


def test_the_wheel_is_small_and_its_page_holds_on_an_index(wheel: Path) -> None:
    """README's links and pictures lead to the tag of this version."""
    assert wheel.stat().st_size < LARGEST_WHEEL
    with ZipFile(wheel) as files:
        [metadata] = [files.read(name).decode() for name in files.namelist() if name.endswith(".dist-info/METADATA")]
        folders = {name.partition("/")[0] for name in files.namelist()}
    assert {name for name in folders if not name.endswith(".dist-info")} == {"afarm", "afarm_plugins"}
    [version] = re.findall(r"^Version: (.*)$", metadata, re.M)
    targets = re.findall(r"\]\(([^)\s]+)\)", metadata)
    assert f"{REPOSITORY}/raw/v{version}/docs/images/report.png" in targets
    assert f"{REPOSITORY}/blob/v{version}/CONTRIBUTING.md" in targets
    assert [target for target in targets if not target.startswith("https://")] == []
    assert f"Project-URL: Repository, {REPOSITORY}\n" in metadata


TINY = [
    *("rows={sft: 16, preference: 24, unlabeled: 8, validation: 8, evaluation: 8}", "sft.num_train_epochs=1"),
    *("bradley_terry.num_train_epochs=1", "sample.max_new_tokens=8", "evaluate.max_new_tokens=8"),
    "ppo={total_steps: 1, warmup_steps: 0, rollout_batch_size: 8, mini_batch_size: 8, response_length: 8}",
]


def test_the_demo_runs_from_the_wheel_with_the_parts_of_the_pipeline_alone(wheel: Path, tmp_path: Path) -> None:
    """Smaller than `make release-check` runs it, and beside the packages that the tests have."""
    with ZipFile(wheel) as files:
        files.extractall(tmp_path / "site")
    site = {"PYTHONPATH": str(tmp_path / "site"), "OMP_NUM_THREADS": "1"}
    settings = [word for setting in TINY for word in ("--set", setting)]
    command = (sys.executable, "-c", ALONE, "run", "--method", "ppo", "--annotator", "pool", "--json", *settings)
    record = json.loads(run(*command, cwd=tmp_path, env=site))
    assert 0 <= record["headline"]["win_rate"] <= 100
    [report] = tmp_path.glob("afarm-runs/runs/*/report.html")
    assert "plotly" in report.read_text(encoding="utf-8")
    where = run(sys.executable, "-c", "import afarm; print(afarm.__file__)", cwd=tmp_path, env=site)
    assert Path(where.strip()).is_relative_to(tmp_path)


def test_the_environment_is_clean(binaries: Path) -> None:
    code = "import importlib.metadata; print(*(found.name for found in importlib.metadata.distributions()))"
    installed = set(run(binaries / "python", "-c", code).lower().split())
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
