"""What is sent to vendors, as the exact JSON that a local server received, and what is read from their answers."""

from __future__ import annotations

import json
import math
from pathlib import Path

import bpe_openai
import pytest
from wire_judges import KEY, MODELS, PLUGINS, PRICE, WORTH, ask, chat, make
from wire_server import Body, WireServer, completion, message

from afarm import BuildContext
from afarm.cli import main
from afarm.core.errors import JudgeError
from afarm.core.judge import Capabilities, ChatRequest, Tool
from afarm.core.records import Message
from afarm.judging import unsupported
from afarm.testing import check_judge
from afarm_plugins.judges.openai_judge import CompatibleJudge

VENDORS = list(MODELS)
VERDICT = {"type": "object", "properties": {"better": {"type": "string"}}, "required": ["better"]}
VERDICTS = {"type": "array", "items": VERDICT}
TOOL = Tool("print_best", "Says which is better.", VERDICT)
TALK = chat("First.", "Output (a)", "Second.", system="You judge.")


def test_openai_gets_a_chat_and_nothing_that_was_not_asked_for(server: WireServer) -> None:
    ask(make("openai", server), TALK)
    [sent] = server.asked
    assert sent.path == "/v1/chat/completions"
    assert sent.headers["authorization"] == f"Bearer {KEY}"
    assert sent.body == {
        "model": "gpt-4o",
        "messages": [
            {"role": "system", "content": "You judge."},
            {"role": "user", "content": "First."},
            {"role": "assistant", "content": "Output (a)"},
            {"role": "user", "content": "Second."},
        ],
        "max_completion_tokens": 20,
    }


def test_anthropic_gets_its_system_text_apart(server: WireServer) -> None:
    ask(make("anthropic", server), TALK)
    [sent] = server.asked
    assert sent.path == "/v1/messages"
    assert sent.headers["authorization"] == f"Bearer {KEY}"
    assert sent.body == {
        "model": "claude-opus-4-8",
        "max_tokens": 20,
        "messages": [
            {"role": "user", "content": "First."},
            {"role": "assistant", "content": "Output (a)"},
            {"role": "user", "content": "Second."},
        ],
        "system": "You judge.",
    }


def test_a_compatible_server_gets_the_older_name_of_the_limit_and_no_key(server: WireServer) -> None:
    ask(make("openai-compatible", server), chat("Hello."))
    [sent] = server.asked
    assert sent.body == {"model": "llama3:8b", "messages": [{"role": "user", "content": "Hello."}], "max_tokens": 20}
    assert KEY not in str(sent.headers)


def test_a_server_is_the_same_judge_with_a_slash_after_its_url() -> None:
    config, context = PLUGINS.get("judges", "openai-compatible").settings({}), BuildContext(reward_model=print)
    judges = [CompatibleJudge(f"m@http://127.0.0.1:9/v1{end}", config, context) for end in ("", "/")]
    assert [judge.identity for judge in judges] == ["openai-compatible:m@http://127.0.0.1:9/v1"] * 2
    assert len({judge.base_url for judge in judges}) == 1


