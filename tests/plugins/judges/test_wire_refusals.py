"""Requests that a server does not take: whose fault that is, what is learned from it, and what users are told."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from wire_judges import MODELS, ask, chat, make, write_two_systems
from wire_server import Body, Fault, Status, WireServer

from afarm.cli import main
from afarm.core.errors import JudgeError
from afarm.judging.accounting import unanswered
from afarm.judging.client import JudgeClient
from afarm.judging.ledger import Ledger, request_key

QUESTIONS = [chat(f"Question {i}?", system="Be fair.") for i in range(12)]


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger(tmp_path / "ledger.sqlite") as opened:
        yield opened


def client(name: str, server: WireServer, ledger: Ledger, **settings: Any) -> JudgeClient:
    return JudgeClient({"*": make(name, server, **settings)}, ledger, run="r", max_concurrency=3)


def asks(number: int, body: Mapping[str, Any]) -> bool:
    return f"Question {number}?" in json.dumps(body)


# --------------------------------------------------------------------------------------------------- whose fault it is

SHAPES = {
    "an object": Body({"error": {"message": "No such thing: grammar", "code": 7}}, 400),
    "a string": Body({"error": "No such thing: grammar"}, 422),
    "detail": Body({"detail": "No such thing: grammar"}, 400),
    "a list of details": Body({"detail": [{"loc": ["body", "x"], "msg": "No such thing: grammar"}]}, 422),
    "a list": Body([{"error": {"message": "No such thing: grammar"}}], 400),
    "message": Body({"object": "error", "message": "No such thing: grammar"}, 413),
    "errors": Body({"errors": [{"title": "No such thing: grammar"}]}, 400),
    "plain text": Body(b"No such thing: grammar", 400, {"content-type": "text/plain"}),
    "a page": Body(b"<!DOCTYPE html><html><style>p {}</style><h1>No such thing: grammar</h1></html>", 400),
    "an unknown object": Body({"reason": "No such thing: grammar"}, 400),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_what_every_request_gets_is_the_runs_fault_and_is_told_in_the_vendors_words(
    server: WireServer, ledger: Ledger, shape: Body
) -> None:
    server.refuses = lambda body: shape
    asker = client("openai-compatible", server, ledger)
    with pytest.raises(JudgeError, match="No such thing: grammar") as caught:
        asker(QUESTIONS)
    asker.close()
    assert "Error code" not in str(caught.value)
    assert "5 different requests were refused" in str(caught.value)
    assert len(server.asked) == 5
    assert ledger.committed("r") == 0.0


WORDINGS = {
    "an SGLang server": Body({"message": "The input (540 tokens) is longer than the model's context length."}, 400),
    "a TGI server": Body({"error": "`inputs` tokens + `max_new_tokens` must be <= 512. Given: 540 and 20"}, 422),
    "a vLLM server": Body({"error": {"message": "max_tokens must be at least 1, got -8.", "param": "max_tokens"}}, 400),
    "a proxy": Body(b"<html><h1>413 Request Entity Too Large</h1></html>", 413, {"content-type": "text/html"}),
    "nobody": Body(b"", 400),
    "a law": Status(451, "Unavailable for legal reasons"),
    "a firewall": Body(b"<html><h1>406 Not Acceptable</h1></html>", 406, {"content-type": "text/html"}),
    "a prompt filter": Status(400, "Your organization does not allow this topic"),
}


@pytest.mark.parametrize("place", [0, 7])
@pytest.mark.parametrize("wording", WORDINGS.values(), ids=WORDINGS)
def test_what_one_request_gets_is_its_own_fault_whatever_the_words(
    server: WireServer, ledger: Ledger, wording: Fault, place: int
) -> None:
    server.refuses = lambda body: wording if asks(place, body) else None
    for _ in range(2):  # the second start has nothing left to ask
        asker = client("openai-compatible", server, ledger)
        answers = asker(QUESTIONS)
        asker.close()
        assert [answer.text for i, answer in enumerate(answers) if i != place] == ["Output (a)"] * 11
        refused = answers[place]
        assert (refused.text, refused.price, refused.finish_reason) == ("", 0.0, "request_refused")
        assert sum(asks(place, body) for body in server.bodies) <= 2
        assert all(sum(asks(i, body) for body in server.bodies) == 1 for i in range(12) if i != place)
    assert unanswered(ledger) == [("request_refused", 1)]


@pytest.mark.parametrize("name", MODELS)
def test_a_judge_that_answered_this_annotator_before_is_not_at_fault(
    name: str, server: WireServer, ledger: Ledger
) -> None:
    asker = client(name, server, ledger)
    asker(QUESTIONS[:1])
    asker.close()
    server.refuses = lambda body: Status(400, "prompt is too long")
    later = client(name, server, ledger)
    assert {answer.finish_reason for answer in later(QUESTIONS[1:])} == {"request_refused"}
    with pytest.raises(JudgeError, match=r"prompt is too long.*none of another was ever answered"):
        later([chat(f"Question {i}?", annotator="another") for i in range(6)])
    later.close()


def test_fewer_than_five_requests_that_are_all_refused_are_the_runs_fault_too(
    server: WireServer, ledger: Ledger
) -> None:
    words = iter("abcdefghijkl")
    server.refuses = lambda body: Status(400, f"do not like {next(words)}")
    asker = client("openai", server, ledger)
    with pytest.raises(JudgeError, match="do not like"):
        asker(QUESTIONS[:2])
    assert len(server.asked) == 2
    with pytest.raises(JudgeError, match="10 different requests"):  # whatever the words
        asker(QUESTIONS)
    asker.close()


def test_a_pair_that_is_refused_is_unparsed_and_the_others_are_compared(
    server: WireServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_two_systems(4)
    command = ["evaluate", "mine.json", "--reference", "theirs.json", "--annotator", "gpt4_4", "--budget", "1"]
    command += ["--judge", "openai:gpt-4o", "--set", f"openai.base_url={server.openai_url}"]
    server.refuses = lambda body: Status(400, "that is a long one") if asks(1, body) else None
    for start in range(2):
        with pytest.raises(SystemExit) as ended:
            main(command)
        assert not ended.value.code
        assert "1 unparsed" in capsys.readouterr().out
        if not start:
            assert "it has answered others, so 'Question 1?' is not, as are more like it" in caplog.text
            [(place, row)] = re.findall(r"1 of 4 pairs .*: (/.*\.jsonl): row (\d+) \('Question 1\?'\)", caplog.text)
            assert json.loads(Path(place).read_text().splitlines()[int(row)])["instruction"] == "Question 1?"
        assert len(server.asked) == 4, "in other words it is not asked again"
    with pytest.raises(SystemExit):
        main(["ledger"])
    assert "Answers without a text: 3 request_refused" in capsys.readouterr().out


# -------------------------------------------------------------------------------------------------- forms of a request

NO_SYSTEM_ROLE = {
    "vllm": Body({"object": "error", "message": "System role not supported", "code": 400}, 400),
    "tgi": Body({"error": "Template error: syntax error: Conversation roles must alternate user/assistant"}, 422),
    "llama.cpp": Body({"error": {"code": 500, "message": "System role not supported at row 1, column 20"}}, 500),
    "mistral": Body({"detail": "Only user and assistant roles are supported!"}, 400),
}


def no_system_role(body: Any, fault: Fault) -> Fault:
    roles = [message["role"] for message in body["messages"]]
    return fault if roles[0] == "system" or any(a == b for a, b in pairwise(roles)) else None


@pytest.mark.parametrize("fault", NO_SYSTEM_ROLE.values(), ids=NO_SYSTEM_ROLE)
def test_a_server_without_the_system_role_gets_its_text_before_the_users(
    server: WireServer, ledger: Ledger, fault: Fault, caplog: pytest.LogCaptureFixture
) -> None:
    server.refuses = lambda body: no_system_role(body, fault)
    asker = client("openai-compatible", server, ledger)
    answers = asker(QUESTIONS)
    asker.close()
    assert [answer.text for answer in answers] == ["Output (a)"] * 12
    assert len(server.asked) == 13, "only the first is asked twice"
    assert server.bodies[-1]["messages"][0]["role"] == "user"
    assert server.bodies[1]["messages"][0]["content"] == "Be fair.\n\nQuestion 0?"
    assert {answer.degraded for answer in answers} == {("system",)}
    assert "the system text before the user's" in caplog.text
    judge = asker.judge("strong")
    assert set(ledger.completions([request_key(q, judge) for q in QUESTIONS])) == {a.key for a in answers}


@pytest.mark.parametrize("name", MODELS)
def test_a_setting_moves_the_system_text_without_a_refusal(server: WireServer, name: str) -> None:
    server.refuses = lambda body: Status(400, "no") if "system" in body else no_system_role(body, Status(400, "no"))
    judge = make(name, server, capabilities={"system": False})
    answers = ask(judge, *QUESTIONS[:3], chat("no system text"))
    assert len(server.asked) == 4
    assert [answer.degraded for answer in answers] == [("system",)] * 3 + [()]
    assert '{"system": false}' in judge.identity


@pytest.mark.parametrize(("name", "usual"), [("openai", "max_completion_tokens"), ("openai-compatible", "max_tokens")])
@pytest.mark.parametrize("has_roles", [True, False])
def test_the_name_of_the_token_limit_is_learned(
    server: WireServer, ledger: Ledger, name: str, usual: str, has_roles: bool
) -> None:
    said = Status(400, f"Unsupported parameter: '{usual}'", error={"param": usual})
    role = NO_SYSTEM_ROLE["vllm"]
    server.refuses = lambda body: said if usual in body else None if has_roles else no_system_role(body, role)
    asker = client(name, server, ledger)
    assert [answer.text for answer in asker(QUESTIONS)] == ["Output (a)"] * 12
    asker.close()
    assert len(server.asked) == 13 + (not has_roles)


@pytest.mark.parametrize("code", [400, 500])
def test_a_refusal_that_another_form_does_not_mend_teaches_nothing(
    server: WireServer, ledger: Ledger, code: int
) -> None:
    server.script(*[Status(code, "the role of max_tokens is a mystery")] * 2)
    asker = client("openai-compatible", server, ledger, max_retries=0)
    if code == 500:
        with pytest.raises(JudgeError, match="the role of max_tokens"):
            asker(QUESTIONS)
    answers = asker(QUESTIONS)
    asker.close()
    assert all(answer.degraded == () for answer in answers)
    assert all("max_tokens" in body and body["messages"][0]["role"] == "system" for body in server.bodies[3:])


def test_a_page_in_place_of_a_refused_key_is_no_refused_key(server: WireServer) -> None:
    server.script(Body(b"<html>Forbidden by the corporate proxy</html>", 403, {"content-type": "text/html"}))
    with pytest.raises(JudgeError, match=r"not the API answered \(403: a web page: Forbidden by the corporate proxy\)"):
        ask(make("openai-compatible", server), chat())
