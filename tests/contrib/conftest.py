"""A package of `plugins-contrib/` installed for the tests of its module, which names it in `PACKAGE`."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from places import ROOT


@pytest.fixture(scope="module")
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What Python's path needs for the package to be installed."""
    package = ROOT / "plugins-contrib" / request.module.PACKAGE
    project = tomllib.loads((package / "pyproject.toml").read_text("utf-8"))["project"]
    directory = tmp_path_factory.mktemp("site")
    described = directory / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    described.mkdir()
    (described / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    points = "".join(f"{name} = {value}\n" for name, value in project["entry-points"]["afarm"].items())
    (described / "entry_points.txt").write_text(f"[afarm]\n{points}")
    return [str(directory), str(package / "src")]


@pytest.fixture
def on_the_path(site: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for directory in site:
        monkeypatch.syspath_prepend(directory)
