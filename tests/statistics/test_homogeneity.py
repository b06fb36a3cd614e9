"""Estimates of one truth or of several."""

from __future__ import annotations

import math

import numpy as np
import pytest

from afarm.core.errors import DataError
from afarm.statistics import homogeneity


def test_two_estimates_are_a_test_of_their_difference() -> None:
    # 50 and 60, each ± 4: Q = 5² / 16 + 5² / 16 = 3.125, the square of z = 10 / (4 √2)
    assert homogeneity([50, 60], [4, 4]) == pytest.approx(math.erfc(10 / (4 * math.sqrt(2)) / math.sqrt(2)))


def test_a_precise_estimate_weighs_more() -> None:
    # weights 1, 1, 1/4 around 2/9: Q = (2/9)² + (2/9)² + (16/9)² / 4 = 72/81 on two degrees, whose tail is exp(−Q/2)
    assert homogeneity([0, 0, 2], [1, 1, 2]) == pytest.approx(math.exp(-4 / 9))


def test_one_truth_is_rejected_as_often_as_is_meant() -> None:
    draws = np.random.default_rng(5)
    found = [homogeneity(draws.normal(50, 4, 16), np.full(16, 4.0)) for _ in range(2000)]
    assert np.mean(np.array(found) < 0.05) == pytest.approx(0.05, abs=3 * math.sqrt(0.05 * 0.95 / 2000))


@pytest.mark.parametrize(("values", "errors"), [([50], [4]), ([50, 60], [4, 0]), ([50, 60], [4, math.nan])])
def test_what_cannot_be_tested_is_refused(values: list[float], errors: list[float]) -> None:
    with pytest.raises(DataError, match="each with an error above 0"):
        homogeneity(values, errors)
