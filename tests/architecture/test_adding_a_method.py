"""A method is a folder, a line among the entry points and a page of documentation: nothing else is touched for one."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from syntax import ROOT

from afarm.cli import main
from afarm.core.plugins import discover
from afarm.core.registry import FIRST_PARTY, Component

WITHOUT_A_PAGE = {"sft_all", "base"}
"""Baselines, which the page of `sft` and the index describe."""

INIT = """
from afarm import hookimpl, setting
from afarm.core.config import Config


class ScratchConfig(Config):
    copies: int = setting(2, "times that the best demonstration is learned", ge=1)


@hookimpl
def register_methods(register):
    register("scratch", "scratch.scratch:Scratch", config=ScratchConfig, summary="SFT on the best half")
"""


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A directory to work in, on Python's path: the folder, and the entry point as an installed package has it."""
    (tmp_path / "scratch").mkdir()
    (tmp_path / "scratch" / "__init__.py").write_text(INIT)
    info = tmp_path / "scratch-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: scratch\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[afarm]\nscratch = scratch\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("scratch", None)


def afarm(*arguments: str) -> int | str | None:
    """The exit code of the command."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return ended.value.code


@pytest.mark.usefixtures("scratch")
def test_it_is_listed_and_its_settings_are_checked_like_any_other_s(capsys: pytest.CaptureFixture[str]) -> None:
    """`tests/contrib/test_install.py` runs such methods."""
    assert afarm("plugins") == 0
    assert "scratch" in capsys.readouterr().out
    assert afarm("run", "--method", "scratch", "--set", "scratch.copys=3") == 1
    assert "scratch.copys: unknown setting. Did you mean 'copies'?" in " ".join(capsys.readouterr().err.split())


def first_party_methods() -> list[Component]:
    return [c for c in discover().registry if c.kind == "methods" and c.package == FIRST_PARTY]


@pytest.mark.parametrize("method", first_party_methods(), ids=lambda method: method.name)
def test_each_of_our_methods_is_a_folder_an_entry_point_and_a_page(method: Component) -> None:
    if method.name in WITHOUT_A_PAGE:
        assert f"`{method.name}`" in (ROOT / "docs" / "methods" / "README.md").read_text()
        return
    assert (ROOT / "afarm_plugins" / method.name / "__init__.py").is_file()
    ours = {point.name for point in importlib.metadata.entry_points(group="afarm")}
    assert method.name in ours
    page = (ROOT / "docs" / "methods" / f"{method.name}.md").read_text()
    assert method.config is not None
    for name in method.config.model_fields:
        assert f"`{name}" in page or f" `{name}`" in page, f"docs/methods/{method.name}.md says nothing of {name}"
    index = (ROOT / "docs" / "reference" / "methods.md").read_text()
    assert f"(../methods/{method.name}.md)" in index
