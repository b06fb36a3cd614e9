"""The annotator statistics of the toy world meet those of AlpacaFarm (section 3, appendix C)."""

from __future__ import annotations

import pytest

from tools.toy.calibrate import PAPER, Chance, disagree, draw_pairs, majority, offline_judge, statistics, table

TOLERANCE = {"variance": 0.02, "agreement": 0.03, "longer": 0.03}


def test_annotators_meet_the_papers_statistics() -> None:
    measured = table(draw_pairs(1500, seed=7), offline_judge())
    for annotator, figures in PAPER.items():
        for name, tolerance in TOLERANCE.items():
            if name in figures:
                assert measured[annotator][name] == pytest.approx(figures[name], abs=tolerance), (annotator, name)
    assert 0.5 < measured["evaluation pool"]["first"] < 0.56


def test_majority_by_hand() -> None:
    assert majority(0.8, 3) == pytest.approx(0.8**3 + 3 * 0.8**2 * 0.2)
    assert majority(0.8, 4) == pytest.approx(0.8**4 + 4 * 0.8**3 * 0.2 + 0.5 * 6 * 0.8**2 * 0.2**2)


def test_statistics_of_annotators_known_by_hand() -> None:
    pairs = draw_pairs(300)
    coin = [Chance(0.5, 0.5)] * len(pairs)
    constant = [Chance(1.0, 1.0)] * len(pairs)
    assert statistics(pairs, coin, constant)["variance"] == pytest.approx(0.5)
    assert statistics(pairs, constant, constant)["variance"] == 0
    assert statistics(pairs, constant, constant)["agreement"] == 1
    first_shown = [Chance(0.0, 1.0)] * len(pairs)
    assert statistics(pairs, first_shown, coin)["first"] == 1
    assert Chance(1.0, 0.0).flipped(0.25) == Chance(0.75, 0.25)


def test_an_agreement_of_65_and_a_bias_of_38_percent_exclude_each_other() -> None:
    """With the paper's variances, over all distributions of P(second) of the pool and of the crowd."""
    optimize = pytest.importorskip("scipy.optimize")
    grid = [i / 40 for i in range(41)]
    cells = [(pool, crowd) for pool in grid for crowd in grid]
    agree = [disagree(pool, majority(crowd, 3)) for pool, crowd in cells]
    bias = [-disagree(majority(pool, 4), majority(crowd, 4)) for pool, crowd in cells]
    variances = [[disagree(cell[side], majority(cell[side], 3)) for cell in cells] for side in (0, 1)]
    best = optimize.linprog(
        bias, A_ub=[agree], b_ub=[1 - 0.65], A_eq=[*variances, [1.0] * len(cells)], b_eq=[0.26, 0.35, 1.0]
    )
    assert -best.fun == pytest.approx(0.364, abs=0.001)
