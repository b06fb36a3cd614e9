"""Places on a board, and how sure they are."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from afarm.core.errors import DataError
from afarm.evaluation.statistics.rank_intervals import rank_intervals

Floats = np.ndarray[Any, np.dtype[np.float64]]


def board(random: np.random.Generator, rates: list[float], n: int) -> Floats:
    """Wins that go together: easy instructions are easy for all."""
    easy, own = random.random(n), random.random((len(rates), n))
    return (np.where(own < 0.5, easy, random.random((len(rates), n))) < np.array(rates)[:, None]).astype(float)


def test_systems_far_apart_have_sure_places() -> None:
    found = rank_intervals(board(np.random.default_rng(0), [0.2, 0.8, 0.5], 500))
    assert [(r.rank, r.low, r.high) for r in found] == [(3, 3, 3), (1, 1, 1), (2, 2, 2)]


def test_equal_systems_share_the_better_place_and_every_place_is_possible() -> None:
    table = board(np.random.default_rng(1), [0.5], 100).repeat(3, axis=0)
    assert [(r.rank, r.low, r.high) for r in rank_intervals(table)] == [(1, 1, 3)] * 3


def test_the_order_of_systems_and_of_instructions_does_not_matter() -> None:
    table = board(np.random.default_rng(2), [0.3, 0.5, 0.55, 0.6, 0.9], 120)
    found = rank_intervals(table)
    assert rank_intervals(table) == found
    moved = np.random.default_rng(3).permutation(120)
    assert [(r.rank, r.low, r.high) for r in rank_intervals(table[::-1][:, moved])] == [
        (r.rank, r.low, r.high) for r in found[::-1]
    ]


def test_shared_instructions_sharpen_places() -> None:
    random = np.random.default_rng(4)
    hard = random.random(100)
    together = np.stack([hard, hard + 0.05 + 0.01 * random.random(100), random.random(100)])
    assert [(r.low, r.high) for r in rank_intervals(together)] == [(2, 3), (1, 2), (1, 3)]
    apart = np.stack([hard, random.permutation(together[1]), together[2]])
    assert [(r.low, r.high) for r in rank_intervals(apart)] == [(1, 3), (1, 3), (1, 3)]


def test_what_is_clear_does_not_blur_what_is_close() -> None:
    random = np.random.default_rng(21)
    close = random.random((2, 400)) + np.array([[0.05], [0.0]])
    far = random.random((10, 400)) - np.arange(5, 15)[:, None]
    assert [(r.low, r.high) for r in rank_intervals(close)] == [(1, 1), (2, 2)]
    assert [(r.low, r.high) for r in rank_intervals(np.concatenate([close, far]))[:2]] == [(1, 1), (2, 2)]


def test_few_instructions_are_judged_by_students_t() -> None:
    # The mean difference is 2.3 standard errors: more than the normal's 1.96, less than t's 2.78.
    assert [(r.low, r.high) for r in rank_intervals([[0.1, 0.1, 0.1, -0.05, 0.1], [0] * 5])] == [(1, 2), (1, 2)]


def test_a_system_is_ranked_by_what_it_has() -> None:
    table = board(np.random.default_rng(5), [0.2, 0.9, 0.5], 200)
    table[1, ::2] = math.nan
    assert [r.rank for r in rank_intervals(table)] == [3, 1, 2]
    with pytest.raises(DataError, match="row 1 of the table has 1"):
        rank_intervals([[1, 0], [1, math.nan]])


def test_missing_values_that_could_turn_a_difference_leave_it_open() -> None:
    table = board(np.random.default_rng(5), [0.2, 0.9, 0.5], 200)
    assert [(r.low, r.high) for r in rank_intervals(table)] == [(3, 3), (1, 1), (2, 2)]
    few, many = table.copy(), table.copy()
    few[1, ::20] = many[1, 60:] = math.nan
    assert [(r.low, r.high) for r in rank_intervals(few)] == [(3, 3), (1, 1), (2, 2)]
    assert [(r.low, r.high) for r in rank_intervals(many)] == [(3, 3), (1, 2), (1, 2)], "140 of 200 could be lost"


def test_places_hold_at_their_level_among_equals() -> None:
    """150 boards of 6 equal systems: every true place is 1."""
    each = []
    for run in range(150):
        found = rank_intervals(board(np.random.default_rng([run, 6]), [0.5] * 6, 150), resamples=300)
        each += [r.low == 1 for r in found]
    assert np.mean(each) >= 0.95 - 3 * 0.018
