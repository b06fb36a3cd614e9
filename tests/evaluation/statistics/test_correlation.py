"""Two boards, and whether they order systems alike."""

from __future__ import annotations

import math
from typing import Literal, get_args

import numpy as np
import pytest
from scipy import stats

from afarm.core.errors import DataError
from afarm.evaluation.statistics.correlation import correlation

Kind = Literal["spearman", "kendall", "pearson"]
EXACT = {"spearman": stats.spearmanr, "kendall": stats.kendalltau, "pearson": stats.pearsonr}


@pytest.mark.parametrize("kind", get_args(Kind))
def test_values_are_scipys_ties_included(kind: Kind) -> None:
    first, second = [0.1, 0.4, 0.4, 0.7, 0.9, 0.2], [0.2, 0.3, 0.5, 0.5, 0.8, 0.1]
    found = correlation(first, second, kind)
    assert found.value == pytest.approx(EXACT[kind](first, second).statistic)
    assert (found.n, found.over) == (6, "systems")
    assert (found.low or 0) < (found.value or 0) <= (found.high or 0)


@pytest.mark.parametrize("kind", get_args(Kind))
def test_tables_are_correlated_by_their_means(kind: Kind) -> None:
    random = np.random.default_rng(0)
    rates = np.linspace(0.2, 0.8, 8)[:, None]
    first, second = ((random.random((8, 200)) < rates).astype(float) for _ in range(2))
    first[2, :50] = math.nan
    found = correlation(first, second, kind)
    means = np.nanmean(first, axis=1), second.mean(axis=1)
    assert found.value == pytest.approx(EXACT[kind](*means).statistic)
    assert found.over == "instructions"
    assert -1 <= (found.low or -2) < (found.value or 0) <= (found.high or 2) <= 1


def test_a_system_that_one_board_lacks_is_left_out() -> None:
    assert correlation([1, 2, math.nan, 4, 5], [1, 3, 9, 2, 5]).value == correlation([1, 2, 4, 5], [1, 3, 2, 5]).value


def test_two_systems_or_different_boards_are_no_correlation() -> None:
    with pytest.raises(DataError, match="2 systems are on both boards"):
        correlation([1, 2, math.nan], [1, 2, 3])
    with pytest.raises(DataError, match="not of the same systems"):
        correlation([1, 2, 3], [1, 2, 3, 4])


def test_a_board_that_does_not_vary_has_none() -> None:
    found = correlation([1, 1, 1, 1], [1, 2, 3, 4])
    assert (found.value, found.low, found.high) == (None, None, None)


def test_more_instructions_make_it_surer() -> None:
    random = np.random.default_rng(1)
    rates = np.linspace(0.3, 0.7, 10)[:, None]
    first, second = ((random.random((10, 2000)) < rates).astype(float) for _ in range(2))
    few, many = correlation(first[:, :100], second[:, :100], "pearson"), correlation(first, second, "pearson")
    assert (many.high or 0) - (many.low or 0) < ((few.high or 0) - (few.low or 0)) / 2


def test_noise_in_the_figures_does_not_hide_a_perfect_correlation() -> None:
    """Resampling adds noise, and noise lowers a correlation: an interval of resamples alone would exclude the truth."""
    held = []
    for run in range(60):
        random = np.random.default_rng([run, 2])
        rates = np.linspace(0.3, 0.7, 12)[:, None]
        first, second = ((random.random((12, 150)) < rates).astype(float) for _ in range(2))
        held.append((correlation(first, second, "pearson", resamples=300).high or 0) >= 0.999)
    assert np.mean(held) > 0.8
