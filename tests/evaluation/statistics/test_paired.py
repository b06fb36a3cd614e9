"""Two systems on the same instructions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests

from afarm.core.errors import DataError
from afarm.evaluation.statistics.intervals import minimum_detectable_difference
from afarm.evaluation.statistics.paired import Difference, holm, paired_difference, paired_differences

NAN = math.nan


def significant(found: Difference | None) -> bool:
    return found is not None and found.adjusted is not None and found.adjusted <= 0.05


def test_only_shared_instructions_count() -> None:
    found = paired_difference([1, 1, 0, NAN, 1, 0], [0, 0.5, 0, 1, NAN, NAN])
    assert found.value == pytest.approx(0.5)
    assert found.n == 3
    assert found.detectable == pytest.approx(minimum_detectable_difference(3, 0.5))


def test_without_a_shared_instruction_there_is_no_difference() -> None:
    with pytest.raises(DataError, match="share no instruction"):
        paired_difference([1, NAN], [NAN, 1])
    with pytest.raises(DataError, match="cannot be paired"):
        paired_difference([1], [1, 0])


def test_one_shared_instruction_tells_nothing_about_chance() -> None:
    found = paired_difference([1, NAN], [0, 0])
    assert (found.value, found.p_value, found.error, significant(found)) == (1, None, None, False)


def test_equal_systems_do_not_differ() -> None:
    found = paired_difference([1, 0, 1], [1, 0, 1])
    assert (found.value, found.p_value) == (0, 1)


def test_differences_that_are_all_the_same_are_no_certainty() -> None:
    found = paired_difference([1, 1, 1], [0, 0, 0])
    assert (found.value, found.low, found.high, found.p_value) == (1, None, None, 0.25)
    rounded = paired_difference([0.7] * 7, [0.4] * 7)  # whose mean is another number than they are, by 6e-17
    assert (rounded.error, rounded.low, rounded.p_value) == (0.0, None, 2**-6)


def test_the_test_is_students() -> None:
    random = np.random.default_rng(3)
    first, second = random.random(400), random.random(400) + 0.04
    assert paired_difference(first, second).p_value == pytest.approx(stats.ttest_rel(first, second).pvalue)


def test_exchanging_the_systems_changes_the_sign_only() -> None:
    random = np.random.default_rng(4)
    first, second = random.random(50), random.random(50)
    one, two = paired_difference(first, second), paired_difference(second, first)
    assert (one.value, one.low, one.p_value) == (-two.value, -(two.high or 0), two.p_value)


def test_the_interval_excludes_0_where_the_test_is_below_5_percent() -> None:
    shown = set()
    for run in range(60):
        random = np.random.default_rng([run, 1])
        found = paired_difference(random.choice([0, 0.5, 1], 40), random.choice([0, 0.5, 1], 40, p=[0.45, 0.2, 0.35]))
        assert ((found.low or 0) > 0 or (found.high or 0) < 0) == significant(found)
        shown.add(significant(found))
    assert shown == {True, False}


def test_equal_systems_are_rarely_called_different() -> None:
    """1,000 pairs of equal systems on 30 instructions, with draws: the share below 5% has a binomial error of 0.7."""
    random = np.random.default_rng(6)
    gaps = random.choice([-1, -0.5, 0, 0, 0.5, 1], (1000, 30))
    found = [paired_difference(row, np.zeros(30)).p_value for row in gaps]
    assert 0.05 - 4 * 0.007 <= np.mean([p is not None and p <= 0.05 for p in found]) <= 0.05 + 3 * 0.007


def test_holms_correction_is_that_of_statsmodels() -> None:
    p = [0.01, 0.6, 0.013, 0.04, 0.04, 0.9]
    assert holm(p) == pytest.approx(multipletests(p, method="holm")[1].tolist())
    assert holm([0.01, 0.02], tests=10) == pytest.approx([0.1, 0.18])
    assert holm([]) == []


def test_comparisons_with_a_baseline_are_corrected_together() -> None:
    random = np.random.default_rng(7)
    table = (random.random((4, 100)) < np.array([0.5, 0.5, 0.8, 0.55])[:, None]).astype(float)
    found = paired_differences(table, 1)
    assert found[1] is None
    p = [d.p_value for d in found if d is not None]
    assert [d.adjusted for d in found if d is not None] == pytest.approx(holm([x for x in p if x is not None]))
    assert [significant(d) for d in found] == [False, False, True, False]
    assert found[2] is not None
    assert found[2].value == pytest.approx(float((table[2] - table[1]).mean()))


def test_who_shares_nothing_with_the_baseline_is_not_compared() -> None:
    table = [[1.0, 0, 1, NAN], [NAN, NAN, NAN, 1], [0, 1, 1, 1]]
    assert [d is None for d in paired_differences(table, 0)] == [True, True, False]


def test_the_best_of_equals_is_not_called_better() -> None:
    """It was chosen for its luck: corrected as if it had been named before, 300 boards of 10 err well above 5%."""
    named, best = [], []
    for run in range(300):
        table = (np.random.default_rng([run, 8]).random((10, 100)) < 0.5).astype(float)
        top = int(np.argmax(table.mean(axis=1)))
        named.append(any(map(significant, paired_differences(table, top))))
        best.append(any(map(significant, paired_differences(table, top, best=True))))
    assert np.mean(named) > 0.1
    assert np.mean(best) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 300)
