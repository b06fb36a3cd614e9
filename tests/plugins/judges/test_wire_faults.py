"""What judges do when the wire fails: who is asked again and how often, what is an answer, and what users are told."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import formatdate
from pathlib import Path
from time import time

import pytest
from wire_judges import CLASSES, KEY, MODELS, WORTH, ask, chat, make, write_two_systems
from wire_server import Body, Drip, Drop, Hang, Status, Told, WireServer

from afarm.cli import main
from afarm.core.errors import JudgeError
from afarm.judging.client import JudgeClient
from afarm.judging.ledger import Ledger
from afarm.judging.rate_limit import Limiter, SlowDown
from afarm_plugins.judges.rate_headers import retry_after, seconds_until, wait_asked
from afarm_plugins.judges.vendor import VendorJudge

VENDORS = list(MODELS)
TRIES = 3  # the first and the two retries that `make` sets


@pytest.fixture(params=VENDORS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def judge(name: str, server: WireServer) -> VendorJudge:
    return make(name, server)


@pytest.fixture(autouse=True)
def _no_key_in_logs(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Of any test here, at the most talkative level."""
    caplog.set_level(logging.DEBUG)
    yield
    assert KEY not in caplog.text


def refused(judge: VendorJudge, *, quotes: str = KEY) -> str:
    """The message of the error that asking ends in. It holds no key, and neither does its traceback."""
    with pytest.raises(JudgeError) as caught:
        ask(judge, chat())
    shown = "".join(traceback.format_exception(caught.value))
    assert quotes not in shown
    assert "Bearer" not in shown
    assert judge.identity in shown
    return str(caught.value)


# ------------------------------------------------------------------------------------------- faults that are retried


@pytest.mark.parametrize(
    "fault",
    [
        Status(500),
        Status(503, retry_after_ms=None),
        Drop(),
        Drop(sent=40),
        Drop(sent=150),
        Body(b'{"choices": [{"message": {"content": "Outp'),
        Body(b""),
        Body(b"<html>Bad gateway</html>"),
        Body({}),
        Body([]),
        Body({"choices": [], "content": "Output (a)"}),
        Body({"error": {"message": "overloaded"}}),
    ],
    ids=str,
)
def test_a_fault_is_asked_about_again_and_the_answer_is_taken(
    server: WireServer, judge: VendorJudge, fault: Status | Drop | Body
) -> None:
    server.script(fault, fault)
    [answer] = ask(judge, chat())
    assert answer.text == "Output (a)"
    assert len(server.asked) == 3
    assert all(body == server.bodies[0] for body in server.bodies)


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (Status(500, "the server broke"), "failed 3 times (500: the server broke)"),
        (Drop(), "broke the connection off before a whole answer ("),
        (Drop(sent=150), "broke the connection off before a whole answer ("),
        (Body(b'{"choices": [{"mess'), "answered with an unreadable reply (no JSON: "),
        (Body({"choices": []}), "answered with an unreadable reply (no answer in "),
        (Body({"error": {"message": "model crashed"}}), "answered with an unreadable reply (model crashed), 3 times;"),
    ],
    ids=str,
)
def test_a_fault_that_stays_is_an_error_that_says_how_to_go_on(
    server: WireServer, judge: VendorJudge, fault: Status | Drop | Body, says: str
) -> None:
    server.script(*[fault] * TRIES)
    message = refused(judge)
    assert says in message
    assert "the same command goes on" in message
    assert len(server.asked) == TRIES


def test_a_hang_ends_with_the_timeout(server: WireServer, name: str) -> None:
    server.script(Hang(), Hang())
    message = refused(make(name, server, timeout=1, max_retries=1))
    assert "did not answer within 1 s, 2 times;" in message
    assert len(server.asked) == 2


def test_an_answer_that_drips_for_ever_ends_with_the_timeout_too(server: WireServer, name: str, tmp_path: Path) -> None:
    server.script(Drip(), Drip())
    judge = make(name, server, timeout=1, max_retries=1)
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        client = JudgeClient({"*": judge}, ledger, run="r")
        with pytest.raises(JudgeError, match=r"did not answer within 1 s, 2 times;"):
            client([chat()])
        client.close()
        assert len(server.asked) == 2
        worst = judge.worst_case_price(chat()) or 0.0
        assert ledger.committed("r") == pytest.approx(2 * worst), "each attempt may have been charged for"


