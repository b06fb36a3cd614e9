"""Vendors by name, each against a server that takes what its documentation lists and refuses what it refuses.

The forms are those of the pages that vendors.yaml names, read on its date: a request's fields, errors, what is counted.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

import pytest
from wire_judges import KEY, PLUGINS, ask, chat, no_reward_model
from wire_server import Body, Fault, Told, WireServer, completion

from afarm.core.errors import JudgeError
from afarm.core.interfaces import BuildContext
from afarm.core.judge import ChatRequest, Tool
from afarm.core.records import Message
from afarm.judging.pricing import Prices
from afarm.judging.rate_limit import RequestRefused, SlowDown
from afarm_plugins.judges.vendor import VendorJudge
from afarm_plugins.judges.vendor_table import VENDORS

USUAL = {"model", "messages", "temperature", "top_p", "tools", "tool_choice", "response_format", "reasoning_effort"}
TAKES: dict[str, set[str]] = {
    "gemini": {"max_tokens", "max_completion_tokens"},
    "openrouter": {"max_tokens", "logprobs", "top_logprobs", "logit_bias"},
    "groq": {"max_tokens", "max_completion_tokens"},
    "together": {"max_tokens", "logprobs", "logit_bias"},
    "deepseek": {"max_tokens", "logprobs", "top_logprobs", "thinking"},
    "mistral": {"max_tokens", "random_seed"},
    "fireworks": {"max_tokens", "logprobs", "top_logprobs", "logit_bias"},
    "xai": {"max_completion_tokens"},
    "cerebras": {"max_completion_tokens", "logprobs", "top_logprobs"},
}
"""Fields of a request beside the usual ones; log-probabilities that come as flags, but for Together's number."""


def refusal(name: str, field: str) -> Body:
    """The error about a field in the vendor's form."""
    words = f"property '{field}' is unsupported"
    extra = [{"type": "extra_forbidden", "loc": ["body", field], "msg": "Extra inputs are not permitted"}]
    if name == "mistral":
        return Body({"object": "error", "message": {"detail": extra}, "type": "invalid_request_error"}, 422)
    if name == "gemini":
        return Body([{"error": {"code": 400, "message": words, "status": "INVALID_ARGUMENT"}}], 400)
    if name == "xai":
        return Body({"code": "Client specified an invalid argument", "error": words}, 400)
    return Body({"error": {"message": words, "type": "invalid_request_error", "param": field}}, 400)


def as_documented(name: str, received: Mapping[str, Any]) -> Fault:
    roles = [message["role"] for message in received["messages"]]
    wrong = sorted(received.keys() - USUAL - TAKES[name])
    wrong += [f"messages[].{field}" for m in received["messages"] for field in m.keys() - {"role", "content"}]
    wrong += ["logprobs"] * (type(received.get("logprobs")) is not (int if name == "together" else bool))
    wrong = [field for field in wrong if field != "logprobs" or "logprobs" in received]
    wrong += ["messages"] * (roles.count("system") > 1 or any(a == b for a, b in pairwise(roles)))
    return refusal(name, wrong[0]) if wrong else None


def named(name: str, server: WireServer, model: str = "", **settings: Any) -> VendorJudge:
    """The judge as `--judge name:model` builds it, its address moved to the server."""
    address = server.url + urlsplit(VENDORS[name].url).path
    given = {"max_retries": 2, "timeout": 5, "base_url": address, **settings}
    component = PLUGINS.get("judges", name)
    context = BuildContext(no_reward_model, price=lambda provider, model: Prices().of("", provider, model))
    judge: VendorJudge = component.load()(model or VENDORS[name].example, component.settings(given), context)
    return judge


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for vendor in VENDORS.values():
        monkeypatch.setenv(vendor.key_variable, KEY)
    monkeypatch.setattr(importlib.import_module("openai._base_client"), "INITIAL_RETRY_DELAY", 0.001)


EXAMPLES = ChatRequest(
    "strong",
    (
        Message("system", "Be fair."),
        Message("system", "Which?", name="example_user"),
        Message("system", "Output (a)", name="example_assistant"),
        Message("user", "Which is better?"),
    ),
    max_tokens=20,
    temperature=0.0,
    annotator="gpt4_4",
)


