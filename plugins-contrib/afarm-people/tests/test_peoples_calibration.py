"""Win rates in people's units: a population whose truth is known, hostile draws, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from afarm_people.calibration import JudgedTask, calibrate_win_rates, transfer_error

from afarm import DataError


def judged(n: int, truth: float, biased: float, labels: int, seed: int) -> list[JudgedTask]:
    """A system that wins with chance `truth` by people; the judge calls `biased` of losses wins."""
    rng = np.random.default_rng(seed)
    people = rng.random(n) < truth
    judge = people | (rng.random(n) < biased)
    labelled = set(rng.choice(n, labels, replace=False).tolist())
    return [
        JudgedTask(f"task {i}", float(judge[i]), float(people[i]) if i in labelled else None, labels / n or None)
        for i in range(n)
    ]


def test_a_biased_judge_is_corrected_and_an_unlabelled_system_stays_raw() -> None:
    systems = {
        "a": judged(800, 0.3, 0.3, 100, 1),
        "b": judged(800, 0.6, 0.3, 100, 2),
        "other": judged(800, 0.4, 0.0, 100, 4),  # the judge flatters the others, not this one
        "new": judged(800, 0.5, 0.3, 0, 3),
        "few": judged(800, 0.5, 0.3, 5, 5),
    }
    rates = {rate.system: rate for rate in calibrate_win_rates(systems)}
    for name, truth in (("a", 30), ("b", 60), ("other", 40)):
        rate = rates[name]
        assert rate.people is not None
        assert rate.low is not None
        assert rate.high is not None
        assert rate.low < truth < rate.high
        assert abs(rate.people - truth) < 9
    assert rates["a"].judge > 45  # the raw figure is far off
    assert rates["new"].people is None
    assert rates["new"].not_checked.startswith("none of its pairs is labelled")
    assert rates["few"].people is None
    assert rates["few"].not_checked.startswith("5 of its pairs are labelled")
    assert rates["new"].judge == pytest.approx(100 * np.mean([row.judge for row in systems["new"]]))
    error = rates["other"].transfer
    assert error is not None
    assert error[1] > 0


def test_pairs_drawn_with_known_chances_are_weighted() -> None:
    """Losses are labelled four times as often: unweighted, the win rate would come out far too low."""
    rng = np.random.default_rng(0)
    rows = []
    for i in range(2000):
        people = float(rng.random() < 0.5)
        judge = people if rng.random() < 0.8 else 1 - people
        chance = 0.05 if judge else 0.2
        rows.append(JudgedTask(f"task {i}", judge, people if rng.random() < chance else None, chance))
    [weighted] = calibrate_win_rates({"a": rows})
    assert weighted.low is not None
    assert weighted.high is not None
    assert weighted.low < 50 < weighted.high
    [flat] = calibrate_win_rates({"a": [JudgedTask(row.task, 0.5, row.people) for row in rows]})
    assert flat.high is not None
    assert flat.high < 50


def test_labels_that_are_all_alike_leave_room_for_others() -> None:
    """Thirty of thirty: the exact interval begins at 0.025^(1/30)."""
    rows = [JudgedTask(f"task {i}", 1.0, 1.0 if i < 30 else None) for i in range(60)]
    [rate] = calibrate_win_rates({"a": rows})
    assert (rate.people, rate.low, rate.high) == pytest.approx((100, 100 * 0.025 ** (1 / 30), 100))


def test_too_few_labels_and_mixed_draws_are_refused() -> None:
    with pytest.raises(DataError, match="people labelled 29 of the judged pairs, too few"):
        calibrate_win_rates({"a": judged(100, 0.5, 0.1, 29, 0)})
    mixed = judged(100, 0.5, 0.1, 40, 0)
    first = next(number for number, row in enumerate(mixed) if row.people is not None)
    mixed[first] = JudgedTask("x", 1.0, 1.0)
    with pytest.raises(DataError, match="some labelled pairs say with what probability"):
        calibrate_win_rates({"a": mixed})


def test_transfer_error_by_hand() -> None:
    """Others: the judge's 0 means people's ¼, its 1 people's ¾. Ours: twenty 0s that people call ½."""
    quarter, rest = (1.0,) * 5 + (0.0,) * 15, (1.0,) * 15 + (0.0,) * 5
    others = [JudgedTask("t", verdict, one) for verdict, given in ((0.0, quarter), (1.0, rest)) for one in given]
    own = [JudgedTask("t", 0.0, float(number % 2)) for number in range(20)]
    error = transfer_error(own, others)
    assert error is not None
    half = 1.959964 * 100 * np.sqrt(0.25 * 20 / 19 / 20)
    assert error == pytest.approx((25, 25 - half, 25 + half), abs=1e-4)
    assert transfer_error(own, others[:29]) is None


def test_transfer_error_weights_draws_by_hand() -> None:
    """Others' weighted mean is ⅓, ours ⅔: the drawn pairs stand for 60 and 30."""
    others = [JudgedTask("t", 0.0, float(n < 20), 1.0 if n < 20 else 0.5) for n in range(40)]
    own = [JudgedTask("t", 0.0, float(n < 10), 0.5 if n < 10 else 1.0) for n in range(20)]
    half = 1.959964 * 100 * np.sqrt(20 / 19 * 80 / 8100)
    assert transfer_error(own, others) == pytest.approx((100 / 3, 100 / 3 - half, 100 / 3 + half), abs=1e-4)
