"""`afarm judged` on the toy recipe against a server, killed by SIGKILL: it goes on, and buys nothing twice."""

from __future__ import annotations

import json
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import judged_method  # noqa: F401  (here, so that the forks need not load torch)
import pytest
from forked import forked
from plugin_site import installed
from wire_server import Hang, WireServer, answer_in_form

from afarm.cli import main
from afarm.results import Store

STEPS, PROMPTS, RESPONSES = 3, 3, 3


def train(directory: str, url: str) -> dict[str, Any]:
    """Train where `directory` is, and return the content of the policy, the summary and what was bought."""
    judge = f"openai-compatible:m@{url}"
    settings = [f"judged.max_steps={STEPS}", f"judged.prompts={PROMPTS}", f"judged.num_generations={RESPONSES}"]
    settings += ["start=model", "rows.unlabeled=12", "openai-compatible.max_retries=0"]
    arguments = [word for setting in settings for word in ("--set", setting)]
    money = ["--price", f"{judge}=10/30", "--budget", "1", "--max-concurrency", "1"]
    with suppress(SystemExit):
        main(["judged", *arguments, "--judge", judge, *money, "--output-dir", directory])
    [artifact] = [artifact for artifact in Store(Path(directory)).all() if artifact.stage == "train"]
    return {"content": artifact.content, "summary": artifact.meta["summary"], "spend": artifact.meta["spend"]}


def questions(server: WireServer) -> Counter[str]:
    return Counter(json.dumps(body["messages"]) for body in server.bodies)


def test_killed_by_a_signal_and_resumed_it_buys_and_learns_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in installed(tmp_path / "site", "judged_method"):
        monkeypatch.syspath_prepend(path)
    monkeypatch.setattr("afarm.judging.ledger.LIVE_SECONDS", 0.5)  # here, only the dead are silent
    answer = threading.Event()
    with forked(train, 3) as [straight, killed, resumed]:
        with WireServer(answer_in_form) as server:
            straight.begin(str(tmp_path / "straight"), server.openai_url)
            expected, needed = straight.result(), questions(server)
        with WireServer(answer_in_form) as server:
            half = needed.total() // 2
            server.script(*[None] * half, Hang())
            server.hung = lambda received: answer.set()
            killed.begin(str(tmp_path / "killed"), server.openai_url)
            assert answer.wait(120)
            killed.kill()
            resumed.begin(str(tmp_path / "killed"), server.openai_url)
            found, asked = resumed.result(), questions(server)
    assert found == expected
    assert (asked - needed).total() == 1, "the question that hung when it was killed is asked again, and no other"
    summary = expected["summary"]
    assert summary["judge/rank"] == summary["judge/criticise"] == STEPS * PROMPTS
    assert 0 < summary["judge/rate"] <= STEPS * PROMPTS * RESPONSES
    assert (
        expected["spend"]["calls"] == needed.total() > sum(summary[f"judge/{k}"] for k in ("rate", "rank", "criticise"))
    )
