"""Batch endpoints: what is handed in, what comes back and in which order, at half the price, from a later process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence

import pytest
from wire_judges import WORTH, ask, chat, make
from wire_server import Drop, Received, WireServer

from afarm.core.errors import JudgeError
from afarm.core.judge import ChatRequest, Completion
from afarm_plugins.judges.vendor import VendorJudge

VERDICTS = {"type": "array", "items": {"type": "string"}}
REQUESTS = [chat("zero"), chat("one", schema=VERDICTS), chat("two")]


@pytest.fixture(params=["openai", "anthropic"])
def judge(request: pytest.FixtureRequest, server: WireServer) -> VendorJudge:
    return make(request.param, server)


@pytest.fixture
def server() -> Iterator[WireServer]:
    """Answers with the question, in the wrapping where a schema asks for a list."""

    def answer(received: Received) -> str:
        body = received.body
        asked = body["messages"][-1]["content"]
        return json.dumps({"answer": [asked]}) if "json_schema" in json.dumps(body) else str(asked)

    with WireServer(answer) as running:
        yield running


def submit(judge: VendorJudge, requests: Sequence[ChatRequest] = REQUESTS) -> str:
    async def once() -> str:
        try:
            return await judge.submit(requests)
        finally:
            await judge.close()

    return asyncio.run(once())


def collect(judge: VendorJudge, batch_id: str) -> Sequence[Completion | None] | None:
    async def once() -> Sequence[Completion | None] | None:
        try:
            return await judge.collect(batch_id)
        finally:
            await judge.close()

    return asyncio.run(once())


def test_a_batch_is_collected_in_order_at_half_the_price(server: WireServer, judge: VendorJudge) -> None:
    batch_id = submit(judge)
    assert collect(judge, batch_id) is None
    server.finish_batches()
    answers = collect(make(judge.section, server), batch_id)  # as another process would
    assert answers is not None
    assert [a.text for a in answers if a] == ["zero", '["one"]', "two"]
    assert [a.price for a in answers if a] == pytest.approx([WORTH / 2] * 3)
    assert server.asked == []


def test_a_batch_asks_what_single_requests_ask(server: WireServer, judge: VendorJudge) -> None:
    ask(judge, *REQUESTS)
    singly = sorted(json.dumps(body, sort_keys=True) for body in server.bodies)
    submit(judge)
    assert len(server.received) > 3
    batched = [body for _, body in server.batches["batch_0"]["asked"]]
    assert sorted(json.dumps(body, sort_keys=True) for body in batched) == singly


def test_what_failed_in_a_batch_has_no_answer(server: WireServer, judge: VendorJudge) -> None:
    batch_id = submit(judge)
    server.finish_batches(failing={"0", "2"})
    answers = collect(judge, batch_id)
    assert answers is not None
    assert [a and a.text for a in answers] == [None, '["one"]', None]


def test_a_batch_that_is_not_known_is_an_error_that_names_it(judge: VendorJudge) -> None:
    with pytest.raises(JudgeError, match=r"batch_77 is not known to \w+ \(any more\)"):
        collect(judge, "batch_77/3")


def test_a_batch_that_may_have_arrived_is_not_handed_in_twice(server: WireServer, judge: VendorJudge) -> None:
    server.batch_faults.append(Drop())
    with pytest.raises(JudgeError, match="broke the connection off"):
        submit(judge)
    created = [r for r in server.received if r.path.endswith("/batches")]
    assert len(created) == 1


def test_a_batch_that_is_refused_says_why(server: WireServer) -> None:
    judge = make("openai", server)
    batch_id = submit(judge)
    server.batches["batch_0"]["refused"] = "line 2: model gone"
    with pytest.raises(JudgeError, match="was refused: line 2: model gone"):
        collect(judge, batch_id)


def test_an_empty_batch_and_one_of_two_kinds_are_refused(server: WireServer) -> None:
    for name in ("openai", "anthropic"):
        with pytest.raises(JudgeError, match="takes 1 to"):
            submit(make(name, server), [])
    both = make("openai", server, capabilities={"completion": True})
    with pytest.raises(JudgeError, match="all of one kind"):
        submit(both, [chat(), ChatRequest("completion", prompt="Which?")])


def test_only_vendors_with_a_batch_endpoint_declare_one(server: WireServer) -> None:
    declared = {name: make(name, server).capabilities.batch for name in ("openai", "anthropic", "openai-compatible")}
    assert declared == {"openai": True, "anthropic": True, "openai-compatible": False}
