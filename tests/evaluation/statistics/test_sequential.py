"""Looking at answers as they come, and stopping."""

from __future__ import annotations

import math

import numpy as np
import pytest

from afarm.core.errors import DataError
from afarm.evaluation.statistics.intervals import mean
from afarm.evaluation.statistics.sequential import confidence_sequence, decide, decision_times


def test_capital_by_hand() -> None:
    """Twelve wins: a stake of part s doubles to 1 + s each time; 1/α for two sides is 40."""
    stakes = np.geomspace(0.01, 0.95, 16)
    capital = [float(np.mean((1 + stakes) ** n)) for n in range(1, 13)]
    first = next(n for n, value in enumerate(capital, 1) if value >= 40)
    assert decision_times(np.ones(12)) == (first, None)
    assert decision_times(np.zeros(12)) == (None, first)


def test_a_decision_does_not_change_when_more_is_seen() -> None:
    values = np.concatenate([np.ones(15), np.zeros(20)])
    assert decide(values[:15]).side == "higher"
    assert decide(values).side == "higher"


def test_nothing_is_decided_by_nothing() -> None:
    found = decide([])
    assert (found.side, found.estimate.n) == (None, 0)
    assert (found.estimate.low, found.estimate.high) == (0, 1)
    assert decide([0.5] * 500).side is None


def test_winning_mirrors_losing() -> None:
    values = np.random.default_rng(0).random(60) ** 0.5
    up, down = confidence_sequence(values), confidence_sequence(1 - values)
    assert (up.low, up.high) == pytest.approx((1 - (down.high or 0), 1 - (down.low or 0)), abs=1e-6)


def test_the_side_is_decided_when_the_interval_excludes_even() -> None:
    values = (np.random.default_rng(1).random(400) < 0.65).astype(float)
    higher, lower = decision_times(values)
    assert higher is not None
    assert lower is None
    before, after = confidence_sequence(values[: higher - 1]), confidence_sequence(values[:higher])
    assert (before.low or 0) < 0.5 <= (after.low or 0) + 1e-6


def test_the_sequence_is_wider_than_an_interval_for_one_look_and_not_by_much() -> None:
    values = (np.random.default_rng(2).random(805) < 0.6).astype(float)
    watched, once = confidence_sequence(values), mean(values)
    ratio = ((watched.high or 0) - (watched.low or 0)) / ((once.high or 0) - (once.low or 0))
    assert 1 < ratio < 2


def test_what_cannot_be_bet_on_is_named() -> None:
    with pytest.raises(DataError, match="not 2"):
        decide([1, 2.0])
    with pytest.raises(DataError, match="not nan"):
        decide([1, math.nan])


@pytest.mark.parametrize("draws", [0.0, 0.6])
def test_looking_after_every_answer_rarely_decides_what_is_even(draws: float) -> None:
    """500 even comparisons, watched for 400 answers: at most 5% are decided; a watched 95% interval errs ten times."""
    wrong, naive = [], []
    for run in range(500):
        random = np.random.default_rng([run, 7])
        values = np.where(random.random(400) < draws, 0.5, random.random(400) < 0.5)
        wrong.append(any(time is not None for time in decision_times(values)))
        n = np.arange(1, 401)
        means = np.cumsum(values) / n
        spread = np.sqrt(np.maximum(np.cumsum(values**2) / n - means**2, 1e-12) / n)
        naive.append(bool((np.abs(means - 0.5) > 1.96 * spread)[20:].any()))
    assert np.mean(wrong) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 500)
    assert np.mean(naive) > 0.25


def test_the_sequence_covers_at_every_look() -> None:
    """150 systems that win 70%, looked at after every 20 answers up to 160."""
    missed = 0
    for run in range(150):
        values = (np.random.default_rng([run, 10]).random(160) < 0.7).astype(float)
        looks = [confidence_sequence(values[:n], steps=10) for n in range(20, 161, 20)]
        missed += any(not (look.low or 0) <= 0.7 <= (look.high or 1) for look in looks)
    assert missed / 150 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 150)