@pytest.mark.parametrize("name", VENDORS)
def test_a_vendor_takes_what_it_is_sent(server: WireServer, name: str) -> None:
    server.refuses = lambda body: as_documented(name, body)
    judge = named(name, server)
    asked = [EXAMPLES] if judge.capabilities.temperature else [chat(system="Be fair.")]
    if judge.capabilities.tool:
        asked.append(chat(tool=Tool("choose", "Choose.", {"type": "object", "properties": {}})))
    if judge.capabilities.schema:
        asked.append(chat(schema={"type": "array", "items": {"type": "string"}}))
    if judge.capabilities.logprobs:
        asked.append(chat(top_logprobs=5))
    ask(judge, *asked)
    assert len(server.asked) == len(asked), "none was refused and sent in another form"
    for received in server.asked:
        assert received.path == urlsplit(VENDORS[name].url).path + "/chat/completions"
        assert received.headers["authorization"] == f"Bearer {KEY}"
        assert VENDORS[name].limit in received.body


@pytest.mark.parametrize("name", VENDORS)
@pytest.mark.parametrize("lacks", ["logprobs", "logit_bias"])
def test_what_a_vendor_lacks_is_said_before_anything_is_sent(server: WireServer, name: str, lacks: str) -> None:
    request = chat(top_logprobs=5) if lacks == "logprobs" else chat(favoured_tokens=("(a)",))
    judge = named(name, server)
    if getattr(judge.capabilities, lacks):
        return
    with pytest.raises(JudgeError, match=f"takes no (top_)?{lacks}"):
        ask(judge, request)
    assert not server.asked


def test_thoughts_that_a_vendor_leaves_out_of_its_count_are_charged(server: WireServer) -> None:
    body = completion({"model": "gemini-2.5-flash"}, "Output (a)")
    body["usage"] = {"prompt_tokens": 20, "completion_tokens": 198, "total_tokens": 623}
    server.script(Body(body))
    judge = named("gemini", server)
    [answer] = ask(judge, chat())
    assert (answer.input_tokens, answer.output_tokens) == (20, 603)
    assert answer.price == pytest.approx((20 * 0.3 + 603 * 2.5) / 1e6)
    assert server.bodies[0]["max_tokens"] == 20 + judge.config.thinking_tokens


@pytest.mark.parametrize(
    ("name", "model", "thinks"),
    [
        ("gemini", "gemini-2.5-flash", True),
        ("gemini", "gemini-2.5-flash-lite", False),
        ("gemini", "gemini-2.0-flash", False),
        ("groq", "openai/gpt-oss-120b", True),
        ("groq", "llama-3.3-70b-versatile", False),
        ("xai", "grok-4", True),
        ("xai", "grok-4-fast-non-reasoning", False),
        ("mistral", "magistral-medium-latest", True),
        ("together", "Qwen/Qwen3-235B-A22B-Instruct-2507-tput", False),
        ("together", "deepseek-ai/DeepSeek-R1", True),
        ("openrouter", "google/gemini-2.5-pro", True),
        ("openrouter", "openai/gpt-4o", False),
        ("deepseek", "deepseek-v4-flash", True),
        ("deepseek", "deepseek-chat", False),
    ],
)
def test_the_models_that_think_are_given_room(server: WireServer, name: str, model: str, thinks: bool) -> None:
    assert named(name, server, model).thinks == thinks
    assert not named(name, server, model, effort="none").thinks


def test_deepseek_thinks_no_more_where_it_is_told_and_then_takes_a_temperature(server: WireServer) -> None:
    assert not named("deepseek", server).capabilities.temperature
    ask(named("deepseek", server, effort="none"), chat(temperature=0.5))
    assert server.bodies[0]["thinking"] == {"type": "disabled"}
    assert (server.bodies[0]["temperature"], server.bodies[0].get("reasoning_effort")) == (0.5, None)


def test_deepseeks_blank_lines_before_an_answer_are_read_over(server: WireServer) -> None:
    server.script(Body(b"\n" * 50 + json.dumps(completion({"model": "m"}, "Output (b)")).encode()))
    assert ask(named("deepseek", server), chat())[0].text == "Output (b)"


