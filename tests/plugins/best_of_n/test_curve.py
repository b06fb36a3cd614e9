"""The curve of best-of-n as findings, worked by hand."""

from __future__ import annotations

import json

import pytest

from afarm_plugins.best_of_n.curve import curve_findings

ROWS = [
    {"n": 1, "kl_bound": 0.0, "reward": 0.0, "gold": 0.1, "gold_se": 0.05, "win_rate": 50.0, "standard_error": 2.0},
    {"n": 4, "kl_bound": 0.64, "reward": 0.8, "gold": 0.6, "gold_se": 0.05, "win_rate": 60.0, "standard_error": 1.0},
]


def test_the_curve_has_intervals_and_gold_beside_its_proxy() -> None:
    found = curve_findings(ROWS)
    [table] = found.tables
    assert list(table.columns) == ["n", "KL at most, nats", "reward", "gold", "win rate, %"]
    assert tuple(table.rows[1][-1]) == pytest.approx((60.0, 58.04, 61.96), abs=0.001)  # type: ignore[arg-type]
    rate, both = found.plots
    assert tuple(rate.series[0].y[0]) == pytest.approx((50.0, 46.08, 53.92), abs=0.001)
    assert [(series.name, [y.value for y in series.y]) for series in both.series] == [
        ("gold reward", [0.1, 0.6]),
        ("reward model’s score", [0.0, 0.8]),
    ]
    assert json.loads(found.files["curve.json"]) == ROWS


def test_without_gold_there_is_the_win_rate_alone() -> None:
    found = curve_findings([{"n": 2, "kl_bound": 0.2, "reward": 1.0, "win_rate": 55.0, "standard_error": 0.0}])
    assert [plot.name for plot in found.plots] == ["win-rate"]
    assert "gold" not in found.tables[0].columns


@pytest.mark.parametrize(
    ("rates", "said"),
    [
        ({1: 50.0, 4: 60.0}, "Best of 4: win rate 60.0 % {}, the highest; best of 1 has 50.0 %."),
        (
            {2: 50.0, 4: 60.0, 8: 55.0},
            "Best of 4: win rate 60.0 % {}, the highest; best of 2 has 50.0 %.",
        ),
        ({1: 60.0, 4: 50.0}, "Best of 1: win rate 60.0 % {}, the highest of n = 1, 4."),
        ({4: 60.0}, "Best of 4: win rate 60.0 % {}."),
        ({}, ""),
    ],
)
def test_the_page_begins_with_the_best_n(rates: dict[int, float], said: str) -> None:
    rows = [{"n": n, "reward": 1.0, "win_rate": rate, "standard_error": 1.0} for n, rate in rates.items()]
    assert curve_findings(rows).answer == said.format("against the starting policy (95 % 58.0 to 62.0)")


@pytest.mark.parametrize(("rate", "interval"), [(95.0, (95, 85.2, 100)), (5.0, (5, 0, 14.8))])
def test_an_interval_of_a_win_rate_stays_within_percent(rate: float, interval: tuple[float, ...]) -> None:
    found = curve_findings([{"n": 2, "kl_bound": 0.2, "reward": 1.0, "win_rate": rate, "standard_error": 5.0}])
    assert tuple(found.plots[0].series[0].y[0]) == pytest.approx(interval, abs=0.001)