def test_a_compatible_server_is_not_told_what_the_environment_says_about_openai(
    server: WireServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_ORG_ID", "org-private")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "proj-private")
    monkeypatch.setenv("OPENAI_COMPATIBLE_API_KEY", "its-own")
    ask(make("openai-compatible", server), chat())
    assert "private" not in str(server.asked[0].headers)
    assert server.asked[0].headers["authorization"] == "Bearer its-own"


def test_sampling_parameters_are_sent_where_they_are_taken(server: WireServer) -> None:
    asked = chat(temperature=0.0, top_p=0.5)
    ask(make("openai", server), asked)
    ask(make("openai-compatible", server), asked)
    assert [(b["temperature"], b["top_p"]) for b in server.bodies] == [(0.0, 0.5)] * 2


@pytest.mark.parametrize(("name", "model"), [("anthropic", ""), ("openai", "gpt-5.4"), ("openai", "o3")])
def test_what_a_model_does_not_take_is_declared_and_refused_before_it_is_sent(
    server: WireServer, name: str, model: str
) -> None:
    judge = make(name, server, model)
    asked = chat(temperature=0.0, favoured_tokens=("Output (a)",), top_logprobs=5)
    assert unsupported(asked, judge.capabilities) == ("temperature", "logit_bias", "top_logprobs")
    with pytest.raises(JudgeError, match="takes no temperature or logit_bias or top_logprobs, which gpt4_4 asks for"):
        ask(judge, asked)
    assert server.received == []


def test_logit_bias_avoids_single_tokens_and_favours_every_token_of_the_labels(server: WireServer) -> None:
    encode = bpe_openai.get_encoding("o200k_base").encode_ordinary
    assert (len(encode("Both")), len(encode("Neither one"))) == (1, 2)
    ask(
        make("openai", server),
        chat(favoured_tokens=("Output (a)", "Output (b)"), penalised_tokens=("Both", "Neither one")),
    )
    labels = set(encode("Output (a)")) | set(encode("Output (b)"))
    assert server.bodies[0]["logit_bias"] == {str(encode("Both")[0]): -100} | {str(t): 7 for t in labels}


def test_each_model_gets_the_tokens_of_its_own_tokenizer(server: WireServer) -> None:
    for model, encoding in [
        ("gpt-4-0613", "cl100k_base"),
        ("gpt-3.5-turbo-instruct", "cl100k_base"),
        ("ft:gpt-4:me::1", "cl100k_base"),
        ("gpt-4.1-mini", "o200k_base"),
        ("gpt-4o", "o200k_base"),
    ]:
        judge = make("openai", server, model)
        plain = ChatRequest("strong", prompt="Which?", penalised_tokens=("Both",))
        ask(judge, chat(penalised_tokens=("Both",)) if judge.capabilities.chat else plain)
        [token] = bpe_openai.get_encoding(encoding).encode_ordinary("Both")
        assert server.bodies[-1]["logit_bias"] == {str(token): -100}, model


def test_a_schema_constrains_the_answer_in_each_vendors_way(server: WireServer) -> None:
    closed = {**VERDICT, "additionalProperties": False}
    for name in ("openai", "anthropic"):
        ask(make(name, server), chat(schema=VERDICT))
    openai_body, anthropic_body = server.bodies
    assert openai_body["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": closed, "strict": True},
    }
    assert anthropic_body["output_config"] == {"format": {"type": "json_schema", "schema": closed}}


@pytest.mark.parametrize("name", ["openai", "anthropic"])
def test_a_list_is_asked_for_inside_an_object_and_given_back_as_a_list(name: str) -> None:
    verdicts = [{"better": "Output (a)"}, {"better": "é"}]
    with WireServer(lambda received: json.dumps({"answer": verdicts})) as server:
        [answer] = ask(make(name, server), chat(schema=VERDICTS))
        assert json.loads(answer.text) == verdicts
        assert "é" in answer.text
        sent = json.dumps(server.bodies[0])
    inner = {"type": "array", "items": {**VERDICT, "additionalProperties": False}}
    outer = {"type": "object", "properties": {"answer": inner}, "required": ["answer"], "additionalProperties": False}
    assert json.dumps(outer) in sent


def test_an_answer_that_does_not_hold_to_the_schema_is_kept_as_it_is() -> None:
    for text in ('{"answer": [{"bet', "Output (a)", "[1]", '{"verdict": 1}'):
        with WireServer(lambda received, text=text: text) as server:
            assert ask(make("openai", server), chat(schema=VERDICTS))[0].text == text


def test_a_schema_is_left_out_where_the_server_may_not_know_it(server: WireServer) -> None:
    ask(make("openai-compatible", server), chat(schema=VERDICT))
    assert "response_format" not in server.bodies[0]
    ask(make("openai-compatible", server, capabilities={"schema": True}), chat(schema=VERDICT))
    assert "response_format" in server.bodies[1]


def test_a_tool_has_to_be_called_and_its_arguments_are_the_text() -> None:
    with WireServer(lambda received: '{"better": "m"}') as server:
        answers = [ask(make(name, server), chat(tool=TOOL))[0] for name in ("openai", "anthropic")]
        openai_body, anthropic_body = server.bodies
    assert [a.text for a in answers] == ['{"better": "m"}'] * 2
    assert [a.finish_reason for a in answers] == ["stop", "stop"]
    function = {"name": "print_best", "description": "Says which is better.", "parameters": VERDICT}
    assert openai_body["tools"] == [{"type": "function", "function": function}]
    assert openai_body["tool_choice"] == {"type": "function", "function": {"name": "print_best"}}
    described = {"name": "print_best", "description": "Says which is better.", "input_schema": VERDICT}
    assert anthropic_body["tools"] == [described]
    assert anthropic_body["tool_choice"] == {"type": "tool", "name": "print_best"}


