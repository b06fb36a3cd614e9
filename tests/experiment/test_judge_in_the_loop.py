"""A method with a judge in the loop: estimated, capped, counted, bought once, and refused where nobody would answer."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from light_farm import RECIPE, LightBackend, Make, light_farm
from light_plugin import RAN, Asks, CountingJudge, WordPolicy

from afarm.core.errors import BudgetError, ConfigError, TrainingError
from afarm.core.judge import ChatRequest, Completion
from afarm.experiment.annotation import OnlineJudge, find_stand_in
from afarm.experiment.components import Components
from afarm.experiment.dry_run import over_budget, plan_run
from afarm.experiment.farm import Farm
from afarm.experiment.process_info import ProcessInfo
from afarm.judging import accounting
from afarm.judging.prompt_annotator import render

QUESTIONS = 3 * 3 * 12
"""Of three kinds, in three steps, about each of twelve instructions."""


@pytest.fixture
def bought(monkeypatch: pytest.MonkeyPatch) -> list[ChatRequest]:
    """What the counting judge is sent. Criticisms of the second step are empty."""
    sent: list[ChatRequest] = []

    async def complete(self: CountingJudge, request: ChatRequest) -> Completion:
        sent.append(request)
        text = render([True] * len(request.comparisons), request.answer_format, request.labels)
        silent = request.answer_format == "critique" and request.comparisons[0].first.startswith("2")
        return Completion("" if silent else text, 100, 10, price=0.001)

    monkeypatch.setattr(CountingJudge, "complete", complete)
    return sent


def trained(farm: Farm) -> tuple[float, dict[str, float]]:
    """The policy's skill, and the summary of the stage."""
    policy = farm.train("asks")
    assert isinstance(policy, WordPolicy)
    return policy.skill, dict(farm.workspace.history["train asks"].artifact.meta["summary"])


def test_what_is_asked_is_estimated_accounted_for_and_counted(farm: Make, bought: list[ChatRequest]) -> None:
    one = farm(method="asks", budget=9.0)
    [planned] = [stage for stage in plan_run(one.workspace, "asks") if stage.label == "train asks"]
    assert planned.calls == QUESTIONS
    text, length, _ = find_stand_in(one.workspace, one.workspace.config.evaluate.max_new_tokens)
    judge = OnlineJudge(one.workspace, "asks", one.workspace.components.method("asks"))
    splits = {name: one.workspace.data.instructions(name) for name in ("unlabeled", "validation")}
    shown = {pair.first for request in judge.plan_requests(splits) for pair in request.comparisons}
    assert {first.rpartition(" ")[0] for first in shown} == {text}, "as long as the data's"
    assert planned.unwritten == length
    assert planned.asks_less_by == ("rows.unlabeled",)
    assert "of the rows (rows.unlabeled" in over_budget([planned], 0.0001, 0.0, "evaluation") or planned.dollars is None
    _, summary = trained(one)
    assert len(bought) == QUESTIONS + 12, "the criticisms that were empty are asked for once more"
    assert summary["judge/rate"] == summary["judge/rank"] == summary["judge/criticise"] == 36
    assert summary["judge/rate unreadable"] == summary["judge/rank unreadable"] == 0
    assert summary["judge/criticise unreadable"] == 12
    assert one.workspace.history["train asks"].artifact.meta["spend"]["calls"] == len(bought)
    accounts = {
        account.name: account.answers for account in accounting.accounts(one.workspace.judges.ledger, "annotator")
    }
    assert accounts == {"asks:rate": 36, "asks:rank": 36, "asks:criticise": 48}


