"""The rate of a loop and its time left, counted from when the first item was finished."""

from __future__ import annotations

import pytest

from afarm.cli.pace import LoopPace


@pytest.mark.parametrize(
    ("finished", "now", "left"),
    [
        ([], 3600, None),
        ([3600], 3600, None),
        ([60, 70], 70, 980),
        ([60, 70, 80, 90], 90, 960),
        ([3600] * 32, 3600, None),
        ([3600] * 32 + [7200] * 32, 7200, 36 * 3600 / 32),
        ([3600 + n for n in range(50)], 3649, None),
        ([10, 20, 30], 30, 970),
        ([10, 20, 30], 50, 97 * 20),
        ([10] * 100, 10, None),
    ],
    ids=str,
)
def test_the_time_left_is_by_the_rate_since_the_first_items(
    finished: list[float], now: float, left: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    pace = LoopPace(0, 100)
    for at in finished:
        clock[0] = 1000.0 + at
        pace.finish()
    clock[0] = 1000.0 + now
    assert pace.seconds_left == (left if left is None else pytest.approx(left))


def test_what_was_done_before_a_loop_gives_no_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    pace = LoopPace(30, 40)
    for _ in range(2):
        clock[0] += 5.0
        pace.finish()
    assert (pace.done, pace.share, pace.rate, pace.seconds_left) == (32, 0.2, 0.2, 40.0)
    assert LoopPace(0, None).seconds_left is None