def test_a_model_that_thinks_is_held_to_the_tools_arguments_without_a_forced_call(server: WireServer) -> None:
    ask(make("anthropic", server, "claude-opus-5-5"), chat(tool=TOOL))
    [body] = server.bodies
    assert "tools" not in body
    assert body["output_config"]["format"]["schema"] == {**VERDICT, "additionalProperties": False}


@pytest.mark.parametrize(
    ("name", "model", "limit", "thinks"),
    [
        ("openai", "gpt-4.1", "max_completion_tokens", False),
        ("openai", "gpt-5-chat-latest", "max_completion_tokens", False),
        ("openai", "gpt-5.4-mini", "max_completion_tokens", True),
        ("openai", "gpt-6.2-sol", "max_completion_tokens", True),
        ("openai", "o4-mini", "max_completion_tokens", True),
        ("anthropic", "claude-3-5-haiku-latest", "max_tokens", False),
        ("anthropic", "claude-opus-4-8", "max_tokens", False),
        ("anthropic", "claude-opus-5", "max_tokens", True),
        ("anthropic", "claude-haiku-5-5", "max_tokens", True),
    ],
)
def test_models_that_think_first_get_room_for_it(
    server: WireServer, name: str, model: str, limit: str, thinks: bool
) -> None:
    ask(make(name, server, model, thinking_tokens=1000), chat(max_tokens=20))
    assert server.bodies[0][limit] == (1020 if thinks else 20)


def test_effort_is_sent_in_each_vendors_way_and_none_brings_the_temperature_back(server: WireServer) -> None:
    ask(make("openai", server, "gpt-5.4", effort="none"), chat(temperature=0.0))
    ask(make("anthropic", server, effort="low"), chat())
    openai_body, anthropic_body = server.bodies
    assert (openai_body["reasoning_effort"], openai_body["temperature"]) == ("none", 0.0)
    assert openai_body["max_completion_tokens"] == 20
    assert anthropic_body["output_config"] == {"effort": "low"}


def test_a_later_claude_can_be_told_not_to_think(server: WireServer) -> None:
    ask(make("anthropic", server, "claude-opus-5", effort="none"), chat(max_tokens=20))
    [body] = server.bodies
    assert (body["thinking"], body["max_tokens"], "output_config" in body) == ({"type": "disabled"}, 20, False)


def test_models_older_than_schemas_are_sent_none(server: WireServer) -> None:
    for model in (
        *("claude-3-haiku-20240307", "claude-3-7-sonnet-latest", "claude-instant-1.2"),
        *("claude-sonnet-4-20250514", "claude-opus-4-0", "claude-opus-4-1-20250805"),
    ):
        ask(make("anthropic", server, model), chat(schema=VERDICT))
        assert "output_config" not in server.bodies[-1], model
    for model in ("claude-haiku-4-5", "claude-sonnet-4-5-20250929", "claude-opus-4-6", "claude-opus-5-5"):
        ask(make("anthropic", server, model), chat(schema=VERDICT))
        assert server.bodies[-1]["output_config"]["format"]["type"] == "json_schema", model
    for model in ("gpt-4-0613", "gpt-3.5-turbo", "gpt-4-turbo", "ft:gpt-4:me::1"):
        ask(make("openai", server, model), chat(schema=VERDICT))
        assert "response_format" not in server.bodies[-1], model
    for model in ("gpt-4o", "gpt-4.1", "gpt-5.4", "o3", "a-model-of-tomorrow"):
        ask(make("openai", server, model), chat(schema=VERDICT))
        assert "response_format" in server.bodies[-1], model


def test_logprobs_are_read_from_both_of_openais_endpoints(server: WireServer) -> None:
    [chatted] = ask(make("openai", server), chat(top_logprobs=2))
    completes = make("openai", server, "gpt-3.5-turbo-instruct")
    [completed] = ask(completes, ChatRequest("completion", prompt="Which?", top_logprobs=2))
    assert chatted.logprobs == completed.logprobs == ({"m": -0.1, "M": -2.5},)
    assert (server.bodies[0]["logprobs"], server.bodies[0]["top_logprobs"]) == (True, 2)
    assert server.bodies[1]["logprobs"] == 2


