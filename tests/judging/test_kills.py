"""A long judging run that is killed again and again, and two on one ledger at once: nothing is lost or bought twice."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from counting_server import CountingServer
from places import SUPPORT

PAIRS = 1_000
IN_FLIGHT = 32
KILLS = 5

LABELS = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
from counting_server import HttpJudge
from afarm.judging.client import JudgeClient
from afarm.core.interfaces import AnnotateContext
from afarm.judging.labelling import annotate_in_chunks
from afarm.judging.ledger import Ledger
from afarm.core.records import Instruction, Pair
from afarm_plugins.annotators.settings import PoolConfig
from afarm_plugins.annotators.pool import PoolAnnotator

port, count, in_flight, behind = map(int, sys.argv[3:7])
clock = time.time
time.time = lambda: clock() - behind
ask = JudgeClient({"*": HttpJudge(port)}, Ledger(sys.argv[2]), run="run", max_concurrency=in_flight)
annotator = PoolAnnotator(PoolConfig())
pairs = (Pair(Instruction(f"What is {i}?"), f"It is {i}.", f"It is not {i}.") for i in range(count))
judged = list(annotate_in_chunks(pairs, annotator, "pool", AnnotateContext(1, ask)))
print(json.dumps([[j.preference.pair_id, j.preference.p2, j.preference.outcome, j.preference.member] for j in judged]))
print(json.dumps([ask.spend.calls, ask.ledger.committed("run")]))
"""


def start(ledger: Path | str, server: CountingServer, count: int, behind: int = 0) -> subprocess.Popen[str]:
    """Start a process that judges `count` pairs, on a machine whose clock is some seconds `behind`."""
    script = [sys.executable, "-c", LABELS, str(SUPPORT), str(ledger)]
    numbers = map(str, (server.port, count, IN_FLIGHT, behind))
    return subprocess.Popen([*script, *numbers], stdout=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> tuple[list[list[object]], list[float]]:
    out, _ = process.communicate(timeout=600)
    assert process.returncode == 0
    labels, spend = (json.loads(line) for line in out.splitlines())
    return labels, spend


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not condition() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.001)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], tuple[list[list[object]], int]]:
    """Labels of so many pairs, and the requests that they take if nothing happens: no database changes them."""

    @cache
    def judged(count: int) -> tuple[list[list[object]], int]:
        with CountingServer().running() as server:
            labels, (needed, _) = finish(start(tmp_path_factory.mktemp("straight") / "ledger.sqlite", server, count))
        assert server.count == needed
        assert len(labels) == count
        assert sum(outcome != "decided" for _, _, outcome, _ in labels) < count / 50
        return labels, server.count

    return judged


def test_a_thousand_pairs_killed_five_times_cost_at_most_what_was_in_flight_and_get_the_same_labels(
    new_ledger: Callable[[], Path | str], undisturbed: Callable[[int], tuple[list[list[object]], int]]
) -> None:
    expected, needed = undisturbed(PAIRS)
    at = sorted(random.Random(KILLS).sample(range(100, needed - 100), KILLS))
    ledger = new_ledger()
    with CountingServer().running() as server:
        for threshold in at:
            process = start(ledger, server, PAIRS)
            wait_until(lambda threshold=threshold: server.count >= threshold, process)  # type: ignore[misc]
            process.send_signal(signal.SIGKILL)
            process.wait()
        labels, (bought, committed) = finish(start(ledger, server, PAIRS))
    assert labels == expected
    assert needed <= server.count <= needed + KILLS * IN_FLIGHT
    twice = [n for n in server.calls.values() if n > 1]
    assert sum(n - 1 for n in twice) == server.count - needed, "only what was asked twice is more than was needed"
    assert bought < needed
    assert committed >= 0.001 * needed - 1e-6


def test_two_machines_with_other_clocks_that_judge_the_same_on_one_ledger_buy_each_answer_once(
    new_ledger: Callable[[], Path | str], undisturbed: Callable[[int], tuple[list[list[object]], int]]
) -> None:
    count = 600
    expected, needed = undisturbed(count)
    ledger = new_ledger()
    with CountingServer(seconds=0.1).running() as server:
        both = [start(ledger, server, count, behind) for behind in (0, 10)]
        found = [finish(process) for process in both]
    assert [labels for labels, _ in found] == [expected, expected]
    assert server.count == needed
    assert sum(bought for _, (bought, _) in found) == needed
    assert {round(committed, 6) for _, (_, committed) in found} >= {round(0.001 * needed, 6)}
