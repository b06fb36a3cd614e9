"""Costs read off records, the frontier, and the planner against arithmetic done by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from afarm import DataError, RunRecord, StudyRequest
from afarm_plugins.costs.planner import chance_of_the_best, finalists_needed, plan_difference, plan_within
from afarm_plugins.costs.settings import CostsConfig
from afarm_plugins.costs.study import Costs, tabulate_costs

SURE = CostsConfig(faith=1.0, spend=300.0)
RUN, RUN_SPREAD = 2.0, 2.0


def stage(
    label: str, kind: str, key: str, seconds: float, reused: bool = False, dollars: float = 0.0
) -> dict[str, Any]:
    spend = {"calls": round(1000 * dollars), "dollars": dollars, "unpriced_calls": 0}
    return {"stage": label, "kind": kind, "key": key, "seconds": seconds, "reused": reused, "spend": spend}


def record(method: str, seed: int, rate: float, seconds: float, reused: bool, device: str = "cuda:0") -> RunRecord:
    stages = [
        stage("sft", "train", f"s{seed}", 100, reused),
        stage("annotate", "annotate", f"a{seed}", 10, reused, 2.0),
        stage(f"train {method}", "train", f"{method}{seed}", seconds),
        stage(f"evaluate {method} against sft", "evaluate", f"e{method}{seed}", 5, dollars=1.0),
    ]
    values = {
        "recipe": "toy",
        "method": method,
        "seed": seed,
        "config": {"seed": seed},
        "machine": {"device": device},
        "stages": stages,
        "results": [{"system": method, "metrics": {"win_rate": rate}}],
    }
    return RunRecord(Path(f"{method}{seed}"), values)


RECORDS = [
    record("ppo", 1, 60.0, 885, False),
    record("ppo", 2, 64.0, 885, False),
    record("dpo", 1, 62.0, 285, True),
    record("feedme", 1, 50.0, 1785, True),
]


def test_what_runs_share_is_counted_once_and_a_run_alone_pays_all_of_it() -> None:
    methods, stages = tabulate_costs(RECORDS, CostsConfig(hour=3.6, gpus=2)).tables
    by_stage = {(row[0], row[1]): row for row in stages.rows}
    assert by_stage["shared", "sft"][2:5] == [2, 100.0, pytest.approx(2 * 100 / 3600)], "two seeds"
    assert by_stage["shared", "annotate"][6:] == [2000.0, 2.0]
    assert by_stage["toy · ppo", "train"][3] == 885
    by_method = {row[0]: row for row in methods.rows}
    name, runs, rate, own, seconds, hours, judge, dollars, best = by_method["toy · ppo"]
    assert (name, runs, rate.value, own, seconds, judge) == ("toy · ppo", 2, 62.0, 890.0, 1000.0, 3.0)
    assert hours == pytest.approx(2 * 1000 / 3600)
    assert dollars == pytest.approx(3.0 + 3.6 * 1000 / 3600)
    assert by_method["toy · dpo"][4] == 400.0, "with the SFT that it reused"
    assert [best, *(by_method[f"toy · {name}"][8] for name in ("dpo", "feedme"))] == ["", "yes", ""]


def test_the_page_of_costs_begins_with_the_best_and_the_cheapest() -> None:
    said = "toy · dpo has the highest win rate, 62.0 % at 400 seconds per run"
    assert tabulate_costs(RECORDS, CostsConfig()).answer == f"{said}, and none costs less."
    dear = [*RECORDS, record("best", 1, 70.0, 2000, False)]
    cheapest = "toy · dpo is the cheapest that no other beats at its cost, 62.0 % at 400 seconds per run"
    said = "toy · best has the highest win rate, 70.0 % at 2,115 seconds per run"
    assert tabulate_costs(dear, CostsConfig()).answer == f"{said}; {cheapest}."
    hour = tabulate_costs(dear, CostsConfig(hour=3.6)).answer
    assert "70.0 % at 5.12 dollars per run" in hour
    assert tabulate_costs(RECORDS[:1], CostsConfig()).answer == "toy · ppo: win rate 60.0 % at 1,000 seconds per run."
    assert tabulate_costs([], CostsConfig()).answer == ""


def test_a_comparison_of_files_is_no_run_of_a_method(tmp_path: Path) -> None:
    for name, values in [("ppo", dict(RECORDS[0])), *((f"files{n}", {**RECORDS[2], "method": None}) for n in (1, 2))]:
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "run.json").write_text(json.dumps({**values, "name": name}))
    study = Costs(CostsConfig(runs=[str(tmp_path)]))
    study.know(study.look_up())
    found = study.analyse([])
    assert [row[0] for row in found.tables[0].rows] == ["toy · ppo"]
    assert "Left out: 2 comparisons of files or stored labels, which train nothing" in found.notes


def test_a_device_that_no_record_tells_is_not_taken_for_a_gpu() -> None:
    reused = [record("ppo", 1, 60.0, 885, True, "none: all was reused")]
    for one in reused[0].stages:
        one["reused"] = True  # type: ignore[index]
    methods, stages = tabulate_costs(reused, CostsConfig()).tables
    assert {row[4] for row in stages.rows} == {None}
    assert methods.rows[0][5] is None
    [cpu] = tabulate_costs([record("ppo", 1, 60.0, 885, False, "cpu")], CostsConfig()).tables[0].rows
    assert cpu[5] == 0.0


def test_a_plan_by_hand() -> None:
    plan = plan_difference(SURE, RUN, RUN_SPREAD, 10.0)
    # (1.960 + 0.842)² · 7.07² = 392.3, and a little more for Student's quantiles.
    assert plan.labels_each == pytest.approx(394, abs=1)
    assert plan.seeds == 3, "(4.303 + 1.061) · √2 · 2 / √3 = 8.8 points; with two seeds 28"
    assert plan.runs == 8 * 3
    assert plan.simulation == 48.0
    assert plan.total == pytest.approx(48 + plan.finalists * plan.labels_each * 0.25)


def test_finalists_hold_the_best_with_the_probability_stated() -> None:
    # Of two candidates the simulated order is right with probability ½ + asin(ρ) / π.
    for rho in (0.0, 0.5, 0.9):
        assert chance_of_the_best(2, 1, rho) == pytest.approx(0.5 + math.asin(rho) / math.pi, abs=0.01)
    assert chance_of_the_best(8, 1, 1.0) == 1.0
    assert chance_of_the_best(8, 3, 0.0) == pytest.approx(3 / 8, abs=0.01)
    assert finalists_needed(8, 1.0) == 2
    assert finalists_needed(8, 0.0) == 8, "90% of eight that tell nothing"


def test_what_a_budget_pays_is_the_smallest_difference_that_fits() -> None:
    plan = plan_within(SURE, RUN, RUN_SPREAD)
    assert plan is not None
    assert plan.total <= 300.0 < plan_difference(SURE, RUN, RUN_SPREAD, round(plan.difference - 0.1, 1)).total
    assert plan_within(CostsConfig(faith=1.0, spend=1.0), RUN, RUN_SPREAD) is None
    findings = tabulate_costs(RECORDS, CostsConfig(spend=300.0, difference=3.0))
    table = findings.tables[-1]
    assert list(table.columns) == ["plan", "as asked", "what it pays"]
    cells = {row[0]: row[1:] for row in table.rows}
    assert cells["human labels"][0] == cells["finalists"][0] * cells["labels for each"][0]
    assert cells["total, $"][1] <= 300 < cells["total, $"][0]
    assert findings.answer.startswith("$300.00 does not pay for a difference of 3 points. It pays for one of ")
    assert tabulate_costs(RECORDS, CostsConfig(spend=3000.0, difference=9.0)).answer.startswith("$3,000.00 pays for")
    assert any("2.8 points over seeds (stored runs over seeds)" in note for note in findings.notes), "60 and 64"


def test_people_are_planned_by_their_minutes_and_pay() -> None:
    paid = plan_difference(CostsConfig(faith=1.0, label_seconds=45.0, pay=24.0), RUN, RUN_SPREAD, 10.0)
    labels = paid.finalists * paid.labels_each
    assert paid.minutes == pytest.approx(labels * 0.75)
    assert paid.people == pytest.approx(labels * 0.30)
    plan = plan_within(CostsConfig(faith=1.0, pay=0.0, minutes=120.0), RUN, RUN_SPREAD)
    assert plan is not None
    assert (plan.people, plan.minutes <= 120) == (0.0, True)
    assert plan_difference(SURE, RUN, RUN_SPREAD, round(plan.difference - 0.1, 1)).minutes > 120
    findings = tabulate_costs(RECORDS, CostsConfig(spend=5000.0, minutes=120.0))  # enough dollars, too few minutes
    assert findings.tables[-1].title == "Plan for $5,000.00 and 120 minutes of people"
    assert findings.answer.startswith(
        "A budget of $5,000.00 and 120 minutes of people does not pay for a difference of 5"
    )
    assert "A label takes 30 s (--label-seconds) and costs $0.25 (--label-price)." in findings.notes


def test_a_record_that_cannot_be_read_is_left_out_and_named(tmp_path: Path) -> None:
    for name, text in (("whole", json.dumps({"method": "ppo", "stages": []})), ("broken", "{")):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "run.json").write_text(text)
    study = Costs(CostsConfig(runs=[str(tmp_path)]))
    study.know(json.loads(json.dumps(study.look_up())))
    assert [record["method"] for record in study.records] == ["ppo"]
    [note] = [note for note in study.analyse([]).notes if note.startswith("Left out")]
    assert "broken/run.json: not valid JSON" in note
    with pytest.raises(DataError, match="not valid JSON"):
        Costs(CostsConfig(runs=[str(tmp_path / "runs" / "broken")])).look_up()


def test_no_runs_are_said_and_a_named_place_without_any_is_an_error(tmp_path: Path) -> None:
    study = Costs(CostsConfig())
    study.grid(StudyRequest("ppo", (1,), tmp_path))
    study.know(study.look_up())
    assert study.analyse([]).notes == ["There is no stored run to read costs from."]
    with pytest.raises(DataError, match="no finished run there"):
        Costs(CostsConfig(runs=[str(tmp_path)])).look_up()