def test_completion_models_get_the_prompt_as_it_is_and_no_chat(server: WireServer) -> None:
    completes = make("openai", server, "gpt-3.5-turbo-instruct")
    [answer] = ask(completes, ChatRequest("completion", prompt="### Which is better?", max_tokens=9))
    assert answer.text == "Output (a)"
    [sent] = server.asked
    assert sent.path == "/v1/completions"
    assert sent.body == {"model": "gpt-3.5-turbo-instruct", "prompt": "### Which is better?", "max_tokens": 9}
    with pytest.raises(JudgeError, match="takes no chat, which gpt4_4 asks for: choose another judge"):
        ask(make("openai", server, "davinci-002"), chat())


def test_settings_say_what_the_name_does_not_tell(server: WireServer) -> None:
    base = make("openai-compatible", server, capabilities={"chat": False, "completion": True})
    assert base.capabilities == Capabilities(chat=False, completion=True, temperature=True)
    ask(base, ChatRequest("completion", prompt="Which?"))
    assert server.asked[0].path == "/v1/completions"


def test_a_model_that_still_takes_a_temperature_is_sent_it_where_the_settings_say_so(server: WireServer) -> None:
    older = make("anthropic", server, "claude-haiku-4-5", capabilities={"temperature": True})
    ask(older, chat(temperature=0.0))
    assert server.bodies[0]["temperature"] == 0.0
    assert "top_p" not in server.bodies[0]


@pytest.mark.parametrize(("name", "capability"), [("anthropic", "logprobs"), ("openai-compatible", "logit_bias")])
def test_no_setting_promises_what_a_judge_has_no_way_to_do(server: WireServer, name: str, capability: str) -> None:
    with pytest.raises(JudgeError, match=f"judge {name} has no way to .*{name}.capabilities"):
        make(name, server, capabilities={capability: True})
    assert not getattr(make(name, server, capabilities={capability: False}).capabilities, capability)


def test_an_unknown_capability_is_refused_with_the_nearest_name(server: WireServer) -> None:
    with pytest.raises(ValueError, match=r"unknown capability 'temprature'.*Did you mean 'temperature'"):
        make("openai", server, capabilities={"temprature": False})


def test_anthropic_gets_neighbours_of_one_role_joined_and_no_empty_turn(server: WireServer) -> None:
    turns = [("user", "a"), ("user", "b"), ("assistant", ""), ("user", "c"), ("system", "s"), ("assistant", "d")]
    named = Message("system", "e", "example_user")
    request = ChatRequest("strong", (*(Message(*turn) for turn in turns), named), max_tokens=5)
    ask(make("anthropic", server), request)
    assert server.bodies[0]["messages"] == [
        {"role": "user", "content": "a\n\nb\n\nc"},
        {"role": "assistant", "content": "d"},
        {"role": "user", "content": "e"},
    ]
    assert server.bodies[0]["system"] == "s"


@pytest.mark.parametrize("name", VENDORS)
def test_half_an_emoji_and_every_other_text_can_be_sent(server: WireServer, name: str) -> None:
    text = "half \ud83d, whole \U0001f600, שלום <|endoftext|> {output_1} \x00 " + "x" * 30_000
    judge = make(name, server)
    request = chat(text)
    most = judge.worst_case_price(request)
    assert most is not None
    assert most > 0
    ask(judge, request)
    assert server.bodies[0]["messages"][-1]["content"] == text.replace("\ud83d", "?")


# ------------------------------------------------------------------------------------------------ what comes back


@pytest.mark.parametrize("name", VENDORS)
def test_an_answer_has_its_text_tokens_price_and_model(server: WireServer, name: str) -> None:
    [answer] = ask(make(name, server), chat())
    assert (answer.text, answer.finish_reason, answer.model) == ("Output (a)", "stop", MODELS[name])
    assert (answer.input_tokens, answer.cached_input_tokens, answer.output_tokens) == (100, 20, 7)
    assert answer.price is not None
    assert math.isclose(answer.price, WORTH)
    assert answer.seconds > 0


