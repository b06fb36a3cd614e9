"""`afarm study all`: every study in turn, each failure shown, and an index; a dry run counts shared stages once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from light_plugin import RAN
from said import Afarm, failed

ALL = ["study", "all", "--recipe", "light.yaml", "--seeds", "1"]

STUDIES = """
import afarm

class Small(afarm.Study):
    brief = {"count": 2}

    def __init__(self, config):
        self.count = config.count

    def grid(self, request):
        return [
            afarm.StudyRun("nudge", seed, {"skill": n}, (f"nudge.skill=0.{n}",))
            for n in range(1, 1 + self.count) for seed in request.seeds
        ]

    def analyse(self, finished):
        return afarm.Findings([afarm.StudyTable("runs_seen", "Runs", {"n": "d"}, [[len(finished)]])])

class Broken(Small):
    def analyse(self, finished):
        raise ValueError("nothing to see")

class Half(Small):
    brief = {}

    def grid(self, request):
        return [afarm.StudyRun(method, 1, {"method": method}) for method in ("nudge", "diverges")]

class SmallConfig(afarm.Config):
    count: int = afarm.setting(4, "values", changes_result=False)

@afarm.hookimpl
def register_studies(register):
    register("small", Small, config=SmallConfig)
    register("again", Small, config=SmallConfig)
    register("broken", Broken, config=SmallConfig)
    register("half", Half, config=SmallConfig)
"""


@pytest.fixture
def studies(afarm: Afarm, own_site: Path) -> Afarm:
    (own_site / "small_studies.py").write_text(STUDIES)
    entries = own_site / "light-1.2.dist-info" / "entry_points.txt"
    entries.write_text("[afarm]\nlight = light_plugin\nsmall = small_studies\n")
    return afarm


def test_every_study_runs_failures_are_shown_and_the_rest_goes_on(studies: Afarm, tmp_path: Path) -> None:
    said = studies(*ALL, "--only", "broken,half,sweep,small,again", "--json")
    assert said.code == 1, said.err
    assert said.json["studies"]["small"] == "whole"
    assert said.json["studies"]["half"] == "1 of 2 runs failed"
    assert "nothing to see" in said.json["studies"]["broken"]
    assert "left out: a sweep needs values" in said.json["studies"]["sweep"]
    assert sum("Nudge step" in line for line in RAN) == 3 * 3, "0.1 and 0.2 are shared, and the skill as it is"
    index = Path(said.json["index"])
    links = re.findall(r'<a href="([^"]+)"', index.read_text())
    assert len(links) == 3
    assert "default-src 'none'" in index.read_text(), "the page runs and fetches nothing of others"
    assert all((index.parent / link).is_file() for link in links)
    assert "nothing to see" in index.with_name("index.md").read_text()


def test_a_dry_run_counts_stages_that_studies_share_once_and_tells_their_time(studies: Afarm, tmp_path: Path) -> None:
    chosen = ["--only", "small,again,sweep", "--dry-run", "--json"]
    plan = studies(*ALL, *chosen).json
    assert not (tmp_path / "afarm-runs").exists()
    assert RAN == []
    assert (plan["small"]["runs"], plan["again"]["runs"], plan["again"]["stages"]) == (2, 2, 0)
    assert plan["small"]["unknown"] == plan["small"]["stages"] > 0
    cold = studies(*ALL, *chosen[:-1]).out
    unknown = f"new stages, {plan['small']['stages']} stages of unknown time until one of their kind is made"
    assert cold.count(unknown) == 2, "of the study, and of all"
    assert "minutes" not in cold.splitlines()[-1], "unknown is not none"
    assert "a sweep needs values" in plan["sweep"]
    assert studies(*ALL, "--full", *chosen).json["small"]["runs"] == 4
    studies("run", "--recipe", "light.yaml", "--method", "nudge", "--seed", "2")
    later = studies(*ALL, *chosen).json["small"]
    assert (later["unknown"], later["stages"]) == (0, plan["small"]["stages"])
    assert later["seconds"] > 0
    said = studies(*ALL, "--only", "small,again", "--dry-run")
    together = f"2 runs, {later['stages']} new stages, about 0.0 minutes, judges at most $"
    assert f"Together, what studies share once: {together}" in said.out


def test_many_runs_are_priced_and_asked_about_before_the_first_study(
    studies: Afarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("afarm_plugins.grids.grid.MANY", 3)
    shared = [*ALL, "--only", "small,again"]
    assert studies(*shared, "--json").code == 0, "two runs, which both studies have"
    many = [*ALL, "--only", "small,half,again"]
    RAN.clear()
    said = studies(*many)
    failed(said, "4 runs: look at the plan above, and begin with --yes")
    assert "judges at most $" in said.err
    assert RAN == []
    assert studies(*many, "--yes", "--plots", "png").code == 1, "one run fails"
    assert any((tmp_path / "afarm-runs" / "studies").glob("half-*/report.html"))
    failed(studies(*many, "--yes", "--plots", "gif"), "--plots 'gif': png or pdf")


def test_a_dry_run_of_a_large_grid_opens_a_share_of_its_runs(studies: Afarm, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = studies(*ALL, "--full", "--only", "small", "--dry-run", "--json").json["small"]
    monkeypatch.setattr("afarm_plugins.grids.grid.LOOKED_AT", 2)
    estimated = studies(*ALL, "--full", "--only", "small", "--dry-run", "--json").json["small"]
    assert estimated["runs"] == exact["runs"] == 4
    assert abs(estimated["stages"] - exact["stages"]) <= 2
    assert estimated["most_dollars"] == pytest.approx(exact["most_dollars"], rel=0.3)


def test_a_study_that_is_none_is_named(studies: Afarm) -> None:
    failed(studies(*ALL, "--only", "smal"), "--only: no study 'smal'")
