"""The metered way to a judge: in order, never twice, within bounds, and nothing lost on the way out."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from places import SUPPORT
from scripted_judges import ScriptedJudge, question, questions

from afarm.core.errors import BudgetError, JudgeError
from afarm.core.interfaces import BuildContext
from afarm.core.judge import Capabilities, ChatRequest, Completion, Judgement, JudgementKey
from afarm.judging.accounting import open_items
from afarm.judging.client import BLOCK, JudgeClient
from afarm.judging.ledger import Ledger, request_key
from afarm.judging.rate_limit import Limiter, SlowDown, answer_lost
from afarm.judging.refusals import USELESS


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger(tmp_path / "ledger.sqlite") as opened:
        yield opened


def stored(ledger: Ledger, requests: list[ChatRequest], judge: str = "scripted") -> int:
    return len(ledger.completions([request_key(r, judge) for r in requests]))


# ---------------------------------------------------------------------------------------------- answers and reuse


def test_answers_come_in_the_order_of_the_requests_whatever_order_they_arrive_in(ledger: Ledger) -> None:
    class Backwards(ScriptedJudge):
        async def complete(self, request: ChatRequest) -> Completion:
            number = int(request.prompt[1:])
            while 0 < number < 9 and f"q{number + 1}" not in self.asked:
                await asyncio.sleep(0.001)
            return await super().complete(request)

    judge = Backwards()
    answers = JudgeClient({"*": judge}, ledger, max_concurrency=10)(questions(10))
    assert [a.text for a in answers] == [f"echo q{i}" for i in range(10)]
    assert judge.asked == ["q0", *(f"q{i}" for i in range(9, 0, -1))], "the first alone, the others backwards"
    assert [a.key for a in answers] == [request_key(q, "scripted") for q in questions(10)]


def test_equal_requests_are_bought_once_within_a_call_and_between_calls(ledger: Ledger) -> None:
    judge = ScriptedJudge(price=0.5)
    ask = JudgeClient({"*": judge}, ledger)
    answers = ask([*questions(3), *questions(3), question("q1", sample_index=1)])
    assert sorted(judge.asked) == ["q0", "q1", "q1", "q2"], "another draw is another question"
    assert answers[:3] == answers[3:6]
    assert ask(questions(3)) == answers[:3]
    assert (ask.spend.calls, ask.spend.answers_reused, ask.spend.dollars) == (4, 3, 2.0)
    other = JudgeClient({"*": ScriptedJudge("another model")}, ledger)
    other(questions(3))
    assert other.spend.calls == 3


def test_a_role_is_answered_by_its_judge_and_every_other_role_by_the_star(ledger: Ledger) -> None:
    strong, rest = ScriptedJudge("a"), ScriptedJudge("b")
    ask = JudgeClient({"strong": strong, "*": rest}, ledger)
    ask([question("x", "strong"), question("y", "light")])
    assert (strong.asked, rest.asked) == (["x"], ["y"])
    assert (ask.judge("strong"), ask.judge("light")) == ("a", "b")
    with pytest.raises(JudgeError, match=r"'ligth'.*'light'.*--judge ligth="):
        JudgeClient({"light": rest}, ledger).judge("ligth")


def test_judgements_learned_are_recalled_and_counted(ledger: Ledger) -> None:
    ask, key = JudgeClient({"*": ScriptedJudge()}, ledger), JudgementKey("a", "pair", "ab", 1)
    ask.learn({key: Judgement(1.0)})
    assert ask.recall([key, replace(key, sample_index=1)]) == {key: Judgement(1.0)}
    assert ask.spend.judgements_reused == 1


@pytest.mark.parametrize("limit", [1, 3, 64])
def test_at_most_so_many_requests_are_in_flight_and_that_many_are(ledger: Ledger, limit: int) -> None:
    judge = ScriptedJudge(seconds=0.01)
    JudgeClient({"*": judge}, ledger, max_concurrency=limit)(questions(13))
    assert judge.most == min(limit, 12), "all but the first, which goes alone"


def test_a_slow_answer_holds_up_no_other(ledger: Ledger) -> None:
    class Slow(ScriptedJudge):
        async def complete(self, request: ChatRequest) -> Completion:
            if request.prompt == "q0":
                async with asyncio.timeout(120):
                    while len(self.asked) < 19:
                        await asyncio.sleep(0.001)
            return await super().complete(request)

    assert len(JudgeClient({"*": Slow()}, ledger, max_concurrency=2)(questions(20))) == 20


def test_tens_of_thousands_of_requests_go_through_one_call(ledger: Ledger) -> None:
    judge = ScriptedJudge()
    ask = JudgeClient({"*": judge}, ledger)
    many = questions(20_000)
    assert [a.text for a in ask(many)][::1999] == [f"echo q{i}" for i in range(0, 20_000, 1999)]
    assert len(set(judge.asked)) == len(judge.asked) == 20_000
    assert stored(ledger, many) == 20_000


def test_it_works_inside_a_running_event_loop(ledger: Ledger) -> None:
    ask = JudgeClient({"*": ScriptedJudge(seconds=0.01)}, ledger)

    async def as_in_a_notebook() -> list[Completion]:
        return ask(questions(3))

    assert [a.text for a in asyncio.run(as_in_a_notebook())] == ["echo q0", "echo q1", "echo q2"]


def test_it_can_be_closed_twice_and_used_again(ledger: Ledger) -> None:
    class Closing(ScriptedJudge):
        closed = 0

        async def close(self) -> None:
            self.closed += 1

    judge = Closing()
    ask = JudgeClient({"strong": judge, "*": judge}, ledger)
    ask.close()
    ask(questions(1))
    ask.close()
    ask.close()
    assert judge.closed == 1, "one judge under two roles is closed once"
    assert ask(questions(2))[1].text == "echo q1"


# -------------------------------------------------------------------------------------------------------- streams


def test_a_stream_takes_requests_as_there_is_room_and_keeps_all_in_flight(ledger: Ledger) -> None:
    taken = 0

    def many() -> Iterator[ChatRequest]:
        nonlocal taken
        for number in range(3000):
            taken += 1
            yield question(f"q{number}")

    judge = ScriptedJudge(seconds=0.001)
    ask = JudgeClient({"*": judge}, ledger, max_concurrency=8)
    found: dict[int, str] = {}
    ahead = 0
    for index, completion in ask.stream(many()):
        found[index] = completion.text
        ahead = max(ahead, taken - len(found))
    assert found == {i: f"echo q{i}" for i in range(3000)}
    assert judge.most == 8
    assert ahead <= 3 * BLOCK, "a hundred thousand requests must not be held in memory"


def test_who_stops_listening_to_a_stream_pays_for_what_is_in_flight_only(ledger: Ledger) -> None:
    judge = ScriptedJudge(price=0.01, worst=0.01)
    ask = JudgeClient({"*": judge}, ledger, run="run", max_concurrency=4)
    stream = ask.stream(iter(questions(200)))
    judge.fail = lambda prompt: setattr(judge, "seconds", 0.5)  # all but the first, so that few come before the end
    next(stream)
    stream.close()
    judge.seconds = 0
    sent = len(judge.asked)
    assert sent <= 16
    assert stored(ledger, questions(200)) == sent
    assert ledger.committed("run") == pytest.approx(0.01 * sent)
    assert len(ask(questions(20))) == 20, "it can be asked again"


def test_equal_requests_in_a_stream_are_bought_once_and_all_answered(ledger: Ledger) -> None:
    judge = ScriptedJudge(seconds=0.001)
    ask = JudgeClient({"*": judge}, ledger, max_concurrency=4)
    found = dict(ask.stream(question(f"q{i % 7}") for i in range(1000)))
    assert {i: c.text for i, c in found.items()} == {i: f"echo q{i % 7}" for i in range(1000)}
    assert len(judge.asked) == 7


def test_two_threads_share_the_limit_of_their_judge(ledger: Ledger) -> None:
    judge = ScriptedJudge(seconds=0.01)
    ask = JudgeClient({"*": judge}, ledger, max_concurrency=4)
    with ThreadPoolExecutor(2) as pool:
        parts = list(pool.map(ask, [questions(40)[:20], questions(40)[20:]]))
    assert [c.text for part in parts for c in part] == [f"echo q{i}" for i in range(40)]
    assert judge.most == 4


def test_threads_that_ask_first_at_the_same_time_share_one_loop(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = asyncio.new_event_loop

    def slowly() -> asyncio.AbstractEventLoop:
        time.sleep(0.05)
        loops.append(make())
        return loops[-1]

    loops: list[asyncio.AbstractEventLoop] = []
    monkeypatch.setattr(asyncio, "new_event_loop", slowly)
    ask = JudgeClient({"*": ScriptedJudge()}, ledger)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: ask._running_loop(), range(4)))
    ask.close()
    assert len(loops) == 1


def test_two_processes_share_the_answers_of_a_free_server(ledger: Ledger) -> None:
    # Each ledger object is an owner of its own, as each process is.
    with Ledger(ledger.place) as other:
        judges = [ScriptedJudge(seconds=0.05), ScriptedJudge(seconds=0.05)]
        asks = [
            JudgeClient({"*": judge}, book, max_concurrency=40)
            for judge, book in zip(judges, (ledger, other), strict=True)
        ]
        with ThreadPoolExecutor(2) as pool:
            parts = list(pool.map(lambda ask: ask(questions(40)), asks))
        for ask in asks:
            ask.close()
    assert [[c.text for c in part] for part in parts] == [[f"echo q{i}" for i in range(40)]] * 2
    assert sum(len(judge.asked) for judge in judges) == 40
    assert [ask.spend.calls + ask.spend.answers_reused for ask in asks] == [40, 40]


# ---------------------------------------------------------------------------------------------------- slowing down


class Refusing(ScriptedJudge):
    """Refuses what exceeds `most_at_once`, and then what comes within `wait` seconds; counts what it refused."""

    def __init__(self, most_at_once: int, *, wait: float = 0.0, names_wait: bool = True, **settings: Any):
        super().__init__(**settings)
        self.most_at_once, self.wait, self.names_wait = most_at_once, wait, names_wait
        self.refused: list[str] = []
        self.too_early = 0
        self._open_at = 0.0

    async def complete(self, request: ChatRequest) -> Completion:
        if time.monotonic() < self._open_at:
            self.too_early += 1
        elif self.in_flight < self.most_at_once:
            return await super().complete(request)
        else:
            await asyncio.sleep(0)
            self._open_at = time.monotonic() + self.wait
        self.refused.append(request.prompt)
        raise SlowDown("asks to slow down", self.wait if self.names_wait else None)


@pytest.mark.parametrize("names_wait", [True, False])
def test_what_a_judge_refuses_is_asked_again_until_it_is_answered_and_paid_once(
    ledger: Ledger, names_wait: bool
) -> None:
    judge = Refusing(4, wait=0.05 * names_wait, names_wait=names_wait, seconds=0.01, price=0.1, worst=0.2)
    ask = JudgeClient({"*": judge}, ledger, run="run", budget=20.0, max_concurrency=64)
    assert [a.text for a in ask(questions(100))] == [f"echo q{i}" for i in range(100)]
    assert len(judge.refused) >= 56, "all but four of the first volley"
    assert sorted(judge.asked) == sorted(f"q{i}" for i in range(100)), "each was answered once"
    assert ledger.committed("run") == pytest.approx(10.0), "a refusal costs nothing, and holds nothing back"
    assert open_items(ledger)["in_flight"] == {"requests": 0, "reserved": 0}
    assert ask.spend.calls == 100


def test_a_wait_that_is_asked_for_holds_every_request_to_that_judge_and_none_to_another(ledger: Ledger) -> None:
    busy, free = Refusing(2, wait=0.3, seconds=0.01), ScriptedJudge("free", seconds=0.01)
    ask = JudgeClient({"busy": busy, "*": free}, ledger, max_concurrency=16)
    answers = ask([question(f"q{i}", "busy" if i % 2 else "free") for i in range(40)])
    assert len(answers) == 40
    in_flight_at_first = 15
    assert busy.too_early <= in_flight_at_first, "only what was sent before the first refusal came back"


def test_a_budget_holds_while_requests_are_refused(ledger: Ledger) -> None:
    judge = Refusing(3, wait=0.02, seconds=0.005, price=0.1, worst=0.2)
    with pytest.raises(BudgetError):
        JudgeClient({"*": judge}, ledger, run="run", budget=2.0, max_concurrency=16)(questions(50))
    assert len(judge.asked) <= 20
    assert ledger.committed("run") == pytest.approx(0.1 * len(judge.asked))


@pytest.mark.parametrize(
    ("wait", "says"),
    [
        (7200.0, "asks to slow down"),
        (0.0, r"answered nothing for 15 minutes and refused \d+ requests, up to \d+ times"),
    ],
)
def test_a_judge_that_refuses_for_very_long_ends_the_run(
    ledger: Ledger, wait: float, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = Refusing(0, wait=wait, price=0.1, worst=0.2)
    limiter = Limiter(16)
    monkeypatch.setattr(Limiter, "refused_seconds", property(lambda self: 901.0 if self.refusals > 3 else 10.0))
    ask = JudgeClient({"*": judge}, ledger, run="run", budget=1.0, limiters={judge: limiter})
    with pytest.raises(JudgeError, match=says):
        ask(questions(20))
    assert judge.asked == []
    assert ledger.committed("run") == 0.0


class Choosy(ScriptedJudge):
    """Always refuses some prompts for now, and all of them once it has answered `closes_after`."""

    closes_after = 1000
    tries = 0
    refused: tuple[str, ...] = ("q0", "q3")
    wait: float | None = None

    async def complete(self, request: ChatRequest) -> Completion:
        if len(self.asked) >= self.closes_after or request.prompt in self.refused:
            await asyncio.sleep(0.001)
            self.tries += 1
            raise SlowDown("Request too large", self.wait)
        return await super().complete(request)


def test_a_request_that_is_always_refused_costs_itself_and_no_other(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("afarm.judging.dispatch.GIVE_UP_SECONDS", 0.5)
    judge = Choosy(price=0.1, worst=0.2)
    ask = JudgeClient({"*": judge}, ledger, run="run", budget=20.0, max_concurrency=8)
    answers = ask(questions(40))
    assert [i for i, answer in enumerate(answers) if answer.finish_reason == "request_refused"] == [0, 3]
    assert len(judge.asked) == 38
    assert ledger.committed("run") == pytest.approx(3.8)
    assert "Request too large; it has answered others" in caplog.text
    tries = judge.tries
    assert JudgeClient({"*": judge}, ledger, run="run")(questions(40)) == answers
    assert judge.tries == tries, "nor is it asked again"


ODD = ["q1", "q2", "q3", "q5", "q8", "q70", "q98"]


@pytest.mark.parametrize("wait", [7200.0, None])
@pytest.mark.parametrize(
    ("count", "limit", "refused"),
    [
        (40, 4, ["q0", "q3", "q17"]),
        (99, 64, ODD),
        (12, 64, ["q11"]),
        (2, 1, ["q0"]),
    ],
)
def test_a_request_that_is_refused_for_very_long_costs_itself_and_no_other(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, count: int, limit: int, refused: list[str], wait: float | None
) -> None:
    """Also the last one, and where all are in flight at once."""
    monkeypatch.setattr("afarm.judging.dispatch.GIVE_UP_SECONDS", 0.5)
    judge = Choosy(seconds=0.1, price=0.1, worst=0.2)
    judge.refused, judge.wait = tuple(refused), wait
    answers = JudgeClient({"*": judge}, ledger, run="run", max_concurrency=limit)(questions(count))
    assert [f"q{i}" for i, answer in enumerate(answers) if answer.finish_reason == "request_refused"] == refused
    assert len(judge.asked) == count - len(refused)


@pytest.mark.parametrize(("closes_after", "limit"), [(20, 4), (0, 64), (20, 1)])
def test_a_judge_whose_quota_is_used_up_ends_the_run_at_once_and_nothing_is_given_up(
    ledger: Ledger, closes_after: int, limit: int
) -> None:
    judge = Choosy(seconds=0.01)
    judge.refused, judge.wait, judge.closes_after = (), 7200.0, closes_after
    with pytest.raises(JudgeError, match="Request too large"):
        JudgeClient({"*": judge}, ledger, run="run", max_concurrency=limit)(questions(40))
    assert judge.tries < 5 + limit
    judge.closes_after = 1000
    assert sum(bool(answer.text) for answer in JudgeClient({"*": judge}, ledger)(questions(40))) == 40


def test_a_limit_that_opens_between_two_looks_at_it_is_seen(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    class OpensLate(Limiter):
        looks = 0

        def free_slots(self) -> int:
            self.looks += 1
            return super().free_slots() if self.looks > 1 else 0

    monkeypatch.setattr("afarm.judging.dispatch.HEARTBEAT_SECONDS", 0.05)
    judge = ScriptedJudge()
    assert len(JudgeClient({"*": judge}, ledger, limiters={judge: OpensLate(4)})(questions(3))) == 3


def test_a_judge_that_closes_is_waited_for_and_nothing_is_given_up(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("afarm.judging.dispatch.GIVE_UP_SECONDS", 0.3)
    monkeypatch.setattr("afarm.judging.dispatch.PATIENCE", 1.0)
    judge = Choosy(price=0.1, worst=0.2)
    judge.closes_after = 20
    with pytest.raises(JudgeError, match=r"answered nothing for .* refused \d+ requests, up to \d+ times each"):
        JudgeClient({"*": judge}, ledger, run="run", max_concurrency=4)(questions(40))
    assert stored(ledger, questions(40)) == len(judge.asked) == 20
    judge.closes_after = 1000
    assert sum(bool(a.text) for a in JudgeClient({"*": judge}, ledger)(questions(40))) == 38


# ------------------------------------------------------------------------------------------- what a judge cannot take


class Plain(ScriptedJudge):
    capabilities = Capabilities(completion=True, temperature=False)

    async def complete(self, request: ChatRequest) -> Completion:
        self.sent = request
        return await super().complete(request)


def test_what_a_judge_cannot_take_is_an_error_that_names_it_or_is_left_out_and_recorded(ledger: Ledger) -> None:
    hot = question("q", temperature=0.7, favoured_tokens=("(a)",), schema={"type": "object"})
    judge = Plain("plain")
    with pytest.raises(JudgeError, match=r"plain takes no temperature or logit_bias, which someone.*--allow-degraded"):
        JudgeClient({"*": judge}, ledger)([hot])
    assert judge.asked == []
    lenient = JudgeClient({"*": judge}, ledger, allow_degraded=True)
    (answer,) = lenient([hot])
    assert answer.degraded == ("temperature", "logit_bias")
    assert (judge.sent.temperature, judge.sent.favoured_tokens, judge.sent.schema) == (1.0, (), {"type": "object"})
    assert lenient([hot]) == [answer], "stored with what was left out"
    (plain,) = lenient([replace(hot, temperature=1.0, favoured_tokens=())])
    assert plain.degraded == ()
    assert len(judge.asked) == 2, "a request that asks for nothing more is another one"


def test_a_degraded_answer_does_not_pass_for_a_full_one_once_the_judge_can(ledger: Ledger) -> None:
    hot = question("q", temperature=0.7)
    JudgeClient({"*": Plain("same")}, ledger, allow_degraded=True)([hot])
    able = ScriptedJudge("same")
    assert JudgeClient({"*": able}, ledger)([hot])[0].degraded == ()
    assert able.asked == ["q"]


# ------------------------------------------------------------------------------------------------------- failures


def test_the_first_failure_stops_sending_but_what_is_in_flight_is_stored(ledger: Ledger) -> None:
    judge = ScriptedJudge(seconds=0.02, fail=lambda prompt: JudgeError("overloaded") if prompt == "q1" else None)
    with pytest.raises(JudgeError, match=r"scripted.*: overloaded"):
        JudgeClient({"*": judge}, ledger, max_concurrency=4)(questions(40))
    assert len(judge.asked) <= 8
    assert stored(ledger, questions(40)) == len(judge.asked) - 1
    mended = ScriptedJudge()
    assert len(JudgeClient({"*": mended}, ledger)(questions(40))) == 40
    assert len(mended.asked) == 40 - (len(judge.asked) - 1)
    assert "q1" in mended.asked, "a failure is never stored as an answer"


def test_an_unforeseen_error_names_the_judge_and_keeps_its_cause(ledger: Ledger) -> None:
    judge = ScriptedJudge(fail=lambda prompt: ZeroDivisionError("oops"))
    with pytest.raises(JudgeError, match="judge 'scripted' failed: ZeroDivisionError: oops") as caught:
        JudgeClient({"*": judge}, ledger)(questions(1))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_failed_request_gives_its_reserved_money_back(ledger: Ledger) -> None:
    judge = ScriptedJudge(worst=0.5, fail=lambda prompt: JudgeError("no", charged=False))
    with pytest.raises(JudgeError):
        JudgeClient({"*": judge}, ledger, run="run", budget=10)(questions(1))
    assert ledger.committed("run") == 0
    assert open_items(ledger)["in_flight"] == {"requests": 0, "reserved": 0}


@pytest.mark.parametrize("error", [JudgeError("timeout"), RuntimeError("broken")])
def test_a_failed_request_that_may_have_been_charged_for_stays_counted(ledger: Ledger, error: Exception) -> None:
    failing = ScriptedJudge(worst=0.5, fail=lambda prompt: error)
    for count in (1, 2):
        with pytest.raises(JudgeError):
            JudgeClient({"*": failing}, ledger, run="run", budget=1.0)(questions(1))
        assert open_items(ledger)["in_flight"] == {"requests": count, "reserved": 0.5 * count}
    with pytest.raises(BudgetError):
        JudgeClient({"*": failing}, ledger, run="run", budget=1.0)(questions(1))
    assert len(failing.asked) == 2
    JudgeClient({"*": ScriptedJudge(price=0.1, worst=0.5)}, ledger, run="run", budget=1.5)(questions(1))
    assert ledger.committed("run") == pytest.approx(1.1), "an answer does not undo what was lost before it"


def test_an_answer_of_unknown_price_counts_as_the_most_it_can_have_cost(ledger: Ledger) -> None:
    judge = ScriptedJudge(price=None, worst=0.5)
    with pytest.raises(BudgetError):
        JudgeClient({"*": judge}, ledger, run="run", budget=1.0)(questions(5))
    assert stored(ledger, questions(5)) == len(judge.asked) == 2
    assert ledger.committed("run") == 1.0


def test_what_nobody_waits_for_any_more_stays_counted(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("afarm.judging.dispatch.PATIENCE_SECONDS", 0.0)
    slow = ScriptedJudge(seconds=60, price=0.1, worst=0.5)
    ask = JudgeClient({"*": slow}, ledger, run="run", budget=5)
    stream = ask.stream(iter([question("quick"), *questions(3)]))
    ask.ledger.resolve([(question("quick"), "scripted", Completion("a", key=ask.key(question("quick"))))], "other")
    next(stream)
    while not slow.asked:
        time.sleep(0.001)
    stream.close()
    assert ledger.committed("run") == pytest.approx(0.5)
    JudgeClient({"*": ScriptedJudge(price=0.1, worst=0.5)}, ledger, run="run")(questions(3))
    assert ledger.committed("run") == pytest.approx(0.5 + 0.3), "the same process asks again"


class Repeating(ScriptedJudge):
    """Sends each request `times` times, of which only the last is answered."""

    def __init__(self, times: int, **settings: Any):
        super().__init__(**settings)
        self.times = times

    async def complete(self, request: ChatRequest) -> Completion:
        for _ in range(self.times - 1):
            await super().complete(request)
            await answer_lost()
        return await super().complete(request)


def test_an_attempt_whose_answer_is_lost_stays_counted_and_the_next_one_needs_money_of_its_own(ledger: Ledger) -> None:
    judge = Repeating(3, price=0.1, worst=0.5, seconds=0.001)
    ask = JudgeClient({"*": judge}, ledger, run="run", budget=3.6, max_concurrency=8)
    with pytest.raises(BudgetError, match=r"\$3.60"):
        ask(questions(20))
    answered = stored(ledger, questions(20))
    lost = len(judge.asked) - answered
    assert lost >= 6, "what waits for money must not be given up while answers release some"
    assert answered * 0.1 + lost * 0.5 <= 3.6
    assert ledger.committed("run") == pytest.approx(answered * 0.1 + lost * 0.5)
    assert open_items(ledger)["in_flight"] == {"requests": lost, "reserved": pytest.approx(0.5 * lost)}


def test_without_a_budget_lost_answers_are_counted_and_hold_nothing_up(ledger: Ledger) -> None:
    judge = Repeating(2, price=0.1, worst=0.5)
    assert len(JudgeClient({"*": judge}, ledger, run="run")(questions(10))) == 10
    assert ledger.committed("run") == pytest.approx(10 * 0.1 + 10 * 0.5)


def test_a_reader_that_fails_leaves_nothing_behind_that_asks_on(ledger: Ledger) -> None:
    judge = ScriptedJudge(seconds=0.005)
    ask = JudgeClient({"*": judge}, ledger, max_concurrency=4)
    stream = ask.stream(questions(200))
    next(stream)
    ask.close()  # while the traceback of a failure keeps the stream
    stream.close()
    assert len(judge.asked) < 200


def test_another_attempt_is_not_made_after_a_failure(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(Repeating):
        async def complete(self, request: ChatRequest) -> Completion:
            if request.prompt == "q0":
                await asyncio.sleep(0.02)
                raise JudgeError("refused", charged=False)
            return await super().complete(request)

    judge = Failing(1000, worst=0.5, seconds=0.001)
    limiter = Limiter(4)
    limiter.answered(limiter.sent())
    monkeypatch.setitem(USELESS, "lost", 10_000)
    with pytest.raises(JudgeError, match="refused"):
        JudgeClient({"*": judge}, ledger, run="run", limiters={judge: limiter})(questions(4))
    assert len(judge.asked) < 1000
    assert ledger.committed("run") == pytest.approx(0.5 * len(judge.asked))


# --------------------------------------------------------------------------------------------------------- budgets


def test_a_budget_is_never_exceeded_and_what_it_bought_is_kept(ledger: Ledger) -> None:
    judge = ScriptedJudge(price=0.1, worst=0.1, seconds=0.001)
    ask = JudgeClient({"*": judge}, ledger, run="run", budget=0.75, max_concurrency=3)
    with pytest.raises(BudgetError, match=r"\$0.75.*--budget"):
        ask(questions(20))
    assert len(judge.asked) == stored(ledger, questions(20)) == 7
    assert ledger.committed("run") == pytest.approx(0.7)
    with pytest.raises(BudgetError):
        JudgeClient({"*": judge}, ledger, run="run", budget=0.75)(questions(20))
    assert len(judge.asked) == 7
    richer = JudgeClient({"*": judge}, ledger, run="run", budget=2.0)
    assert len(richer(questions(20))) == 20
    assert len(judge.asked) == 20


def test_money_reserved_for_the_worst_case_is_spent_on_once_it_is_released(ledger: Ledger) -> None:
    # Each answer could cost 0.5 and costs 0.05: after the answers so far, one more may always be sent up to the tenth.
    class Uneven(ScriptedJudge):
        async def complete(self, request: ChatRequest) -> Completion:
            await asyncio.sleep(0.02 * (int(request.prompt[1:]) % 2))
            return await super().complete(request)

    ask = JudgeClient({"*": Uneven(price=0.05, worst=0.5)}, ledger, run="run", budget=1.0, max_concurrency=8)
    assert len(ask(questions(10))) == 10
    with pytest.raises(BudgetError):
        ask(questions(20))
    assert ledger.committed("run") <= 1.0
    assert ask.spend.dollars == pytest.approx(0.55), "with 0.55 spent, another 0.5 could exceed 1.0"


def test_requests_in_flight_when_another_process_was_killed_count(ledger: Ledger) -> None:
    ledger.claim([("lost", 0.5)], "run")
    judge = ScriptedJudge(price=0.2, worst=0.2)
    with pytest.raises(BudgetError):
        JudgeClient({"*": judge}, ledger, run="run", budget=1.0)(questions(5))
    assert len(judge.asked) == 2


def test_a_budget_needs_prices_and_no_budget_needs_none(ledger: Ledger) -> None:
    judge = ScriptedJudge(price=None, worst=None)
    with pytest.raises(BudgetError, match=r"price of scripted is unknown.*--budget"):
        JudgeClient({"*": judge}, ledger, budget=5)(questions(2))
    assert judge.asked == []
    ask = JudgeClient({"*": judge}, ledger)
    ask(questions(2))
    assert (ask.spend.unpriced_calls, ask.spend.dollars) == (2, 0.0)


def test_a_free_judge_needs_no_budget_to_run_under(ledger: Ledger) -> None:
    ask = JudgeClient({"*": ScriptedJudge(price=0.0, worst=0.0)}, ledger, budget=0.0)
    assert len(ask(questions(100))) == 100


# ------------------------------------------------------------------------------------------------------ interrupts


INTERRUPTED = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from scripted_judges import ScriptedJudge, questions
from afarm.judging.client import BLOCK, JudgeClient
from afarm.judging.ledger import Ledger

judge = ScriptedJudge(seconds=0.5, price=0.01, worst=0.01, log=Path(sys.argv[3]))
try:
    JudgeClient({"*": judge}, Ledger(Path(sys.argv[2])), run="run", max_concurrency=5)(questions(100))
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_interrupt_stores_what_was_already_sent(tmp_path: Path) -> None:
    log, path = tmp_path / "log", tmp_path / "ledger.sqlite"
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(SUPPORT), str(path), str(log)],
        stdout=subprocess.PIPE,
        text=True,
        # What a shell starts in the background ignores interrupts, and so would whatever these tests start.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 300
    while (not log.exists() or len(log.read_text().splitlines()) < 5) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=300)
    assert out == "interrupted\n"
    sent = log.read_text().splitlines()
    assert 5 <= len(sent) < 100
    with Ledger(path) as ledger:
        assert stored(ledger, questions(100)) == len(sent)
        assert ledger.committed("run") == pytest.approx(0.01 * len(sent))


# ------------------------------------------------------------------------------- with the judge that costs nothing


def test_the_offline_judge_answers_more_comparisons_than_one_block_and_is_not_asked_again(ledger: Ledger) -> None:
    from afarm.core.judge import ShownPair
    from afarm.core.records import Instruction
    from afarm.testing import KeyedReward
    from afarm_plugins.judges.offline import OfflineJudge
    from afarm_plugins.judges.settings import OfflineConfig

    context: Any = BuildContext(reward_model=lambda name: KeyedReward(), source="test")
    ask = JudgeClient({"*": OfflineJudge("", OfflineConfig(), context)}, ledger)
    requests = [
        ChatRequest(
            "strong",
            prompt="which?",
            answer_format="single",
            comparisons=(ShownPair(f"pair {i}", Instruction(f"instruction {i}"), "one", "two"),),
        )
        for i in range(3 * BLOCK + 1)
    ]
    texts = [a.text for a in ask(requests)]
    assert set(texts) == {"Output (a)", "Output (b)"}
    again = JudgeClient({"*": OfflineJudge("", OfflineConfig(), context)}, ledger)
    assert [a.text for a in again(requests)] == texts
    assert (again.spend.calls, again.spend.answers_reused) == (0, len(requests))