def test_after_a_failure_training_goes_on_and_buys_nothing_twice(
    farm: Make, tmp_path: Path, bought: list[ChatRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    straight = trained(light_farm(tmp_path / "straight", method="asks", budget=9.0))
    needed = len(bought)
    bought.clear()
    with monkeypatch.context() as patched:
        patched.setattr(Asks, "dies_after", 2)
        with pytest.raises(TrainingError, match="NaN at step 2"):
            farm(method="asks", budget=9.0).train("asks")
    assert 0 < len(bought) < needed
    assert trained(farm(method="asks", budget=9.0)) == straight, "also the counts"
    assert len(bought) == needed


def test_the_budget_is_kept_and_a_larger_one_goes_on(farm: Make, bought: list[ChatRequest]) -> None:
    with pytest.raises(BudgetError, match=r"the budget of \$0\.05 is reached"):
        farm(method="asks", budget=0.05).train("asks")
    assert len(bought) == 50
    trained(farm(method="asks", budget=0.2))
    assert len(bought) == QUESTIONS + 12


PAID = "openai-compatible:m@http://127.0.0.1:9"
NO_CAP = "while it trains, and nothing caps what that costs: add --budget DOLLARS"
TOLD = {
    "nobody": ({}, {}, "no judge is named, and no formula decides real text unless you say so; add one of:"),
    "none in the role": ({"light": "counting"}, {}, "no judge answers for the role 'strong'"),
    "one that compares": ({"strong": "fitted"}, {}, "asks a judge about single outputs, and fitted:"),
    "no cap": ({"*": "counting"}, {}, f"method 'asks' asks counting {NO_CAP}. With --dry-run the same command says"),
    "no price": ({"strong": PAID}, {}, f"{NO_CAP}, and --price {PAID}=INPUT/OUTPUT (0/0 if it costs nothing)"),
    "a cap and no price": ({"strong": PAID}, {"budget": 1.0}, f"the price of {PAID} is unknown, so a budget cannot be"),
}
FORMULAS = ("annotate.annotator=reward:text_utility", "evaluate.annotator=reward:text_utility")
"""Annotators that ask nobody."""


@pytest.mark.parametrize("case", TOLD)
def test_without_a_judge_or_a_cap_on_a_paid_one_nothing_is_made(
    case: str, farm: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge, choices, problem = TOLD[case]
    monkeypatch.setitem(RECIPE, "judge", judge)
    RAN.clear()
    with pytest.raises(ConfigError, match=re.escape(problem)) as caught:
        farm(*FORMULAS, method="asks", **choices)
    assert not RAN
    assert len(caught.value.problems) == 1
    assert (f"and {QUESTIONS} questions (at most $" in str(caught.value)) == (case == "nobody"), "with their price"


def test_a_method_that_is_named_later_is_refused_too(farm: Make) -> None:
    one = farm(*FORMULAS, method="nudge")
    RAN.clear()
    for make in (one.train, one.outputs, one.evaluate):
        with pytest.raises(ConfigError, match=re.escape(f"method 'asks' asks counting {NO_CAP}")):
            make("asks")
    assert not RAN


def test_what_costs_nothing_needs_no_budget(farm: Make, bought: list[ChatRequest]) -> None:
    farm(*FORMULAS, method="asks", judge={"strong": PAID}, price={PAID: "0/0"})
    farm(method="online")
    assert not bought, "a method without a judge of its own needs none either"


def test_the_judge_is_in_the_record_and_in_the_key_of_methods_that_ask_one(
    farm: Make, bought: list[ChatRequest]
) -> None:
    keys = {}
    for spec in ("counting", "counting:other"):
        one = farm(*FORMULAS, method="asks", budget=9.0, judge={"strong": spec})
        one.train("asks")
        keys[spec] = one.workspace.history["train asks"].artifact.key
        assert one.workspace.judges.asked["method asks"] == {"strong"}
        assert [judge.identity for judge in one.workspace.judges.answering().values()] == [f"counting:{spec[9:]}"]
    assert len({*keys.values()}) == 2
    assert "judge" in one.workspace.history["train asks"].artifact.key_fields
    one.train("nudge")
    assert "judge" not in one.workspace.history["train nudge"].artifact.key_fields, "keys of others stay"


class SharedBackend(LightBackend):
    """What two threads that play two processes have in common."""

    session = "this launch"
    meeting = threading.Barrier(2)

    def barrier(self) -> None:
        self.meeting.wait(300)


def test_all_processes_get_what_the_first_is_answered(
    tmp_path: Path, bought: list[ChatRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Asks, "steps", 1)
    straight, summary = trained(light_farm(tmp_path / "alone", method="asks", budget=9.0))
    needed = len(bought)
    monkeypatch.setattr(Components, "backend", property(lambda self: SharedBackend(WordPolicy)))
    found: list[float] = []
    whole = Asks.train

    def train(self: Asks, inputs, context):  # type: ignore[no-untyped-def]
        policy = whole(self, inputs, context)
        found.append(policy.skill)  # type: ignore[attr-defined]
        return policy

    monkeypatch.setattr(Asks, "train", train)
    farms = [
        light_farm(tmp_path / "two", method="asks", budget=9.0, process_info=ProcessInfo(rank, 2)) for rank in range(2)
    ]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda farm: farm.train("asks"), farms))
    assert found == [straight] * 2
    assert len(bought) == 2 * needed
    assert farms[1].workspace.judges.spend is None, "it has asked no judge"
    assert dict(farms[0].workspace.history["train asks"].artifact.meta["summary"]) == summary
    farms[0].close()
