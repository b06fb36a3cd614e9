"""Answers in odd envelopes: what was paid for is kept, what is odd is dropped and counted, a body has bounds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from wire_judges import ask, chat, make
from wire_server import Body, Flood, WireServer, completion, message

from afarm.core.errors import BudgetError, JudgeError
from afarm.judging.client import JudgeClient
from afarm.judging.ledger import Ledger
from afarm_plugins.judges import vendor

OPENAI: dict[str, Callable[[Any], object]] = {
    **{
        f"usage {usage!r}": lambda b, usage=usage: b.update(usage=usage)  # type: ignore[misc]
        for usage in (
            {"prompt_tokens": -5, "completion_tokens": 5},
            {"prompt_tokens": "12", "completion_tokens": "5"},
            {"prompt_tokens": 12.5, "completion_tokens": 5.5},
            {"prompt_tokens": True, "completion_tokens": True},
            {"prompt_tokens": float("nan"), "completion_tokens": 5},
            {"prompt_tokens": 10**12, "completion_tokens": 5},
            [1, 2],
            "many",
        )
    },
    "token details": lambda b: b["usage"].update(prompt_tokens_details="x"),
    "finish_reason": lambda b: b["choices"][0].update(finish_reason=["stop"]),
    "refusal": lambda b: b["choices"][0]["message"].update(refusal=7),
    "model a number": lambda b: b.update(model=17),
    "model a list": lambda b: b.update(model=["a"]),
    "tool_calls a text": lambda b: b["choices"][0]["message"].update(tool_calls="x"),
    "tool_calls a number": lambda b: b["choices"][0]["message"].update(tool_calls=[3]),
    "logprobs without values": lambda b: b["choices"][0].update(logprobs={"content": [{"token": "Output"}]}),
    "logprobs a list": lambda b: b["choices"][0].update(logprobs=[1]),
    "logprobs of texts": lambda b: b["choices"][0].update(logprobs={"content": [{"token": "O", "logprob": "high"}]}),
}
FINE: dict[str, Callable[[Any], object]] = {
    "content in parts": lambda b: b["choices"][0]["message"].update(content=[{"type": "text", "text": "Output (a)"}]),
    "content an object": lambda b: b["choices"][0]["message"].update(content={"text": "Output (a)"}),
    "a call of nothing": lambda b: b["choices"][0]["message"].update(tool_calls=[{}]),
    "no usage": lambda b: b.update(usage=None),
    "a number of 6000 digits": lambda b: b.update(created="NINES"),
}


@pytest.mark.parametrize("name", ["openai", "openai-compatible"])
@pytest.mark.parametrize("oddity", [*OPENAI, *FINE])
def test_an_odd_field_is_dropped_and_counted_and_the_text_is_kept(
    server: WireServer, name: str, oddity: str, caplog: pytest.LogCaptureFixture
) -> None:
    body = completion({"model": "m"}, "Output (a)")
    (OPENAI | FINE)[oddity](body)
    server.script(Body(json.dumps(body).replace('"NINES"', "9" * 6000).encode()))
    [answer] = ask(make(name, server), chat())
    assert answer.text == "Output (a)"
    assert answer.finish_reason in ("stop", "")
    assert len(server.asked) == 1
    assert ("odd fields of answers were dropped" in caplog.text) == (oddity in OPENAI)


@pytest.mark.parametrize("name", ["openai", "openai-compatible", "anthropic"])
@pytest.mark.parametrize("counted", ["input", "output"])
def test_an_answer_of_which_a_part_was_not_counted_counts_at_its_worst_case(
    server: WireServer, name: str, counted: str, tmp_path: Path
) -> None:
    body = (message if name == "anthropic" else completion)({"model": "m"}, "Output (a)")
    vendors_word = counted if name == "anthropic" else {"input": "prompt", "output": "completion"}[counted]
    server.script(Body({**body, "usage": {f"{vendors_word}_tokens": 7}}))
    judge = make(name, server)
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        client = JudgeClient({"*": judge}, ledger, run="r", budget=1.0)
        [answer] = client([chat()])
        client.close()
        assert (answer.text, answer.price) == ("Output (a)", None)
        assert ledger.committed("r") == judge.worst_case_price(chat())


@pytest.mark.parametrize("field", ["usage", "stop_reason", "model"])
def test_an_odd_field_of_the_other_vendors_answer_is_dropped_too(
    server: WireServer, field: str, caplog: pytest.LogCaptureFixture
) -> None:
    server.script(Body({**message({"model": "m"}, "Output (a)"), field: [1]}))
    [answer] = ask(make("anthropic", server), chat())
    assert answer.text == "Output (a)"
    assert f"{field} (1)" in caplog.text


@pytest.mark.parametrize("name", ["openai", "openai-compatible", "anthropic"])
def test_a_whole_answer_whose_envelope_is_cut_off_behind_it_is_kept(server: WireServer, name: str) -> None:
    body = (message if name == "anthropic" else completion)({"model": "m"}, "Output (a)")
    cut = {"connection": "close", "content-length": "100000"}
    server.script(Body(json.dumps(body)[:-1].encode(), headers=cut), Body(body, headers=cut))
    [answer] = ask(make(name, server), chat())
    assert answer.text == "Output (a)"
    assert len(server.asked) == 2, "of the first, the last byte was missing"


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "cp1252"])
def test_an_answer_in_another_encoding_is_read(server: WireServer, encoding: str) -> None:
    text = "Output (a)" + " é" * (encoding == "cp1252")
    body = completion({"model": "m"}, text)
    server.script(Body(json.dumps(body, ensure_ascii=False).encode(encoding)))
    [answer] = ask(make("openai-compatible", server), chat())
    assert answer.text.startswith("Output (a)")


@pytest.mark.parametrize("fault", [Flood(), Body(b"[" * 200_000), Body(b" " * 300_000 + b"{}")], ids=repr)
def test_a_body_that_is_larger_than_any_answer_is_not_read_on(
    server: WireServer, fault: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vendor, "LARGEST_BODY", 2**18)
    server.script(fault)
    with pytest.raises(JudgeError, match="an unreadable reply"):
        ask(make("openai-compatible", server, max_retries=0, timeout=60), chat())


@pytest.mark.parametrize("fault", [Body({"error": "overloaded"}), Body(b"data: {}\n\ndata: [DONE]"), Body(b'{"cho')])
def test_answers_that_are_all_unusable_end_the_run_after_ten_with_the_cause(
    server: WireServer, fault: Body, tmp_path: Path
) -> None:
    server.refuses = lambda body: fault
    questions = [chat(f"Question {i}?") for i in range(50)]
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        asker = JudgeClient({"*": make("openai", server, max_retries=40)}, ledger, run="r", budget=100.0)
        with pytest.raises(
            JudgeError, match=r"no answer that can be used: 10 were lost, .* unreadable reply"
        ) as caught:
            asker(questions)
        assert not isinstance(caught.value, BudgetError)
        asker.close()
        assert len(server.asked) == 10
        judge = make("openai", server, max_retries=40)
        poor = JudgeClient({"*": judge}, ledger, run="s", budget=3.5 * (judge.worst_case_price(chat()) or 0.0))
        with pytest.raises(BudgetError, match=r"3 were lost, the last one: .* unreadable reply .*; so the budget"):
            poor(questions)
        poor.close()
