"""The sweep's grid and what it reads off its runs, against values worked by hand."""

from __future__ import annotations

import pytest

from afarm import Bounded, FinishedRun, StudyRequest
from afarm_plugins.studies.settings import SweepConfig
from afarm_plugins.studies.sweep import Sweep

REQUEST = StudyRequest("dpo", (1, 2))


def finished(sweep: Sweep, rates: list[float]) -> list[FinishedRun]:
    return [
        FinishedRun(run, f"run-{place}", {"win_rate": rate, "win_rate_low": rate - 4, "win_rate_high": rate + 4})
        for place, (run, rate) in enumerate(zip(sweep.grid(REQUEST), rates, strict=False))
    ]


def test_every_combination_is_a_run_with_every_seed() -> None:
    sweep = Sweep(SweepConfig(values=["dpo.beta=0.1,1e-2", "method=dpo,ppo"]))
    runs = sweep.grid(REQUEST)
    assert [(run.method, run.seed, run.settings) for run in runs[:3]] == [
        ("dpo", 1, ("dpo.beta=0.1",)),
        ("dpo", 2, ("dpo.beta=0.1",)),
        ("ppo", 1, ("dpo.beta=0.1",)),
    ]
    assert len(runs) == 8
    assert {run.place["dpo.beta"] for run in runs} == {0.1, 0.01}


def test_a_list_is_one_value() -> None:
    assert Sweep(SweepConfig(values=["ppo.target_modules=[q, v],[k]"])).axes == {
        "ppo.target_modules": ["[q, v]", "[k]"]
    }


def test_means_are_over_seeds_with_students_interval() -> None:
    sweep = Sweep(SweepConfig(values=["dpo.beta=0.1,1"]))
    [table] = sweep.analyse(finished(sweep, [50, 54, 40, 41])).tables
    assert [row[:2] for row in table.rows] == [["0.1", 2], ["1", 2]]
    rate = table.rows[0][2]
    assert isinstance(rate, Bounded)
    assert rate == pytest.approx((52, 52 - 12.706 * 2, 52 + 12.706 * 2), abs=0.01)  # t(1) times s / √2 = 2


def test_differences_from_the_first_value_are_paired_by_seed() -> None:
    """Over two seeds, each combination of the other settings with its own first value."""
    sweep = Sweep(SweepConfig(values=["dpo.beta=0.1,1", "method=dpo,ppo"]))
    [table] = sweep.analyse(finished(sweep, [50, 54, 60, 61, 55, 57, 59, 64])).tables
    assert table.columns["win rate less dpo.beta=0.1"] == "+.1f"
    gaps = {(row[0], row[1]): row[-1] for row in table.rows}
    assert gaps["0.1", "dpo"] is gaps["0.1", "ppo"] is None
    assert gaps["1", "dpo"] == pytest.approx((4, 4 - 12.706, 4 + 12.706), abs=0.01)  # 5 and 3: t(1) times 1
    assert gaps["1", "ppo"] == pytest.approx((1, 1 - 12.706 * 2, 1 + 12.706 * 2), abs=0.01)  # −1 and 3


def test_of_a_single_seed_the_interval_is_that_over_instructions() -> None:
    sweep = Sweep(SweepConfig(values=["dpo.beta=0.1,1"]))
    findings = sweep.analyse(finished(sweep, [50]))
    assert findings.tables[0].rows == [["0.1", 1, Bounded(50, 46, 54), None]]
    assert "the instructions of one seed" in findings.notes[0]


def test_numbers_are_plotted_in_their_order_on_a_logarithmic_axis() -> None:
    sweep = Sweep(SweepConfig(values=["dpo.beta=1,0.01,0.1"]))
    [plot] = sweep.analyse(finished(sweep, [1, 2, 3, 4, 5, 6])).plots
    assert plot.series[0].x == [0.01, 0.1, 1.0]
    assert [y.value for y in plot.series[0].y] == [3.5, 5.5, 1.5]
    assert plot.log_x
