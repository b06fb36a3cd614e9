"""Batch endpoints: half the price, collected after a kill instead of bought again, and mixed with the ledger."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from places import SUPPORT
from scripted_judges import ScriptedJudge, question, questions

from afarm.core.errors import BudgetError, JudgeError
from afarm.core.judge import Capabilities, ChatRequest, Completion, Price
from afarm.judging.client import JudgeClient
from afarm.judging.ledger import Ledger


class Vendor(ScriptedJudge):
    """A judge with a batch endpoint that lives in a directory, and so outlives its processes.

    A batch is done at the `patience`th look. `fails` says which prompts it cannot answer.
    """

    capabilities = Capabilities(completion=True, batch=True)

    def __init__(self, directory: Path, patience: int = 2, fails: Callable[[str], bool] = lambda prompt: False):
        super().__init__(price=0.1, worst=0.1)
        self.directory = directory
        self.patience = patience
        self.fails = fails
        self.looks = 0

    def price(self) -> Price:
        return Price(1.0, 1.0)

    async def submit(self, requests: Sequence[ChatRequest]) -> str:
        batch_id = f"ticket-{len(list(self.directory.glob('ticket-*')))}"
        (self.directory / batch_id).write_text(json.dumps([request.prompt for request in requests]))
        return batch_id

    async def collect(self, batch_id: str) -> list[Completion | None] | None:
        self.looks += 1
        if self.looks < self.patience:
            return None
        prompts = json.loads((self.directory / batch_id).read_text())
        return [None if self.fails(p) else Completion(f"batched {p}", 10, 2, price=0.05) for p in prompts]


def submitted(directory: Path) -> list[list[str]]:
    return [json.loads(path.read_text()) for path in sorted(directory.glob("ticket-*"))]


def asker(judge: Vendor, ledger: Ledger, budget: float | None = None, batch_api: bool = True) -> JudgeClient:
    return JudgeClient(
        {"*": judge}, ledger, run="run", budget=budget, batch_api=batch_api, batch_poll_seconds=0.01, max_concurrency=4
    )


def test_what_the_ledger_lacks_goes_out_as_one_batch_and_comes_back_in_order(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        asker(Vendor(tmp_path), ledger, batch_api=False)(questions(3))
        judge = Vendor(tmp_path)
        ask = asker(judge, ledger)
        answers = ask(questions(600))
        assert [a.text for a in answers] == [
            *(f"echo q{i}" for i in range(3)),
            *(f"batched q{i}" for i in range(3, 600)),
        ]
        assert [len(batch) for batch in submitted(tmp_path)] == [597]
        assert judge.asked == []
        assert judge.looks == judge.patience
        assert (ask.spend.calls, ask.spend.dollars) == (597, pytest.approx(597 * 0.05))
        assert ledger.committed("run") == pytest.approx(3 * 0.1 + 597 * 0.05)
        assert ask(questions(600)) == answers
        assert len(submitted(tmp_path)) == 1


def test_what_a_batch_could_not_answer_is_asked_one_by_one(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        judge = Vendor(tmp_path, fails=lambda prompt: prompt in ("q1", "q4"))
        texts = [a.text for a in asker(judge, ledger)(questions(6))]
        assert texts == ["batched q0", "echo q1", "batched q2", "batched q3", "echo q4", "batched q5"]
        assert sorted(judge.asked) == ["q1", "q4"]


def test_what_a_batch_answers_is_counted_to_the_stage_that_asked(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        judge = Vendor(tmp_path, fails=lambda prompt: prompt == "q1")
        JudgeClient(
            {"*": judge}, ledger, run="run", batch_api=True, batch_poll_seconds=0.01, stage=lambda: "annotate/x"
        )(questions(6))
        spent = ledger.stage_spend("annotate/x")
        assert (spent["calls"], spent["dollars"]) == (6, pytest.approx(5 * 0.05 + 0.1))


def test_a_judge_without_a_batch_endpoint_is_asked_as_ever(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        ask = JudgeClient({"*": ScriptedJudge()}, ledger, batch_api=True)
        assert [a.text for a in ask(questions(3))] == ["echo q0", "echo q1", "echo q2"]


def test_a_batch_reserves_half_the_worst_price_and_stops_at_the_budget(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        judge = Vendor(tmp_path)
        with pytest.raises(BudgetError, match="--budget"):
            asker(judge, ledger, budget=0.52)(questions(20))
        assert sum(map(len, submitted(tmp_path))) == 10, "at 0.05 each"
        assert ledger.committed("run") == pytest.approx(0.5)
        assert len(asker(Vendor(tmp_path), ledger, budget=2.0)(questions(20))) == 20
        assert sum(map(len, submitted(tmp_path))) == 20


def test_a_pending_batch_counts_against_the_budget_and_can_be_forgotten(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        ledger.claim([("k", 0.25)], "run")
        ledger.submitted("t", "scripted", "run", [("k", question("q"), (), 0.25)])
        assert ledger.committed("run") == 0.25
        assert ledger.claim([("k", 0.25)], "run").pending == ["k"]
        assert ledger.forget_batch("t") == 1
        assert ledger.committed("run") == 0.25, "the vendor goes on answering, and charges"
        assert ledger.claim([("k", 0.25)], "run").granted == ["k"]
        assert ledger.committed("run") == 0.5


@pytest.mark.parametrize("charged", [False, True])
def test_a_refused_batch_gives_its_money_back_and_one_that_may_have_arrived_does_not(
    tmp_path: Path, charged: bool
) -> None:
    class Refusing(Vendor):
        async def submit(self, requests: Sequence[ChatRequest]) -> str:
            raise JudgeError("no batches today", charged=charged)

    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        with pytest.raises(JudgeError, match="no batches today"):
            asker(Refusing(tmp_path), ledger, budget=5)(questions(3))
        assert ledger.committed("run") == pytest.approx(3 * 0.05 if charged else 0)


def test_batched_answers_of_unknown_price_count_as_the_most_they_can_have_cost(tmp_path: Path) -> None:
    class Silent(Vendor):
        async def collect(self, batch_id: str) -> list[Completion | None] | None:
            return [Completion("a", price=None), None, Completion("c", price=0.01)]

    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        asker(Silent(tmp_path), ledger, budget=5)(questions(3))
        assert ledger.committed("run") == pytest.approx(0.05 + 0.1 + 0.01), "the second was asked for singly"


def test_a_batch_with_another_number_of_answers_is_an_error_and_stays_pending(tmp_path: Path) -> None:
    class Short(Vendor):
        async def collect(self, batch_id: str) -> list[Completion | None] | None:
            return [Completion("one")]

    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        with pytest.raises(JudgeError, match="1 answers to 3 requests"):
            asker(Short(tmp_path), ledger)(questions(3))
        assert [a.text for a in asker(Vendor(tmp_path), ledger)(questions(3))] == [f"batched q{i}" for i in range(3)]
        assert len(submitted(tmp_path)) == 1


KILLED = """
import os, sys
sys.path[:0] = sys.argv[1].split(os.pathsep)
from pathlib import Path
from scripted_judges import questions
from test_batch_api import Vendor, asker
from afarm.judging.ledger import Ledger