def test_a_hang_is_asked_about_again(server: WireServer, name: str) -> None:
    server.script(Hang())
    assert ask(make(name, server, timeout=1), chat())[0].text == "Output (a)"


def test_a_server_that_is_not_there_is_named(name: str) -> None:
    with WireServer() as gone:
        judge = make(name, gone, max_retries=0)
    message = refused(judge)
    assert f"could not be reached at {judge.base_url} (" in message
    assert "), once; the same command" in message


# ------------------------------------------------------------------------------------------------------ slowing down


@pytest.mark.parametrize(
    ("fault", "seconds"),
    [
        (Status(429, retry_after_ms=None, retry_after="0"), 0.0),
        (Status(429, retry_after_ms=2), 0.002),
        (Status(429, retry_after_ms=None), None),
        (Status(529, retry_after_ms=3), 0.003),
        (Status(503, "overloaded", retry_after="4", retry_after_ms=None), 4.0),
        (Status(429, "daily limit", retry_after="7200", retry_after_ms=None), 7200.0),
    ],
    ids=str,
)
def test_a_refusal_is_handed_to_the_engine_at_once(
    server: WireServer, judge: VendorJudge, fault: Status, seconds: float | None
) -> None:
    server.script(fault)
    with pytest.raises(SlowDown, match="asks to slow down") as caught:
        ask(judge, chat())
    assert caught.value.seconds == pytest.approx(seconds)
    assert not caught.value.charged
    assert len(server.asked) == 1, "the SDK does not retry by itself"


def test_what_headers_allow_reaches_the_engine(server: WireServer, name: str) -> None:
    allowances: list[tuple[float, float]] = []
    judge = make(name, server, allowances=allowances)
    form = "anthropic-ratelimit-{}-{}" if name == "anthropic" else "x-ratelimit-{1}-{0}"
    for kind, limit, remaining in (("requests", "500", "499"), ("requests", "500", "30"), ("tokens", "9000", "214")):
        values = {"limit": limit, "remaining": remaining, "reset": "1m30s"}
        server.script(Told({form.format(kind, what): value for what, value in values.items()}))
        ask(judge, chat())
    assert allowances == [(float("inf"), 0.0), (30.0, 90.0), (2.0, 90.0)], "an answer takes 107 tokens"
    ask(judge, chat())
    assert len(allowances) == 3, "without headers nothing is told"


@pytest.mark.parametrize(
    ("reset", "seconds"),
    [
        ("1s", 1),
        ("6m0s", 360),
        ("120ms", 0.12),
        ("1h2m", 3720),
        ("1.5", 1.5),
        ("soon", None),
        ("", None),
        ("nan", None),
    ],
)
def test_the_time_of_a_reset_is_read_in_every_form(reset: str, seconds: float | None) -> None:
    assert seconds_until(reset) == (None if seconds is None else pytest.approx(seconds))
    date = seconds_until(datetime.fromtimestamp(time() + 60, UTC).isoformat())
    assert date == pytest.approx(60, abs=5)
    for unix in (f"{time() + 60:.0f}", f"{1000 * (time() + 60):.0f}"):
        assert seconds_until(unix) == pytest.approx(60, abs=5)
        assert retry_after({"retry-after": unix}) == pytest.approx(60, abs=5)
        assert wait_asked({"x-ratelimit-reset": unix}) == pytest.approx(60, abs=5)
    assert seconds_until(f"{time() - 60:.0f}") == 0.0


@pytest.mark.parametrize(
    ("seconds", "words"),
    [("100", "100 s"), ("900", "15 min"), ("12600", "3.5 h"), ("604800", "7 days"), ("999999999", "more than a year")],
)
def test_a_wait_is_told_as_people_say_it(server: WireServer, judge: VendorJudge, seconds: str, words: str) -> None:
    server.script(Status(429, "slow down", retry_after=seconds))
    assert f"asks to slow down and wait {words} (429" in refused(judge)


