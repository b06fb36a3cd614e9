"""The hard cap over a bad line: what a vendor answered and what it may have charged for stay within the budget."""

from __future__ import annotations

import asyncio
import importlib
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from forked import forked
from waiting import wait_until
from wire_judges import MODELS, PRICE, WORTH, chat, make
from wire_server import Body, Drop, Fault, Hang, Received, Status, Told, WireServer, is_question

from afarm.core.errors import BudgetError, JudgeError
from afarm.core.judge import ChatRequest
from afarm.judging.accounting import open_items
from afarm.judging.client import JudgeClient
from afarm.judging.ledger import Ledger
from afarm_plugins.judges import vendor
from afarm_plugins.judges.vendor import VendorJudge

LOST: list[Fault] = [
    Drop(),
    Drop(sent=40),
    Drop(sent=150),
    Hang(),
    Body(b'{"choices": [{"message": {"content": "Outp'),
    Body(b""),
    Body({}),
    Told({"x-policy": "default-src " * 20_000}),  # a head that no transport takes
]
"""After each of these an answer may have been made, and charged for."""

REFUSED: list[Fault] = [Status(429), Status(500), Status(529)]
TRIES = 3
QUESTIONS = [chat(f"Question {i:03}?") for i in range(80)]


def bad_line(seed: int, share: float = 0.6) -> list[Fault]:
    """Faults for thousands of requests, in no order: this share of them."""
    draw = random.Random(seed)
    return [draw.choice([*LOST, *REFUSED]) if draw.random() < share else None for _ in range(3000)]


