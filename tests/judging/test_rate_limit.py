"""How much a judge is asked at once: less when it asks to slow down, slowly more again."""

from __future__ import annotations

from afarm.judging.rate_limit import ALONE, LONGEST_PAUSE, PAUSE, Limiter


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def limiter(maximum: int = 16) -> tuple[Limiter, Clock]:
    """One that was answered before."""
    clock = Clock()
    one = Limiter(maximum, clock)
    one.sent()
    one.completed(True)
    one._successes = 0
    return one, clock


def succeed(one: Limiter, times: int) -> None:
    for _ in range(times):
        one.sent()
        one.completed(True)


def test_room_is_what_is_not_in_flight() -> None:
    one, _ = limiter(3)
    one.sent()
    one.sent()
    assert one.free_slots() == 1
    one.sent()
    assert one.free_slots() == 0
    one.completed(False)
    assert one.free_slots() == 1


def test_a_wave_of_refusals_halves_the_limit_once_and_holds_until_the_wait_is_over() -> None:
    one, clock = limiter(16)
    for _ in range(16):
        one.throttled(5.0)
    assert (one.limit, one.free_slots(), one.seconds_until_open()) == (8, 0, 5.0)
    clock.now += 4.0
    one.throttled(5.0)
    assert (one.limit, one.seconds_until_open()) == (8, 5.0), "the same wave, but its wait is longer"
    clock.now += 5.0
    assert one.free_slots() == 8
    one.throttled(0.0)
    assert one.limit == 4, "after the wait it is another wave"


def test_a_refusal_without_a_wait_or_with_an_absurd_one_holds_for_a_sensible_time() -> None:
    one, clock = limiter()
    one.throttled(None)
    assert one.seconds_until_open() == PAUSE
    one.throttled(1e9)
    assert one.seconds_until_open() == LONGEST_PAUSE
    clock.now += LONGEST_PAUSE
    one.throttled(-3.0)
    assert one.seconds_until_open() == 0.0
    one.throttled(-3.0)
    assert one.limit == 4, "a wave lasts a while even if there is nothing to wait for"


def test_the_first_request_goes_alone_until_it_is_answered_or_takes_long() -> None:
    clock = Clock()
    one = Limiter(16, clock)
    assert one.free_slots() == 1
    one.sent()
    assert (one.free_slots(), one.seconds_until_open()) == (0, ALONE)
    one.completed(False)
    assert (one.free_slots(), one.seconds_until_open()) == (1, 0.0), "after a failure the next one is the first"
    one.sent()
    clock.now += ALONE
    assert (one.free_slots(), one.seconds_until_open()) == (15, 0.0)
    one.completed(True)
    assert one.free_slots() == 16
    other = Limiter(16, clock)
    other.sent()
    other.completed(True)
    assert other.free_slots() == 16, "at once"


def test_the_limit_never_falls_below_one() -> None:
    one, clock = limiter(2)
    for _ in range(5):
        one.throttled(0.0)
        clock.now += PAUSE
    assert one.limit == one.free_slots() == 1


def test_each_full_round_of_successes_makes_room_for_one_more_up_to_the_maximum() -> None:
    one, clock = limiter(8)
    one.throttled(0.0)
    clock.now += PAUSE
    succeed(one, 3)
    assert one.limit == 4
    succeed(one, 1)
    assert one.limit == 5
    succeed(one, 5 + 6 + 7)
    assert one.limit == 8
    succeed(one, 100)
    assert one.limit == 8


def test_failures_are_no_successes_and_a_refusal_starts_the_round_anew() -> None:
    one, clock = limiter(8)
    one.throttled(0.0)
    clock.now += PAUSE
    for _ in range(10):
        one.sent()
        one.completed(False)
    assert one.limit == 4
    succeed(one, 3)
    one.throttled(0.0)
    succeed(one, 1)
    assert one.limit == 2