def test_a_reset_in_years_has_no_date() -> None:
    limiter = Limiter(4)
    limiter.allowed(0, 1e18, "x-ratelimit-reset-requests: 1e18")
    assert limiter.exhausted.startswith("allows no more requests for years (")


def test_nothing_left_is_waited_for_without_retry_after(server: WireServer) -> None:
    used_up = {"x-ratelimit-limit-requests": "60", "x-ratelimit-remaining-requests": "0"}
    assert wait_asked({**used_up, "x-ratelimit-reset-requests": "12s"}) == 12.0
    assert wait_asked({**used_up, "x-ratelimit-reset-requests": "12s", "retry-after": "3"}) == 3.0
    assert wait_asked({}) is None


def test_a_limit_that_is_reset_tomorrow_ends_the_run_and_nothing_is_lost(name: str, tmp_path: Path) -> None:
    form = "anthropic-ratelimit-requests-{}" if name == "anthropic" else "x-ratelimit-{}-requests"
    values = {form.format("limit"): "200", form.format("remaining"): "0", form.format("reset"): "24h"}
    with WireServer() as server, Ledger(tmp_path / "ledger.sqlite") as ledger:
        server.script(Told(values))
        limiter, judge = Limiter(4), make(name, server)
        judge._context = replace(judge._context, allowed=limiter.allowed)
        client = JudgeClient({"*": judge}, ledger, run="r", limiters={judge: limiter})
        with pytest.raises(JudgeError, match="allows no more requests until 20") as caught:
            client([chat(f"Question {i}?") for i in range(3)])
        assert f"{form.format('remaining')}: 0, {form.format('reset')}: 24h" in str(caught.value)
        assert "the same command goes on from here" in str(caught.value)
        assert "allows no more requests until 20" in limiter.state
        client.close()
        tomorrow = JudgeClient({"*": make(name, server)}, ledger, run="r")
        assert len(tomorrow([chat(f"Question {i}?") for i in range(3)])) == 3
        tomorrow.close()
        assert len(server.asked) == 3


def test_refused_requests_are_asked_again_until_all_are_answered(name: str, tmp_path: Path) -> None:
    """A server that takes few at once: what exceeds it is refused, nothing is answered twice."""
    at_once = 4
    with WireServer(latency=0.02) as server, Ledger(tmp_path / "ledger.sqlite") as ledger:
        server.refuses_beyond = at_once
        client = JudgeClient({"*": make(name, server)}, ledger, run="r", budget=5.0, max_concurrency=32)
        answers = client([chat(f"Question {i}?") for i in range(60)])
        client.close()
        assert [answer.text for answer in answers] == ["Output (a)"] * 60
        assert server.charged == client.spend.calls == 60
        assert len(server.asked) > 60
        assert ledger.committed("r") == pytest.approx(60 * WORTH)


@pytest.mark.parametrize(
    "fault",
    [
        Status(429, "You exceeded your current quota", error={"code": "insufficient_quota"}),
        Status(402, "Payment required"),
    ],
    ids=str,
)
def test_an_account_without_credit_is_not_asked_again(server: WireServer, judge: VendorJudge, fault: Status) -> None:
    server.script(fault)
    assert "no credit left" in refused(judge)
    assert len(server.asked) == 1


def test_retry_after_is_read_in_every_form() -> None:
    assert retry_after({"retry-after-ms": "1500", "retry-after": "9"}) == 1.5
    assert retry_after({"retry-after": "2.5"}) == 2.5
    assert retry_after({"retry-after": "-3"}) == 0.0
    assert retry_after({"retry-after": formatdate(time() - 60, usegmt=True)}) == 0.0
    hour = retry_after({"retry-after": formatdate(time() + 3600, usegmt=True)})
    assert hour is not None
    assert 3500 < hour <= 3600
    assert retry_after({"retry-after": "soon"}) is None
    assert retry_after({"retry-after": "nan"}) is None
    assert retry_after({"retry-after": "1e400"}) is None
    assert retry_after({}) is None


# -------------------------------------------------------------------------------------------------- faults that stop


