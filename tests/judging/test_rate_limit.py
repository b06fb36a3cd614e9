"""How much a judge is asked, and how often: as much as it takes, less when it refuses, slowly more again."""

from __future__ import annotations

import pytest
from simulated_servers import AtOnce, AtRandom, Bucket, PerWindow, Run, Server

from afarm.judging.rate_limit import ALONE, LONGEST_PAUSE, PATIENCE, PAUSE, Attempt, Limiter


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def limiter(maximum: int = 16) -> tuple[Limiter, Clock]:
    """One that was answered before."""
    clock = Clock()
    one = Limiter(maximum, clock)
    first = one.sent()
    clock.now += 0.1
    one.answered(first)
    return one, clock


def send_all(one: Limiter) -> list[Attempt]:
    return [one.sent() for _ in range(one.free_slots())]


# ----------------------------------------------------------------------------------------------- against fixed rates


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("server", "in_flight", "answers"),
    [
        (AtOnce(8), 64, 805),
        (AtOnce(8, retry_after=1.0), 64, 805),
        (AtOnce(20), 256, 805),
        (PerWindow(2, retry_after=5.0), 64, 805),
        (PerWindow(40), 256, 1610),
        (PerWindow(20, 10.0), 64, 805),
        (PerWindow(400, 10.0, 1.0), 64, 4000),
        (Bucket(40, 40), 256, 805),
        (Bucket(2, 120, retry_after=5.0), 64, 805),
        (Bucket(8, 500, retry_after=1.0), 64, 3220),
    ],
    ids=str,
)
def test_a_run_against_a_fixed_rate_gets_nine_tenths_of_it(
    server: Server, in_flight: int, answers: int, seed: int
) -> None:
    run = Run(server.__class__(**_settings(server)), answers=answers, in_flight=in_flight, seed=seed).finish()
    assert run.share >= 0.9, f"in {run.now - run.began:.0f} s with {run.refused} refusals"


@pytest.mark.parametrize(
    ("server", "in_flight", "answers", "share"),
    [
        (AtOnce(8), 64, 805, 0.94),
        (AtOnce(8, 1.0), 64, 805, 0.91),
        (AtOnce(20), 256, 1610, 0.9),
        (PerWindow(40), 256, 805, 0.93),
        (PerWindow(2, 1.0, 5.0), 64, 200, 0.89),
        (PerWindow(2, 1.0, 5.0), 64, 60, 0.75),  # two waits of 5 s: at most 0.78
    ],
    ids=str,
)
def test_the_benchmarks_runs_get_nine_tenths_unless_they_are_short(
    server: Server, in_flight: int, answers: int, share: float
) -> None:
    for seed in range(5):
        fresh = server.__class__(**_settings(server))
        run = Run(fresh, answers=answers, in_flight=in_flight, latency=(0.2, 0.203), seed=seed).finish()
        assert run.share >= share, f"in {run.now - run.began:.0f} s with {run.refused} refusals, seed {seed}"


@pytest.mark.parametrize(
    ("server", "share"),
    [
        (PerWindow(120, 60.0, 5.0), 0.9),
        (Bucket(2, 2, 5.0), 0.85),
        (Bucket(2, 1, 5.0), 0.85),
        (Bucket(8, 1, 1.0), 0.85),
        (PerWindow(2), 0.9),
        (Bucket(10, 1), 0.85),
        (AtOnce(1), 0.95),
        (AtOnce(1, 1.0), 0.7),  # taken for a rate: one a second is common, one at once is rare
        (Bucket(40, 1), 0.55),  # two in 25 ms are too many, and the network delays each by up to 3: at most 0.85
    ],
    ids=str,
)
def test_a_rate_that_is_hard_to_learn_is_missed_by_little(server: Server, share: float) -> None:
    assert Run(server).finish().share >= share


@pytest.mark.parametrize("latency", [(0.3, 0.5), (1.0, 2.0)], ids=str)
@pytest.mark.parametrize("server", [Bucket(1, 1), Bucket(3, 8), Bucket(10, 8), Bucket(10, 100), AtOnce(8)], ids=str)
def test_a_server_that_names_no_wait_is_seldom_asked_too_much(server: Server, latency: tuple[float, float]) -> None:
    run = Run(server.__class__(**_settings(server)), latency=latency).finish()
    assert run.share >= 0.88
    assert run.refused < 64 + 0.2 * run.answered, "64 are sent before anything is known"


@pytest.mark.parametrize("factor", [0.1, 0.5, 2.0])
def test_a_rate_that_changes_is_learned_anew(factor: float) -> None:
    run, bucket = Run(Bucket(10, 8), answers=1600), Bucket(10 * factor, 8)
    run._after(80.0, lambda: setattr(run, "server", bucket))
    run.finish()
    assert run.now - run.began < 1.15 * (80 + 800 / bucket.rate)
    assert run.refused < 0.5 * run.answered