@pytest.fixture(autouse=True)
def _hangs_end_at_once(server: WireServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """An attempt times out as soon as `server` has read what it will not answer, so that no clock decides.

    On a busy machine a second can pass before a request is sent: it is then counted, and no server has seen it.
    """
    body: ContextVar[bytes] = ContextVar("body")
    ends: dict[bytes, Callable[[], object]] = {}
    attempt = VendorJudge._attempt

    async def known(self: VendorJudge, send: Any, request: Any, **options: Any) -> Any:
        body.set(request.content if request.url.path.endswith(("/completions", "/messages")) else b"")
        return await attempt(self, send, request, **options)

    @asynccontextmanager
    async def timeout(seconds: float | None) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(seconds) as running:
            ends[body.get()] = lambda: loop.call_soon_threadsafe(running.reschedule, loop.time())
            yield

    monkeypatch.setattr(VendorJudge, "_attempt", known)
    monkeypatch.setattr(vendor, "asyncio", SimpleNamespace(timeout=timeout))
    server.hung = lambda received: ends[received.raw]()


@pytest.fixture(params=list(MODELS))
def judge(request: pytest.FixtureRequest, server: WireServer) -> VendorJudge:
    return make(request.param, server, timeout=60)


@pytest.fixture(params=["aiohttp", "httpx"])
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The HTTP library that the SDKs send through: httpx where aiohttp is not installed."""

    def missing(**settings: object) -> None:
        raise RuntimeError("aiohttp is not installed")

    if request.param == "httpx":
        for sdk in ("openai", "anthropic"):
            monkeypatch.setattr(importlib.import_module(sdk), "DefaultAioHttpClient", missing)
    return str(request.param)


def worst(judge: VendorJudge) -> float:
    price = judge.worst_case_price(QUESTIONS[0])
    assert price is not None
    return price


def ask_until_the_budget_is_reached(judge: VendorJudge, ledger: Ledger, budget: float) -> None:
    """As often as it takes: with so many faults some questions fail for good, and their run stops."""
    for _ in range(100):
        ask = JudgeClient({"*": judge}, ledger, run="run", budget=budget, max_concurrency=8)
        try:
            ask(QUESTIONS)
        except BudgetError:
            return
        except JudgeError:
            pass
        finally:
            ask.close()
    raise AssertionError("the budget was to be reached")


def answered(ledger: Ledger) -> int:
    return int(ledger.read("SELECT COUNT(*) FROM completions")[0][0])


# ------------------------------------------------------------------------------------------------------ one by one


@pytest.mark.parametrize("seed", [1, 2])
def test_answers_and_all_that_may_have_been_charged_for_stay_within_the_budget(
    server: WireServer, judge: VendorJudge, tmp_path: Path, seed: int
) -> None:
    server.script(*bad_line(seed))
    most = worst(judge)
    budget = 15.5 * most
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        ask_until_the_budget_is_reached(judge, ledger, budget)
        lost = server.charged - answered(ledger)
        assert lost > 3
        assert answered(ledger) > 3
        assert answered(ledger) * WORTH + lost * most <= budget
        # Not a dollar more is held back than that.
        assert ledger.committed("run") == pytest.approx(answered(ledger) * WORTH + lost * most)
        assert open_items(ledger)["in_flight"] == {"requests": lost, "reserved": pytest.approx(lost * most)}


@pytest.mark.parametrize("fault", LOST, ids=str)
def test_every_attempt_that_may_have_been_charged_for_is_counted(
    server: WireServer, judge: VendorJudge, transport: str, tmp_path: Path, fault: Fault
) -> None:
    server.script(*[fault] * TRIES)
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        ask = JudgeClient({"*": judge}, ledger, run="run")
        with pytest.raises(JudgeError, match="3 times"):
            ask(QUESTIONS[:1])
        wait_until(lambda: len(server.asked) == TRIES)  # a busy server reads what was sent after the client has left
        assert ledger.committed("run") == pytest.approx(TRIES * worst(judge))
        server.script(fault)
        ask(QUESTIONS[:1])
        ask.close()
        assert ledger.committed("run") == pytest.approx((TRIES + 1) * worst(judge) + WORTH)


@pytest.mark.parametrize("fault", [Status(500), Status(400), Status(401), Status(404)], ids=str)
def test_what_was_refused_is_not_counted(server: WireServer, judge: VendorJudge, tmp_path: Path, fault: Fault) -> None:
    server.script(*[fault] * TRIES)
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        ask = JudgeClient({"*": judge}, ledger, run="run", budget=1.0)
        with pytest.raises(JudgeError):
            ask(QUESTIONS[:1])
        ask.close()
        assert ledger.committed("run") == 0.0


def test_what_reached_no_server_is_not_counted(transport: str, tmp_path: Path) -> None:
    with WireServer() as gone:
        judges = [make(name, gone) for name in MODELS]
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        for judge in judges:
            ask = JudgeClient({"*": judge}, ledger, run="run", budget=1.0)
            with pytest.raises(JudgeError, match="could not be reached"):
                ask(QUESTIONS[:1])
            ask.close()
        assert ledger.committed("run") == 0.0


def test_an_attempt_that_the_budget_does_not_allow_is_not_made(
    server: WireServer, judge: VendorJudge, tmp_path: Path
) -> None:
    server.script(Drop())
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        ask = JudgeClient({"*": judge}, ledger, run="run", budget=1.5 * worst(judge))
        with pytest.raises(BudgetError, match="larger --budget"):
            ask(QUESTIONS[:1])
        ask.close()
        assert len(server.asked) == 1
        assert ledger.committed("run") == pytest.approx(worst(judge))


# ---------------------------------------------------------------------------------------------- two processes at once


def spend(name: str, url: str, place: str, budget: float) -> None:
    server: Any = SimpleNamespace(url=url, openai_url=f"{url}/v1")
    judge = make(name, server, timeout=2)
    with Ledger(Path(place)) as ledger:
        ask_until_the_budget_is_reached(judge, ledger, budget)


@pytest.mark.parametrize("name", ["openai", "anthropic"])
def test_two_processes_keep_one_budget_over_a_bad_line(name: str, tmp_path: Path) -> None:
    place = tmp_path / "ledger.sqlite"
    with forked(spend, 2) as processes, WireServer(latency=0.005) as server, Ledger(place) as ledger:
        server.script(*bad_line(3))
        most = worst(make(name, server))
        budget = 40.5 * most
        for process in processes:
            process.begin(name, server.url, str(place), budget)
        for process in processes:
            process.result()
        lost = server.charged - answered(ledger)
        assert lost > 3
        assert answered(ledger) * WORTH + lost * most <= budget
        assert ledger.committed("run") == pytest.approx(answered(ledger) * WORTH + lost * most)


# ------------------------------------------------------------------------------------------------- batch endpoints


def batched_most(judge: VendorJudge) -> float:
    return worst(judge) * PRICE.batch


def by_batch(judge: VendorJudge, ledger: Ledger, budget: float, requests: list[ChatRequest]) -> None:
    ask = JudgeClient(
        {"*": judge}, ledger, run="run", budget=budget, batch_api=True, batch_poll_seconds=0.01, max_concurrency=8
    )
    try:
        ask(requests)
    finally:
        ask.close()


@pytest.mark.parametrize("name", ["openai", "anthropic"])
def test_batches_and_what_is_asked_singly_after_them_keep_one_budget(
    server: WireServer, name: str, tmp_path: Path
) -> None:
    judge = make(name, server, timeout=60)
    server.finish_batches(failing={str(i) for i in range(0, 60, 2)})
    server.script(*bad_line(4))
    budget = 12.0 * worst(judge)
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        for _ in range(100):
            try:
                by_batch(judge, ledger, budget, QUESTIONS)
            except BudgetError:
                break
            except JudgeError:
                pass
        batched = sum(int(i.split("-")[0]) % 2 for batch in server.batches.values() for i, _ in batch["asked"])
        singly = answered(ledger) - batched
        lost = server.charged - singly
        assert batched > 3
        assert lost > 3
        assert batched * WORTH / 2 + singly * WORTH + lost * worst(judge) <= budget


@pytest.mark.parametrize("name", ["openai", "anthropic"])
def test_a_batch_that_may_have_arrived_stays_counted_and_a_refused_one_does_not(
    server: WireServer, name: str, tmp_path: Path
) -> None:
    judge = make(name, server)
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        for fault, counted in ((Status(400), 0), (Drop(), 5)):
            server.batch_faults.append(fault)
            with pytest.raises(JudgeError):
                by_batch(judge, ledger, 1.0, QUESTIONS[:5])
            assert ledger.committed("run") == pytest.approx(counted * batched_most(judge))


def test_a_file_for_a_batch_that_did_not_arrive_costs_nothing(tmp_path: Path) -> None:
    class NoFiles(WireServer):
        def _next_fault(self, received: Received) -> Fault:
            return Drop() if received.path.endswith("/files") else super()._next_fault(received)

    with NoFiles() as server, Ledger(tmp_path / "ledger.sqlite") as ledger:
        with pytest.raises(JudgeError, match="broke the connection off"):
            by_batch(make("openai", server), ledger, 1.0, QUESTIONS[:5])
        assert ledger.committed("run") == 0.0
        assert not any(is_question(received) for received in server.received)
