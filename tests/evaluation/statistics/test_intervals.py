"""Means, their errors and intervals, and sample sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import ArrayLike
from scipy import stats

from afarm.core.errors import DataError
from afarm.evaluation.metrics import interval
from afarm.evaluation.statistics.intervals import (
    instructions_needed,
    mean,
    minimum_detectable_difference,
)


def covered(low: float | None, truth: float, high: float | None) -> bool:
    return low is not None and high is not None and low <= truth <= high


def test_the_error_is_s_over_root_n_and_the_interval_is_students() -> None:
    found = mean([1, 0, 0.5, 1])
    assert found.value == 0.625
    assert found.error == pytest.approx(math.sqrt((0.375**2 + 0.625**2 + 0.125**2 + 0.375**2) / 3 / 4))
    low, high = stats.t.interval(0.95, 3, loc=found.value, scale=found.error)
    assert (found.low, found.high) == pytest.approx((low, high))
    assert (found.n, found.labels) == (4, 4)


def test_absent_values_do_not_count() -> None:
    assert mean([1, math.nan, 0]) == mean([1, 0])


def test_one_instruction_has_a_mean_and_no_error() -> None:
    found = mean([1, 0, 1], ["a", "a", "a"])
    assert (found.value, found.error, found.low, found.n, found.labels) == (pytest.approx(2 / 3), None, None, 1, 3)


def test_no_value_is_an_error() -> None:
    with pytest.raises(DataError, match="nothing to take the mean of"):
        mean([math.nan])


def test_equal_labels_of_an_instruction_add_nothing() -> None:
    once = mean([1, 0, 1, 1])
    thrice = mean([1, 0, 1, 1] * 3, ["a", "b", "c", "d"] * 3)
    assert (thrice.value, thrice.error, thrice.n, thrice.labels) == (once.value, pytest.approx(once.error), 4, 12)


def test_the_clustered_error_by_hand() -> None:
    # Mean 0.6; residuals of a: 0.4 + 0.4 = 0.8, of b: -0.6 + 0.4 - 0.6 = -0.8; sqrt((0.64 + 0.64) * 2 / 1) / 5.
    assert mean([1, 1, 0, 1, 0], ["a", "a", "b", "b", "b"]).error == pytest.approx(1.6 / 5)


def test_names_of_instructions_must_be_as_many_as_values() -> None:
    with pytest.raises(DataError, match="2 values, but 1 names"):
        mean([1, 0], ["a"])


def shown(wins: ArrayLike, clusters: Sequence[object] | None = None) -> tuple[float, float]:
    """The interval that is shown of a win rate."""
    found = mean(wins, clusters)
    return interval(100 * found.value, 100 * (found.error or 0), found.n) or (0, 0)


def test_a_system_that_always_won_is_not_sure_to() -> None:
    low, high = shown([1] * 25)
    # 27 wins and 2 losses: mean 27/29, s² = 29/28 · 27/29 · 2/29.
    half = stats.t.ppf(0.975, 28) * math.sqrt(27 / 29 * 2 / 29 / 28)
    assert (low, high) == (pytest.approx(100 * (27 / 29 - half), abs=0.01), 100)
    assert shown([0] * 25)[0] == 0


def test_the_interval_of_a_win_rate_clusters_too() -> None:
    assert shown([1, 0, 1, 1]) == pytest.approx(shown([1, 0, 1, 1] * 3, ["a", "b", "c", "d"] * 3))


def test_intervals_cover_at_their_level() -> None:
    """400 data sets of 40 instructions, two labels each that go together, won 90% of the time; binomial error 1.1."""
    hits, careless = [], []
    for run in range(400):
        random = np.random.default_rng(run)
        own = np.repeat((random.random(40) < 0.9).astype(float), 2)
        (low, high), (plain_low, plain_high) = shown(own, [*np.repeat(np.arange(40), 2)]), shown(own)
        hits.append(covered(low, 90, high))
        careless.append(covered(plain_low, 90, plain_high))
    assert np.mean(hits) >= 0.95 - 3 * 0.011
    assert np.mean(careless) < 0.9


def test_what_is_detectable_is_found_four_times_in_five() -> None:
    n, deviation = 60, 0.5
    gap = minimum_detectable_difference(n, deviation)
    random = np.random.default_rng(0)
    p = stats.ttest_1samp(gap + deviation * random.standard_normal((2000, n)), 0, axis=1).pvalue
    assert np.mean(p < 0.05) == pytest.approx(0.8, abs=3 * math.sqrt(0.8 * 0.2 / 2000))


def test_the_instructions_needed_are_the_fewest_that_do() -> None:
    n = instructions_needed(-0.05, 0.5)
    assert minimum_detectable_difference(n, 0.5) <= 0.05 < minimum_detectable_difference(n - 1, 0.5)
    assert instructions_needed(1, 0.01) == 2


def test_nothing_can_be_asked_of_too_little() -> None:
    with pytest.raises(DataError, match="at least 2"):
        minimum_detectable_difference(1, 0.5)
    with pytest.raises(DataError, match="difference of 0"):
        instructions_needed(0, 0.5)