@pytest.mark.parametrize("code", [401, 403])
def test_a_refused_key_names_the_variable_and_never_the_key(
    server: WireServer, judge: VendorJudge, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(judge.config.key_variable, KEY)
    starred = f"{KEY[:8]}******{KEY[-4:]}"
    server.script(Status(code, f"Incorrect API key provided: {starred}, sent as {KEY}."))
    message = refused(judge, quotes=KEY[:8])
    assert f"the key was refused ({code}: Incorrect API key provided: [key]" in message
    assert f"set {judge.config.key_variable}" in message
    assert len(server.asked) == 1


@pytest.mark.parametrize("key", ["abc", "x1"])
def test_a_key_of_a_few_characters_is_not_repeated_either(
    server: WireServer, judge: VendorJudge, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(judge.config.key_variable, key)
    server.script(Status(401, f"Incorrect API key ({key}): got 'Bearer {key}'"))
    message = refused(judge, quotes=f"({key})")
    assert key not in message.replace(judge.identity, "")


def test_a_model_that_is_gone_stops_at_once_and_names_model_and_setting(server: WireServer, judge: VendorJudge) -> None:
    server.script(Status(404, "The model does not exist", error={"code": "model_not_found"}))
    message = refused(judge)
    assert f"has no model '{judge.model}' (any more) (The model does not exist)" in message
    assert "--judge" in message
    assert len(server.asked) == 1


def test_a_server_without_such_a_page_may_have_its_api_elsewhere(server: WireServer) -> None:
    elsewhere = "or this is not where its API is (often …/v1)"
    server.script(Status(404, "Not Found"))
    assert elsewhere in refused(make("openai-compatible", server))
    named = make("openai-compatible", server)
    server.script(Status(404, f"model {named.model} not found"))
    assert elsewhere not in refused(named)


def test_a_bad_request_says_what_the_vendor_says_and_which_setting_mends_it(
    server: WireServer, judge: VendorJudge
) -> None:
    server.script(
        Status(400, "Unsupported parameter", error={"param": "temperature"}),
        Status(400, "top_logprobs: Extra inputs are not permitted"),
        Status(400, "Unsupported", error={"param": "response_format.json_schema"}),
        Status(413, "too large"),
    )
    message = refused(judge)
    assert "refused the request (400: Unsupported parameter)" in message
    option = f"leave it out with --set {judge.section}.capabilities"
    assert message.endswith(f"{option}.temperature=false --allow-degraded")
    assert refused(judge).endswith(f"{option}.logprobs=false --allow-degraded")
    assert refused(judge).endswith(f"{option}.schema=false")
    assert refused(judge).endswith("refused the request (413: too large)")
    assert len(server.asked) == 4


def test_what_is_printed_about_a_parameter_can_be_typed_and_goes_on(
    server: WireServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_two_systems(3)
    command = ["evaluate", "mine.json", "--reference", "theirs.json", "--annotator", "gpt4_4"]
    command += ["--judge", "openai:gpt-4o", "--set", f"openai.base_url={server.openai_url}"]
    server.script(*[Status(400, "Not supported", error={"param": "logit_bias"})] * 3)
    with pytest.raises(SystemExit):
        main(command)
    said = " ".join(capsys.readouterr().err.split()).partition("; 3 different requests were refused")[0]
    assert "logit_bias" in server.bodies[0]
    with pytest.raises(SystemExit) as ended:
        main([*command, *said[said.index("--set") :].split()])
    assert not ended.value.code
    assert len(server.asked) == 3 + 3
    assert all("logit_bias" not in body for body in server.bodies[3:])


@pytest.mark.parametrize(
    "fault",
    [
        Status(400, "The response was filtered", error={"code": "content_filter"}),
        Status(400, "Output blocked by content filtering policy"),
        Status(403, 'm requires moderation. Your input was flagged for "violence"'),
    ],
    ids=str,
)
def test_what_a_content_filter_turns_down_is_a_refusal_and_no_failure(
    server: WireServer, judge: VendorJudge, fault: Status
) -> None:
    server.script(fault)
    [answer] = ask(judge, chat())
    assert (answer.text, answer.finish_reason, answer.price) == ("", "content_filter", 0.0)
    assert len(server.asked) == 1


def test_a_long_message_is_cut_and_on_one_line(server: WireServer, judge: VendorJudge) -> None:
    server.script(Status(400, "no\n" * 5000))
    message = refused(judge)
    assert "\n" not in message
    assert len(message) < 600


# ----------------------------------------------------------------------------------------------------------- the key


@pytest.mark.parametrize("name", ["openai", "anthropic"])
def test_a_missing_key_is_found_before_anything_runs(
    server: WireServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = make(name, server)
    assert judge.check_access() == ()
    monkeypatch.delenv(judge.config.key_variable)
    [problem] = judge.check_access()
    assert f"set the environment variable {judge.config.key_variable}" in problem
    with pytest.raises(JudgeError, match=judge.config.key_variable):
        ask(judge, chat())
    assert server.received == []


def test_a_key_that_is_none_is_refused_without_repeating_it(
    server: WireServer, judge: VendorJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    for broken in (f"{KEY} {KEY}", f"{KEY}é", f"{KEY}\n{KEY}"):
        monkeypatch.setenv(judge.config.key_variable, broken)
        [problem] = judge.check_access()
        assert KEY not in problem
        with pytest.raises(JudgeError):
            ask(judge, chat())
    monkeypatch.setenv(judge.config.key_variable, f" {KEY}\n")
    assert judge.check_access() == ()
    assert ask(judge, chat())[0].text == "Output (a)"


def test_the_key_is_in_no_file_of_the_ledger(server: WireServer, judge: VendorJudge, tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        asker = JudgeClient({"*": judge}, ledger, run="r")
        assert [c.text for c in asker([chat("a"), chat("b")])] == ["Output (a)"] * 2
        server.script(*[Status(401, f"wrong key {KEY}")])
        with pytest.raises(JudgeError) as caught:
            asker([chat("c")])
        asker.close()
        assert KEY not in str(caught.value)
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert files
        assert all(KEY.encode() not in path.read_bytes() for path in files)


# ------------------------------------------------------------------------------------------------- with the engine


def test_a_failure_is_never_an_answer_and_what_was_answered_is_not_asked_again(
    server: WireServer, name: str, tmp_path: Path
) -> None:
    questions = [chat(f"Question {i}?") for i in range(12)]
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        server.script(*[None] * 5, Status(404, "no"))
        first = JudgeClient({"*": make(name, server)}, ledger, run="r", max_concurrency=3)
        with pytest.raises(JudgeError, match="no model"):
            first(questions)
        first.close()
        answered = first.spend.calls
        assert len(server.asked) == answered + 1
        second = JudgeClient({"*": make(name, server)}, ledger, run="r", max_concurrency=3)
        assert [c.text for c in second(questions)] == ["Output (a)"] * 12
        second.close()
    assert len(server.asked) == 12 + 1
    assert len({body["messages"][0]["content"] for body in server.bodies}) == 12


@pytest.mark.parametrize("code", [401, 404])
def test_what_stops_every_request_is_found_out_with_one(
    server: WireServer, name: str, tmp_path: Path, code: int
) -> None:
    questions = [chat(f"Question {i}?") for i in range(50)]
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        server.script(*[Status(code)] * 50)
        ask = JudgeClient({"*": make(name, server)}, ledger, run="r", max_concurrency=32)
        for count in (1, 2):
            with pytest.raises(JudgeError):
                ask(questions)
            assert len(server.asked) == count
        ask.close()


def test_many_requests_share_one_client(name: str) -> None:
    with WireServer(together=100) as server:
        judge = make(name, server, timeout=120)

        async def all_at_once() -> None:
            await asyncio.gather(*(judge.complete(chat(str(i))) for i in range(100)))
            client = judge._client
            await judge.complete(chat())
            assert judge._client is client
            await judge.close()
            assert client.is_closed()

        asyncio.run(all_at_once())
        assert server.most_in_flight == 100


def test_every_vendors_judge_is_tested_here() -> None:
    assert sorted(CLASSES) == sorted(VENDORS)
