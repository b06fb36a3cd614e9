"""Outputs that were cut off, on the screen: in amber, with the setting that cut them."""

from __future__ import annotations

import json

import light_plugin
import pytest
from said import Afarm

from afarm.core.records import Sample

AMBER = "\x1b[33m"


@pytest.fixture(autouse=True)
def half_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every second sample ends at the limit."""
    count = iter(range(10**6))

    def sample(text: str, finish_reason: str) -> Sample:
        return Sample(text, finish_reason="length" if next(count) % 2 else finish_reason)

    monkeypatch.setattr(light_plugin, "Sample", sample)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "300")


def test_a_run_says_so(afarm: Afarm) -> None:
    said = afarm("run", "--recipe", "light.yaml")
    assert said.code == 0, said.err
    lines = [line for line in said.out.splitlines() if "were cut off" in line]
    for setting in ("sample.max_new_tokens", "evaluate.max_new_tokens"):
        assert any(setting in line for line in lines)
    assert all(AMBER in line and "(50 %)" in line for line in lines)


def test_a_command_that_samples_says_so_beside_its_path(afarm: Afarm) -> None:
    said = afarm("sample", "--recipe", "light.yaml", "--json")
    assert "were cut off" in said.err
    assert json.loads(said.out)["summary"]["cut_off"] > 0


def test_methods_compared_say_so(afarm: Afarm) -> None:
    said = afarm("compare", "--recipe", "light.yaml", "--methods", "nudge")
    assert said.code == 0, said.err
    assert "outputs nudge: 5 of 10 outputs (50 %) were cut off" in said.out