def test_mistrals_thoughts_are_no_part_of_the_answer(server: WireServer) -> None:
    body = completion({"model": "m"}, "")
    thoughts = {"type": "thinking", "thinking": [{"type": "text", "text": "Output (a)?"}]}
    body["choices"][0]["message"]["content"] = [thoughts, {"type": "text", "text": "Output (b)"}]
    server.script(Body(body))
    assert ask(named("mistral", server), chat())[0].text == "Output (b)"


def test_togethers_log_probabilities_are_read(server: WireServer) -> None:
    body = completion({"model": "m"}, "m")
    body["choices"][0]["logprobs"] = {
        "tokens": ["m"],
        "token_logprobs": [-0.1],
        "top_logprobs": [{"m": -0.1, "M": -2.5}],
    }
    server.script(Body(body))
    [answer] = ask(named("together", server), chat(top_logprobs=5))
    assert answer.logprobs == ({"m": -0.1, "M": -2.5},)


def test_a_providers_error_inside_an_answer_is_no_answer(server: WireServer) -> None:
    body = completion({"model": "m"}, "")
    body["choices"][0] |= {"error": {"code": 502, "message": "Provider returned error"}, "finish_reason": "error"}
    server.script(Body(body), Body({"error": {"code": 502, "message": "Provider returned error"}}))
    assert ask(named("openrouter", server), chat())[0].text == "Output (a)"
    assert len(server.asked) == 3


BAD_KEYS = {
    "gemini": Body([{"error": {"code": 400, "message": "API key not valid. Please pass a valid API key."}}], 400),
    "xai": Body({"code": "Client specified an invalid argument", "error": "Incorrect API key provided: xa***"}, 400),
    "groq": Body({"error": {"message": "Invalid API Key", "type": "invalid_request_error"}}, 401),
    "openrouter": Body({"error": {"message": "No auth credentials found", "code": 401}}, 401),
    "mistral": Body({"message": "Unauthorized", "request_id": "1"}, 401),
}


@pytest.mark.parametrize("name", BAD_KEYS)
def test_a_key_that_is_refused_names_its_variable(server: WireServer, name: str) -> None:
    server.script(BAD_KEYS[name])
    with pytest.raises(JudgeError, match=f"the key was refused .*{VENDORS[name].key_variable}") as caught:
        ask(named(name, server), chat())
    assert not isinstance(caught.value, RequestRefused)


@pytest.mark.parametrize("name", VENDORS)
def test_a_key_that_is_missing_names_its_variable(
    server: WireServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VENDORS[name].key_variable)
    [problem] = named(name, server).check_access()
    assert problem.startswith(f"{name} needs a key: set the environment variable {VENDORS[name].key_variable}")


RETRY_INFO = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.5s"}
WAITS = {
    "gemini": Body([{"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "details": [RETRY_INFO]}}], 429),
    "groq": Body({"error": {"message": "Rate limit reached"}}, 429, {"retry-after": "34.5"}),
    "openrouter": Body({"error": {"code": 429, "message": "slow"}}, 429, {"retry-after": "34.5"}),
    "together": Body({"error": {"message": "slow"}}, 429, {"x-ratelimit-reset": "34.5"}),
}


@pytest.mark.parametrize("name", WAITS)
def test_a_vendor_says_how_long_to_wait(server: WireServer, name: str) -> None:
    server.script(WAITS[name])
    with pytest.raises(SlowDown) as caught:
        ask(named(name, server), chat())
    assert caught.value.seconds == pytest.approx(34.5)


def test_groqs_headers_hold_back_what_would_be_refused(server: WireServer) -> None:
    headers = {"limit": "6000", "remaining": "300", "reset": "7.66s"}
    server.script(Told({f"x-ratelimit-{what}-tokens": value for what, value in headers.items()}))
    judge, told = named("groq", server), list[tuple[float, float, str]]()
    object.__setattr__(judge._context, "allowed", lambda *given: told.append(given))
    ask(judge, chat())
    assert told[0][1] == pytest.approx(7.66)


def test_an_empty_account_is_no_rate_limit(server: WireServer) -> None:
    server.script(Body({"error": {"message": "Insufficient Balance", "type": "unknown_error"}}, 402))
    with pytest.raises(JudgeError, match="no credit left"):
        ask(named("deepseek", server), chat())


def test_a_model_without_a_listed_price_has_none(server: WireServer) -> None:
    assert named("openrouter", server, "nobody/such-a-model").price() is None
    assert named("groq", server).price() is not None