def test_a_price_is_unknown_where_no_tokens_were_counted(server: WireServer) -> None:
    uncounted = completion({"model": "m"}, "Output (b)")
    del uncounted["usage"]
    server.script(Body(uncounted))
    [answer] = ask(make("openai-compatible", server), chat())
    assert (answer.text, answer.price, answer.input_tokens) == ("Output (b)", None, 0)


@pytest.mark.parametrize("wrong", [10**30, "x", -5, 7.5, True, [3]])
@pytest.mark.parametrize("name", ["openai-compatible", "anthropic"])
def test_a_faulty_count_of_tokens_is_none(server: WireServer, name: str, wrong: object) -> None:
    """The worst case is then paid, as where none were counted."""
    made, given = (message, "input_tokens") if name == "anthropic" else (completion, "prompt_tokens")
    faulty, worse = made({"model": "m"}, "Output (b)"), made({"model": "m"}, "Output (b)")
    faulty["usage"][given], worse["usage"] = wrong, [wrong]
    server.script(Body(faulty), Body(worse))
    for answer in ask(make(name, server), chat(), chat()):
        assert (answer.text, answer.price) == ("Output (b)", None)
        assert (answer.input_tokens, answer.cached_input_tokens, answer.output_tokens) == (0, 0, 0)


def test_refusals_are_answers_that_say_so(server: WireServer) -> None:
    refused = completion({"model": "gpt-4o"}, "")
    refused["choices"][0]["message"] = {"role": "assistant", "content": None, "refusal": "I will not."}
    server.script(Body(refused), Body(message({"model": "c"}, "", "refusal")))
    answers = [ask(make(name, server), chat())[0] for name in ("openai", "anthropic")]
    assert [(a.text, a.finish_reason) for a in answers] == [("I will not.", "refusal"), ("", "refusal")]
    assert len(server.asked) == 2


def test_empty_answers_are_answers(server: WireServer) -> None:
    empty = completion({"model": "gpt-4o"}, "")
    empty["choices"][0] = {"message": {"role": "assistant", "content": None}, "finish_reason": "length"}
    server.script(Body(empty), Body(message({"model": "c"}, "", "max_tokens")))
    answers = [ask(make(name, server), chat())[0] for name in ("openai", "anthropic")]
    assert [(a.text, a.finish_reason) for a in answers] == [("", "length")] * 2
    assert len(server.asked) == 2


def test_an_answer_in_parts_is_put_together(server: WireServer) -> None:
    parts = completion({"model": "m"}, "")
    parts["choices"][0]["message"]["content"] = [{"type": "text", "text": "Output"}, {"type": "text", "text": " (b)"}]
    server.script(Body(parts))
    assert ask(make("openai-compatible", server), chat())[0].text == "Output (b)"


# ------------------------------------------------------------------------------------------------------- its price


def test_the_worst_case_of_openai_counts_tokens_and_of_others_bytes(server: WireServer) -> None:
    text = "Which output is better? " * 200
    asked = chat(text, max_tokens=50)
    tokens = len(bpe_openai.get_encoding("o200k_base").encode_ordinary(text))
    openai_judge, others = make("openai", server), make("anthropic", server)
    margin = 64 + 16
    assert openai_judge.worst_case_price(asked) == pytest.approx(PRICE.of(tokens + margin, 50))
    assert others.worst_case_price(asked) == pytest.approx(PRICE.of(len(text) + margin, 50))
    assert openai_judge.count_tokens(asked) == tokens + 4


def test_the_worst_case_counts_thoughts_schemas_and_tools(server: WireServer) -> None:
    plain = make("openai", server).worst_case_price(chat())
    thinking = make("openai", server, "gpt-5.4", thinking_tokens=1000).worst_case_price(chat())
    assert plain is not None
    assert thinking == pytest.approx(plain + 1000 * PRICE.output / 1e6)
    for extra in ({"schema": VERDICT}, {"tool": TOOL}):
        more = make("openai", server).worst_case_price(chat(**extra))
        assert more is not None
        assert more > plain + 1000 * PRICE.input / 1e6


# ------------------------------------------------------------------------------------------------------ what it is


