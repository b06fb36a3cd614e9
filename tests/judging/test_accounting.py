"""What the ledger says about money."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from scripted_judges import ScriptedJudge, question

from afarm.core.judge import Completion, Judgement, JudgementKey
from afarm.judging.accounting import Account, accounts, export, summary
from afarm.judging.client import JudgeClient
from afarm.judging.ledger import Ledger


@pytest.fixture
def ledger(new_ledger: Callable[[], Path | str]) -> Ledger:
    """Run "one" buys 3 answers at 0.5 from a; "two" reuses 2 of them, and buys one of unknown price from b."""
    ledger = Ledger(new_ledger())
    a, b = ScriptedJudge("a", price=0.5, worst=0.5), ScriptedJudge("b", price=None, worst=None)
    JudgeClient({"*": a}, ledger, run="one")([question(f"q{i}") for i in range(3)])
    ask = JudgeClient({"*": a, "light": b}, ledger, run="two")
    ask([question("q0"), question("q1"), question("q9", "light")])
    return ledger


def test_spend_is_shown_by_run_judge_annotator_and_day_with_what_was_not_paid_again(ledger: Ledger) -> None:
    three, one = (3, 30, 6, 1.5), (1, 10, 2, 0.0)
    assert accounts(ledger, "run") == [Account("one", *three), Account("two", *one, unpriced=1, reused=2, saved=1.0)]
    assert accounts(ledger, "judge") == [Account("a", *three, reused=2, saved=1.0), Account("b", *one, unpriced=1)]
    everything = (4, 40, 8, 1.5, 1, 2, 1.0)
    assert accounts(ledger, "annotator") == [Account("someone", *everything)]
    assert accounts(ledger, "day") == [Account(time.strftime("%Y-%m-%d"), *everything)]


def test_a_run_that_only_reused_is_shown_as_well(ledger: Ledger) -> None:
    JudgeClient({"*": ScriptedJudge("a")}, ledger, run="three")([question("q2")])
    assert accounts(ledger, "run")[-1] == Account("three", reused=1, saved=0.5)


def test_judgements_that_are_recalled_save_the_answers_they_were_read_from(ledger: Ledger) -> None:
    ask = JudgeClient({"*": ScriptedJudge("a")}, ledger, run="four")
    (answer,) = ask([question("q0")])
    keys = [JudgementKey("x", f"pair {i}", "ab", 1) for i in range(5)]
    ask.learn({key: Judgement(1.0, "decided", answer.key) for key in keys})
    ask.recall(keys)
    found = {account.name: account for account in accounts(ledger, "run")}["four"]
    assert (found.reused, found.saved) == (2, 1.0), "once as an answer, and once as five judgements of one answer"


def test_what_may_still_be_charged_is_listed(ledger: Ledger) -> None:
    ledger.claim([("lost", 0.25)], "one")
    ledger.submitted("ticket", "a", "one", [("k1", question("x"), (), 0.5), ("k2", question("y"), (), 0.5)])
    found = summary(ledger)
    assert found["in_flight"] == {"requests": 1, "reserved": 0.25}
    (batch,) = found["batches"]
    assert (batch["ticket"], batch["judge"], batch["run"], batch["requests"], batch["reserved"]) == (
        *("ticket", "a", "one", 2),
        1.0,
    )
    assert json.loads(json.dumps(found)) == found


def test_every_answer_is_exported_with_what_was_asked(ledger: Ledger, tmp_path: Path) -> None:
    odd = Completion('a "quoted", text\nin two lines', key="odd", logprobs=({"m": -0.5},), degraded=("top_p",))
    ledger.resolve([(question("ü"), "a", odd)], "one")
    assert export(ledger, tmp_path / "all.jsonl") == 5
    rows = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    last = next(row for row in rows if row["key"] == "odd")
    assert (last["text"], last["logprobs"], last["degraded"]) == (odd.text, [{"m": -0.5}], ["top_p"])
    assert last["request"]["prompt"] == "ü"
    assert export(ledger, tmp_path / "all.csv") == 5
    with (tmp_path / "all.csv").open(newline="") as handle:
        table = list(csv.DictReader(handle))
    assert {row["key"] for row in table} == {row["key"] for row in rows}
    assert next(row for row in table if row["key"] == "odd")["text"] == odd.text