@pytest.mark.parametrize("seed", range(6))
def test_a_long_wait_is_not_paid_again_and_again_for_the_same_lesson(seed: int) -> None:
    assert Run(Bucket(2, 1, 5.0), seed=seed).finish().refused < 80


def _settings(server: Server) -> dict[str, float | None]:
    names = {"count", "seconds", "rate", "burst", "retry_after"}
    return {name: value for name, value in vars(server).items() if name in names}


@pytest.mark.parametrize(("share", "seconds"), [(0.05, 12), (0.1, 15), (0.3, 20), (0.5, 40)])
def test_refusals_at_random_cost_little_more_than_their_retries(share: float, seconds: float) -> None:
    """Slowing down makes them no rarer. Without them the run takes 5 seconds, and the long one 50."""
    run = Run(AtRandom(share), answers=805).finish()
    assert run.now - run.began < seconds
    long = Run(AtRandom(share), answers=8050).finish()
    assert long.now - long.began < seconds + 50 / (1 - share)


def test_refusals_at_random_that_ask_to_wait_cost_their_waits_and_not_the_pace_as_well() -> None:
    run = Run(AtRandom(0.3, 1.0), answers=805).finish()
    assert run.now - run.began < 3 * run.refused


@pytest.mark.parametrize("server", [AtOnce(8, 1.0), PerWindow(2, 1.0, 5.0)], ids=str)
def test_a_refusal_gets_rarer_the_longer_a_run_takes(server: Server) -> None:
    short, long = (Run(server.__class__(**_settings(server)), answers=n).finish().refused for n in (805, 3220))  # type: ignore[arg-type]
    assert long - short <= 8


def test_a_server_that_takes_more_later_is_asked_more_again() -> None:
    run = Run(AtOnce(2), answers=3000)
    run._after(30.0, lambda: setattr(run.server, "count", 64))
    run.finish()
    assert run.now - run.began < 30 + 3000 * 0.4 / 64 + 40


def test_headers_keep_a_run_from_being_refused_at_all() -> None:
    bucket = Bucket(500 / 60, 500)

    def told(now: float) -> tuple[float, float]:
        level = min(bucket.burst, bucket.level + (now - bucket.at) * bucket.rate)
        return (level, (bucket.burst - level) / bucket.rate) if level < 100 else (float("inf"), 0.0)

    run = Run(bucket, answers=2000, latency=(1.0, 3.0), headers=told).finish()
    assert run.refused == 0
    assert run.share >= 0.9


# ------------------------------------------------------------------------------------------------------- room and holds


def test_room_is_what_is_not_in_flight() -> None:
    one, _ = limiter(3)
    one.sent()
    one.sent()
    assert one.free_slots() == 1
    one.sent()
    assert one.free_slots() == 0
    one.ended()
    assert one.free_slots() == 1


def test_a_wave_of_refusals_leaves_the_number_that_was_taken_and_holds_until_the_wait_is_over() -> None:
    one, clock = limiter(16)
    sent = send_all(one)
    for _ in sent[10:]:
        one.refused(2.0)
    assert (one.free_slots(), one.seconds_until_open()) == (0, 2.0)
    clock.now += 0.5
    one.refused(1.5)
    assert one.seconds_until_open() == 1.5, "the same wave"
    for attempt in sent[:9]:
        one.answered(attempt)
    clock.now += 1.5
    taken = 0
    while one.in_flight < one.limit:
        clock.now += max(0.0, one.seconds_until_open())
        taken += len(send_all(one))
    assert (taken, one.free_slots()) == (9, 0)


def test_after_a_long_wait_a_judge_is_asked_at_a_pace_between_what_was_taken_and_what_was_refused() -> None:
    one, clock = limiter(16)
    sent = send_all(one)
    for _ in sent[10:]:
        one.refused(30.0)
    clock.now += one.seconds_until_open()
    one.free_slots()
    assert 11 / 30.1 < one.pace < 10 / 0.1
    assert one.limit == 16, "one explanation at a time"


def test_a_wait_holds_everything_as_long_as_it_asks_within_reason() -> None:
    one, clock = limiter()
    one.sent()
    one.refused(1e9)
    assert one.seconds_held() == PATIENCE
    clock.now += PATIENCE
    other, _ = limiter()
    other.sent()
    other.refused(-3.0)
    assert other.seconds_held() <= 0.02