class Killed(Vendor):
    async def collect(self, batch_id):
        os._exit(9)

asker(Killed(Path(sys.argv[2])), Ledger(Path(sys.argv[2]) / "ledger.sqlite"))(questions(int(sys.argv[3])))
"""


@pytest.mark.parametrize("batch_api", [True, False])
def test_a_batch_that_is_pending_at_a_kill_is_collected_and_not_sent_again(tmp_path: Path, batch_api: bool) -> None:
    command = [sys.executable, "-c", KILLED, f"{Path(__file__).parent}{os.pathsep}{SUPPORT}", str(tmp_path)]
    assert subprocess.run([*command, "5"]).returncode == 9
    assert subprocess.run([*command, "5"]).returncode == 9, "it looks at the same batch again"
    assert [len(batch) for batch in submitted(tmp_path)] == [5]
    judge = Vendor(tmp_path)
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        # Others have been added meanwhile, and only some of the batch are asked for.
        asked = [*questions(3), question("new")]
        texts = [a.text for a in asker(judge, ledger, batch_api=batch_api)(asked)]
        assert texts[:3] == ["batched q0", "batched q1", "batched q2"]
        assert judge.asked == ([] if batch_api else ["new"])
        assert [len(batch) for batch in submitted(tmp_path)] == ([5, 1] if batch_api else [5])
        assert len(asker(ScriptedJudge(), ledger)(questions(5))) == 5, "all of the batch was stored"  # type: ignore[arg-type]
        assert ledger.committed("run") == pytest.approx(0.25 + (0.05 if batch_api else 0.1))
