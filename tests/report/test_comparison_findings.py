"""The findings of a comparison of methods, worked by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from afarm.evaluation.boards.from_runs import board_of_systems
from afarm.experiment.studies.estimates import undominated
from afarm.experiment.studies.study import Bounded
from afarm.report.comparison_findings import build_progress, comparison_findings
from afarm.storage.runs import RunRecord


def record(system: str, seed: int, rate: float, kl: float, seconds: float, dollars: float = 0.0) -> RunRecord:
    stage = {"stage": f"train {system}", "seconds": seconds, "spend": {"dollars": dollars}}
    metrics: dict[str, Any] = {"win_rate": rate, "standard_error": 2.0, "n_total": 800}
    results = [
        {"system": system, "reference": "sft", "evaluator": "win_rate", "metrics": metrics},
        {"system": system, "reference": "sft", "evaluator": "gold", "metrics": {"gold": rate / 100}},
        {"system": system, "reference": "sft", "evaluator": "reward", "metrics": {"reward": rate / 50}},
    ]
    values = {"method": system, "seed": seed, "results": results, "stages": [stage], "headline": {"kl": kl}}
    return RunRecord(Path(f"{system}-{seed}"), {**values, "name": f"{system}-{seed}"})


def test_the_frontier_is_what_none_beats_at_its_cost() -> None:
    points = {"dear": (9.0, 70.0), "cheap": (1.0, 60.0), "beaten": (2.0, 59.0), "equal": (2.0, 60.0)}
    assert undominated({name: (cost, -rate) for name, (cost, rate) in points.items()}) == {"cheap", "dear"}
    assert undominated({"slow": (1.0, 9.0, -50.0), "dear": (9.0, 1.0, -50.0), "both": (9.0, 9.0, -50.0)}) == {
        "slow",
        "dear",
    }


def test_systems_are_tabled_by_their_means_and_plotted_over_kl_and_cost() -> None:
    records = [record("ppo", 1, 60.0, 2.0, 100.0), record("ppo", 2, 64.0, 4.0, 140.0)]
    records += [record("dpo", 1, 55.0, 1.0, 10.0), record("dpo", 2, 55.0, 3.0, 30.0)]
    progress = build_progress(records)
    found = comparison_findings(board_of_systems(records), records, progress)
    [table] = found.tables
    assert list(table.columns) == [
        *("rank", "system", "win rate, %", "reward", "gold", "KL, nats", "seconds", "judge, $")
    ]
    [_, system, rate, *figures] = table.rows[0]
    assert (system, figures) == ("ppo", [pytest.approx(1.24), pytest.approx(0.62), 3.0, 120.0, 0.0])
    # t of one degree of freedom is 12.706, the error √8 / √2 = 2: 62 ± 25.4.
    assert isinstance(rate, Bounded)
    assert tuple(rate) == pytest.approx((62.0, 62 - 25.412, 62 + 25.412), abs=0.001)
    plots = {plot.name: plot for plot in found.plots}
    assert list(plots) == ["win-rates", "win-rate-over-kl", "gold-over-reward", "frontier"]
    assert [plot.level for plot in found.plots] == [50.0, 50.0, None, 50.0]
    [series, _, start] = plots["win-rate-over-kl"].series
    assert (start.name, start.x, start.y) == ("sft (the reference)", [0.0], [Bounded(50.0)])
    assert (series.name, series.x, [y.value for y in series.y]) == ("ppo", [2.0, 4.0], [60.0, 64.0])
    assert series.y[0].low == pytest.approx(56.0, abs=0.2), "± 1.96 errors of 2"
    [best] = plots["frontier"].series
    assert (best.x, best.labels, plots["frontier"].x_title) == ([20.0, 120.0], ["dpo", "ppo"], "seconds per run")


def test_what_makes_a_figure_doubtful_is_told_beside_the_ranking() -> None:
    records = [record("ppo", 1, 60.0, 2.0, 100.0), record("dpo", 1, 55.0, 1.0, 10.0)]
    records[1]["results"][0]["red_flags"] = {"flags": [{"name": "place", "count": 9, "of": 9, "says": "goes by place"}]}
    found = comparison_findings(board_of_systems(records), records, build_progress(records))
    [flag] = [note for note in found.notes if note.startswith("Flag: ")]
    assert flag.startswith("Flag: dpo: ")


def test_the_reference_stands_in_the_ranking_at_its_place() -> None:
    records = [record("ppo", 1, 60.0, 2.0, 100.0), record("bad", 1, 40.0, 2.0, 100.0)]
    for one in records:
        one["results"][1]["metrics"]["gold_reference"] = 0.25
    found = comparison_findings(board_of_systems(records), records, build_progress(records))
    [table] = found.tables
    assert [row[1] for row in table.rows] == ["ppo", "sft (the reference)", "bad"]
    assert table.rows[1] == [None, "sft (the reference)", Bounded(50.0), None, 0.25, 0.0, None, None]
    assert found.answer.startswith("ppo first: win rate 60.0 % against sft (95 % 56.0 to 63.9); clearly ahead.")


def test_how_often_the_judge_agrees_with_people_is_a_note_of_the_board() -> None:
    known = {"identity": "fitted:people@0123456789ab", "simulated": True, "agreement": "agrees with people on 69 %"}
    records = [record("ppo", seed, 60.0, 2.0, 100.0) for seed in (1, 2)]
    for one in records:
        one["judges"] = [known]
    found = comparison_findings(board_of_systems(records), records, build_progress(records))
    assert found.notes[0].startswith("The formula fitted:people agrees with people on 69 %. Percent against sft")


def test_what_judges_cost_is_the_price_if_they_have_one() -> None:
    records = [record("ppo", 1, 60.0, 2.0, 100.0, 3.0), record("dpo", 1, 55.0, 1.0, 10.0, 4.0)]
    found = comparison_findings(board_of_systems(records), records, build_progress(records))
    [best, beaten] = found.plots[-1].series
    assert (best.labels, best.x, beaten.labels) == (["ppo"], [3.0], ["dpo"])