@pytest.mark.parametrize("name", VENDORS)
def test_a_judge_keeps_the_promises_of_its_interface(server: WireServer, name: str) -> None:
    check_judge(make(name, server), answers=True)
    assert len(server.asked) > 8


def test_identities_name_the_model_and_what_changes_answers(server: WireServer) -> None:
    assert make("anthropic", server).identity.startswith("anthropic:claude-opus-4-8[base_url=")
    spec = f"openai-compatible:llama3:8b@{server.openai_url}"
    assert make("openai-compatible", server).identity == spec
    assert make("openai-compatible", server, max_retries=9, timeout=1, key_variable="X").identity == spec
    changed = make("openai-compatible", server, effort="low", capabilities={"schema": True}).identity
    assert changed == f'{spec}[capabilities={{"schema": true}},effort="low"]'


def test_a_compatible_spec_splits_on_the_last_at(server: WireServer) -> None:
    judge = make("openai-compatible", server, "org/model@v2:8b")
    ask(judge, chat())
    assert (judge.model, server.bodies[0]["model"]) == ("org/model@v2:8b", "org/model@v2:8b")


@pytest.mark.parametrize(
    "spec", ["llama3", "llama3@localhost:8000", "@http://h/v1", f"m@http://me:{KEY}@h/v1", f"m@http://h/v1?key={KEY}"]
)
def test_a_compatible_spec_that_is_none_is_refused_without_repeating_a_key(server: WireServer, spec: str) -> None:
    judge = make("openai-compatible", server)
    with pytest.raises(JudgeError, match="MODEL@URL") as caught:
        type(judge)(spec, judge.config, judge._context)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("name", ["openai", "anthropic"])
def test_an_address_belongs_to_a_compatible_server(server: WireServer, name: str) -> None:
    with pytest.raises(JudgeError, match=f"{name} takes no address: openai-compatible:m@URL") as caught:
        make(name, server, f"m@http://me:{KEY}@h/v1")
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [f"https://me:{KEY}@proxy/v1", f"https://proxy/v1?api-key={KEY}", f"https://p/v1#{KEY}", f"https://p/{KEY}/v1"],
)
def test_a_url_with_a_key_in_it_is_refused_without_repeating_it(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("recipe.yaml").write_text(f"extends: toy\nopenai: {{base_url: '{url}'}}\n")
    for options in (
        ["--set", f"openai.base_url={url}"],
        ["--judge", f"openai-compatible:llama3@{url}"],
        ["--judge", f"light=openai-compatible:llama3@{url}"],
        ["--judge", f"openai-compatible:llama3@{url}", "--set", f"judge=openai-compatible:other@{url}"],
        ["--price", f"openai-compatible:llama3@{url}=1/2"],
        ["--recipe", "recipe.yaml"],
    ):
        with pytest.raises(SystemExit) as ended:
            main(["cost", *options])
        said = capsys.readouterr()
        assert ended.value.code == 1, options
        assert KEY not in said.err + said.out, options


def test_a_long_name_in_the_path_of_a_url_is_no_key(capsys: pytest.CaptureFixture[str]) -> None:
    url = "https://mine.openai.azure.com/openai/deployments/gpt-4o-2024-08-06/v1"
    others = (
        "https://h/3f2504e0-4f89-11d3-9a0c-0305e82c3301/v1",
        "https://gateway.ai.cloudflare.com/v1/0123456789abcdef0123456789abcdef/mine/openai",
        "https://h/desk-2024abcdefghijklmnop/sk-SK/v1",
    )
    roles = ("strong", "light", "completion")
    judges = [f"{role}=openai-compatible:m@{other}" for role, other in zip(roles, others, strict=True)]
    options = [option for judge in judges for option in ("--judge", judge)]
    with pytest.raises(SystemExit) as ended:
        main(["cost", "--judge", "openai:gpt-4.1", *options, "--set", f"openai.base_url={url}", "--allow-degraded"])
    said = capsys.readouterr()
    assert ended.value.code in (0, None), said.err
    for other in others:
        assert PLUGINS.get("judges", "openai").settings({"base_url": other}).base_url == other


def test_a_judge_without_a_model_says_how_to_name_one(server: WireServer) -> None:
    judge = make("openai", server)
    with pytest.raises(JudgeError, match="openai:MODEL"):
        type(judge)("", judge.config, judge._context)
