"""A judging run that is killed again and again, and two on one ledger at once: nothing is lost or bought twice."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from counting_server import CountingServer, HttpJudge
from forked import Forked, forked

from afarm.core.interfaces import AnnotateContext
from afarm.core.records import Instruction, Pair
from afarm.judging.client import JudgeClient
from afarm.judging.labelling import annotate_in_chunks
from afarm.judging.ledger import Ledger
from afarm_plugins.annotators.pool import PoolAnnotator
from afarm_plugins.annotators.settings import PoolConfig

PAIRS = 600
IN_FLIGHT = 32
KILLS = 5


def judge(place: str, port: int, count: int, behind: int = 0) -> list[Any]:
    """Judge `count` pairs, on a machine whose clock is some seconds `behind`; returns labels, purchases and dollars."""
    clock = time.time
    time.time = lambda: clock() - behind
    ask = JudgeClient({"*": HttpJudge(port)}, Ledger(place), run="run", max_concurrency=IN_FLIGHT)
    pairs = (Pair(Instruction(f"What is {i}?"), f"It is {i}.", f"It is not {i}.") for i in range(count))
    judged = list(annotate_in_chunks(pairs, PoolAnnotator(PoolConfig()), "pool", AnnotateContext(1, ask)))
    labels = [[j.preference.pair_id, j.preference.p2, j.preference.outcome, j.preference.member] for j in judged]
    return [labels, ask.spend.calls, ask.ledger.committed("run")]


def wait_until(condition: Callable[[], bool], process: Forked) -> None:
    deadline = time.monotonic() + 120
    while not condition() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.001)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[list[object]], int]:
    """The labels, and the requests that they take if nothing happens: no database changes them."""
    place = str(tmp_path_factory.mktemp("straight") / "ledger.sqlite")
    with forked(judge, 1) as [process], CountingServer().running() as server:
        process.begin(place, server.port, PAIRS)
        labels, needed, _ = process.result()
    assert server.count == needed
    assert len(labels) == PAIRS
    assert sum(outcome != "decided" for _, _, outcome, _ in labels) < PAIRS / 50
    return labels, server.count


def test_hundreds_of_pairs_killed_five_times_cost_at_most_what_was_in_flight_and_get_the_same_labels(
    new_ledger: Callable[[], Path | str],
    undisturbed: tuple[list[list[object]], int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("afarm.judging.ledger.LIVE_SECONDS", 0.5)  # here, only the dead are silent
    expected, needed = undisturbed
    at = sorted(random.Random(KILLS).sample(range(100, needed - 100), KILLS))
    ledger = str(new_ledger())
    with forked(judge, KILLS + 1) as [*killed, last], CountingServer().running() as server:
        for process, threshold in zip(killed, at, strict=True):
            process.begin(ledger, server.port, PAIRS)
            wait_until(lambda threshold=threshold: server.count >= threshold, process)  # type: ignore[misc]
            process.kill()
        last.begin(ledger, server.port, PAIRS)
        labels, bought, committed = last.result()
    assert labels == expected
    assert needed <= server.count <= needed + KILLS * IN_FLIGHT
    twice = [n for n in server.calls.values() if n > 1]
    assert sum(n - 1 for n in twice) == server.count - needed, "only what was asked twice is more than was needed"
    assert bought < needed
    assert committed >= 0.001 * needed - 1e-6


def test_two_machines_with_other_clocks_that_judge_the_same_on_one_ledger_buy_each_answer_once(
    new_ledger: Callable[[], Path | str], undisturbed: tuple[list[list[object]], int]
) -> None:
    expected, needed = undisturbed
    ledger = str(new_ledger())
    with forked(judge, 2) as both, CountingServer(seconds=0.1).running() as server:
        for process, behind in zip(both, (0, 10), strict=True):
            process.begin(ledger, server.port, PAIRS, behind)
        found = [process.result() for process in both]
    assert [labels for labels, _, _ in found] == [expected, expected]
    assert server.count == needed
    assert sum(bought for _, bought, _ in found) == needed
    assert {round(committed, 6) for _, _, committed in found} >= {round(0.001 * needed, 6)}
