"""The command line with the core tests' light plugin installed, so that whole experiments run without torch."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from light_farm import RECIPE, LightBackend
from light_plugin import RAN, CountingJudge, WordPolicy
from said import Afarm, Said

from afarm.cli import main
from afarm.experiment.components import Components


@pytest.fixture
def afarm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Afarm:
    """Runs the command line in a directory of its own, with `light.yaml` there and the light plugin installed."""
    (tmp_path / "site" / "light-1.2.dist-info").mkdir(parents=True)
    (tmp_path / "site" / "light-1.2.dist-info" / "METADATA").write_text("Name: light\nVersion: 1.2\n")
    (tmp_path / "site" / "light-1.2.dist-info" / "entry_points.txt").write_text("[afarm]\nlight = light_plugin\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setattr(Components, "backend", property(lambda self: LightBackend(WordPolicy)))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.json").write_text("{}")
    (tmp_path / "base" / "weights").write_text("0")
    # By its bare name, SFT is the environment's own, which needs torch: start from the model as it is.
    (tmp_path / "light.yaml").write_text(yaml.safe_dump({**RECIPE, "start": "model", "model": "./base"}))
    RAN.clear()
    CountingJudge.asked = 0

    def run(*arguments: str) -> Said:
        capsys.readouterr()
        try:
            main(list(arguments))
            code = 0
        except SystemExit as stopped:
            code = int(stopped.code or 0)
        printed = capsys.readouterr()
        return Said(code, printed.out, printed.err)

    return run
