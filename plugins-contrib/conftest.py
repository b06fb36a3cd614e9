"""The package under test, installed as its author has it: in the repository none of these is."""

from __future__ import annotations

import os
import sys
import tomllib
from pathlib import Path

import pytest

HERE = Path(__file__).parent

sys.path += [path for path in map(str, HERE.glob("*/src")) if path not in sys.path]


@pytest.fixture(scope="session")
def sites(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By package, a folder with the metadata that pip would write."""
    made = {}
    for file in HERE.glob("*/pyproject.toml"):
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        made[file.parent.name] = site = tmp_path_factory.mktemp("site")
        metadata = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
        points = "".join(f"{name} = {value}\n" for name, value in project["entry-points"]["afarm"].items())
        (metadata / "entry_points.txt").write_text(f"[afarm]\n{points}")
    return made


@pytest.fixture(autouse=True)
def installed(request: pytest.FixtureRequest, sites: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for processes that a test starts."""
    package = request.path.relative_to(HERE).parts[0]
    paths = [str(sites[package]), str(HERE / package / "src")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep))
    for path in paths:
        monkeypatch.syspath_prepend(path)
