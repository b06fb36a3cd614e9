"""Systems that are equal on average, and systems that are not."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import ttest_rel

from afarm.core.errors import DataError
from afarm_plugins.tuning.equal_means import equal_means


def test_two_systems_are_student_s_paired_test() -> None:
    first, second = np.random.default_rng(1).normal(size=(2, 12))
    assert equal_means([first, second]) == pytest.approx(ttest_rel(first, second).pvalue)


def test_three_systems_by_hand() -> None:
    # The differences from the first have means 0.5 and 0, variances 2/3 and 4/3, and no covariance:
    # T² = 4 · 0.5² / (2/3) = 3/2, and F = T² (4 − 2) / (2 · 3) = 1/2 on 2 and 2 degrees, whose tail is 1 / (1 + F).
    assert equal_means([[0, 0, 0, 0], [1.5, -0.5, 0.5, 0.5], [0, 0, 2**0.5, -(2**0.5)]]) == pytest.approx(2 / 3)


def test_it_is_the_same_from_whichever_system_and_in_any_order_of_instructions() -> None:
    draws = np.random.default_rng(2)
    values = draws.normal(size=(5, 40)) + draws.normal(size=40) * 9
    found = equal_means(values)
    assert equal_means(values[[3, 1, 4, 0, 2]][:, draws.permutation(40)]) == pytest.approx(found)
    assert equal_means(7 * values - 3) == pytest.approx(found)


def test_equal_systems_are_told_apart_as_often_as_is_meant_however_alike_they_are() -> None:
    draws = np.random.default_rng(5)

    def values() -> np.ndarray:
        chances = draws.uniform(size=160)  # of each instruction, which all systems share
        return (draws.uniform(size=(8, 160)) < chances).astype(float)

    found = np.array([equal_means(values()) for _ in range(2000)])
    assert np.mean(found < 0.05) == pytest.approx(0.05, abs=3 * math.sqrt(0.05 * 0.95 / 2000))


def test_a_small_difference_on_every_instruction_is_seen_through_their_spread() -> None:
    """By their means alone, 50 and 51 with errors of 3, nothing could be told."""
    draws = np.random.default_rng(6)
    instructions = draws.normal(50, 30, 100)
    assert equal_means([instructions, instructions + 1 + draws.normal(0, 1, 100)]) < 1e-10


def test_systems_with_the_same_values_are_no_evidence() -> None:
    one, other = np.random.default_rng(3).normal(size=(2, 30))
    assert equal_means([one, one, one]) == 1
    assert equal_means([one, one, other]) == pytest.approx(equal_means([one, other]))
    assert equal_means([one, one + 0.5, one]) == 0, "better by as much on each"


@pytest.mark.parametrize("values", [[[1, 2, 3]], [[1, 2], [3, 4]], [[1, 2, math.nan], [3, 4, 5]], [1, 2, 3]])
def test_what_cannot_be_tested_is_refused(values: list[list[float]]) -> None:
    with pytest.raises(DataError, match="two systems or more on a larger number of instructions"):
        equal_means(values)