def test_without_a_wait_each_refusal_in_a_row_holds_for_longer() -> None:
    one, clock = limiter()
    waits = []
    while one.refused_seconds < PATIENCE:
        clock.now += max(0.0, one.seconds_until_open())
        assert one.free_slots() >= 1
        one.sent()
        one.refused()
        waits.append(one.seconds_held())
    assert len(waits) < 60, "a vendor counts refused requests too"
    assert waits[0] == pytest.approx(PAUSE)
    assert waits == pytest.approx(sorted(waits))
    assert waits[-1] == pytest.approx(LONGEST_PAUSE)
    one.answered(one.sent())
    assert one.refused_seconds == 0.0


@pytest.mark.parametrize("named", [0.0, -5.0, 0.02, 1.0])
def test_nor_is_a_judge_hammered_that_names_waits_which_do_not_help(named: float) -> None:
    one, clock = limiter()
    refusals = 0
    while one.refused_seconds < PATIENCE:
        clock.now += max(0.01, one.seconds_until_open())
        assert one.free_slots()
        one.sent()
        one.refused(named)
        refusals += 1
        assert one.seconds_held() > named - 1e-6
    assert refusals < 80


def test_the_first_request_goes_alone_until_it_is_answered_or_takes_long() -> None:
    clock = Clock()
    one = Limiter(16, clock)
    assert one.free_slots() == 1
    first = one.sent()
    assert (one.free_slots(), one.seconds_until_open()) == (0, ALONE)
    one.ended()
    assert (one.free_slots(), one.seconds_until_open()) == (1, 0.0), "after a failure the next one is the first"
    first = one.sent()
    clock.now += ALONE
    assert (one.free_slots(), one.seconds_until_open()) == (15, 0.0)
    one.answered(first)
    assert one.free_slots() == 16
    other = Limiter(16, clock)
    other.answered(other.sent())
    assert other.free_slots() == 16, "at once"


def test_the_limit_never_falls_below_one() -> None:
    one, clock = limiter(2)
    for _ in range(5):
        for _ in send_all(one):
            one.refused(0.0)
        clock.now += PATIENCE
    assert one.limit >= one.free_slots() == 1
    assert one.pace > 0


def test_no_more_is_sent_than_headers_allow_until_their_reset() -> None:
    one, clock = limiter()
    one.allowed(10, 20.0)
    assert len(send_all(one)) == 10
    assert (one.free_slots(), one.seconds_held()) == (0, 20.0)
    clock.now += 20.0
    assert one.free_slots() == 6, "of 16, 10 are in flight"
    one.allowed(10.5, 30.0)
    assert one.seconds_held() == 30.0, "nothing remains"
    one.allowed(float("inf"), 0.0)
    assert one.free_slots() == 6, "the newest headers count"


def test_what_headers_hold_is_said_and_too_long_a_hold_is_no_wait() -> None:
    one, clock = limiter()
    one.allowed(0, 120.0, "x-ratelimit-reset-requests: 2m")
    assert one.state.startswith("allows no more requests until ")
    assert one.state.endswith(" (x-ratelimit-reset-requests: 2m): waiting")
    assert not one.exhausted
    clock.now += 120.0
    assert one.free_slots() == 16
    one.allowed(0, 24 * 3600.0, "x-ratelimit-reset-requests: 24h")
    assert "24h" in one.exhausted
    one.allowed(10, 24 * 3600.0)
    assert not one.exhausted
    assert one.free_slots() == 10, "what is left is used"


# --------------------------------------------------------------------------------------------------- what people see


def test_what_is_waited_for_is_said() -> None:
    one, clock = limiter(16)
    assert one.state == ""
    sent = send_all(one)
    for _ in sent[8:]:
        one.refused(2.0)
    assert one.state == "asks to slow down: waiting 2 s"
    clock.now += 3.0
    one.free_slots()
    assert one.state == "asks to slow down: at most 8 at once"


def test_what_a_judge_takes_to_be_loaded_is_no_time_of_its_answers() -> None:
    paces = []
    for loading in (0.0, 20.0):
        clock = Clock()
        one = Limiter(16, clock)
        first = one.sent()
        clock.now += loading + 0.2
        one.answered(first, 0.2)
        for _ in send_all(one)[1:]:
            one.refused(5.0)
        clock.now += 5.0
        one.free_slots()
        paces.append(one.pace)
    assert paces[0] == pytest.approx(paces[1])


def test_what_was_sent_while_the_first_was_held_up_is_judged_by_the_first_ones_own_time() -> None:
    clock = Clock()
    one = Limiter(16, clock)
    first = one.sent()
    clock.now += ALONE
    others = send_all(one)
    clock.now += 20.0
    for _ in others[1:]:
        one.refused(5.0)
    clock.now += 0.2
    one.answered(first, 0.2)
    one.answered(others[0], 0.2)
    clock.now += 5.0
    one.free_slots()
    assert 0.4 < one.pace < 10
