"""Judge LLMs that answer the instructions themselves, as systems beside the methods."""

from __future__ import annotations

import pytest
from light_farm import Make
from light_plugin import RAN, WritingJudge

from afarm.cli.stage_lines import in_short
from afarm.core.errors import BudgetError, ConfigError, PluginError
from afarm.experiment.dry_run import plan_run


@pytest.fixture(autouse=True)
def nothing_asked() -> None:
    WritingJudge.asked.clear()


def test_a_judge_llm_answers_every_instruction_under_its_own_name(farm: Make) -> None:
    outputs = farm().outputs("writing:9")
    assert [row.instruction.instruction for row in outputs] == [f"evaluation {i}" for i in range(10)]
    assert {row.generator for row in outputs} == {"writing:9"}
    assert [len(row.output.split()) for row in outputs] == [0] + [9] * 9
    assert RAN == [], "nothing is trained for it"


def test_answers_without_a_text_are_counted_and_shown(farm: Make) -> None:
    one = farm()
    one.outputs("writing:9")
    summary = one.workspace.history["outputs writing:9"].artifact.meta["summary"]
    assert (summary["rows"], summary["empty"], summary["refused"]) == (10, 1, 0)
    assert in_short(summary).endswith("empty 1")


def test_it_is_told_how_long_its_answers_may_be(farm: Make) -> None:
    farm("answers.max_characters=500", "answers.max_tokens=77").outputs("writing:9")
    request = WritingJudge.asked[1]
    assert [(turn.role, turn.content) for turn in request.messages] == [
        ("system", "You are a helpful assistant. Your whole answer must be shorter than 500 characters."),
        ("user", "evaluation 1"),
    ]
    assert (request.temperature, request.max_tokens) == (0.7, 77)


def test_a_model_that_only_completes_texts_gets_the_same_as_a_text(farm: Make) -> None:
    farm().outputs("writing:text3")
    request = WritingJudge.asked[1]
    assert request.messages == ()
    assert request.prompt.endswith("User: evaluation 1\n\nAssistant:")
    assert request.prompt.startswith("System: You are a helpful assistant.")


def test_it_is_evaluated_as_a_method_is_and_asked_once(farm: Make) -> None:
    assert farm().evaluate("writing:40").win_rate == 90, "40 words beat every sample, no words lose"
    assert farm().evaluate("writing:40").win_rate == 90
    assert len(WritingJudge.asked) == 10


def test_another_prompt_or_limit_is_another_answer(farm: Make) -> None:
    farm().outputs("writing:9")
    farm("answers.max_characters=500").outputs("writing:9")
    farm("answers.temperature=0.0").outputs("writing:9")
    assert len(WritingJudge.asked) == 30


def test_what_it_will_cost_is_counted_before_it_is_asked(farm: Make) -> None:
    planned = {stage.label: stage for stage in plan_run(farm().workspace, "writing:9")}
    assert planned["outputs writing:9"].calls == 10
    assert planned["outputs writing:9"].most_dollars == pytest.approx(0.1)
    assert WritingJudge.asked == []
    farm().outputs("writing:9")
    again = {stage.label: stage for stage in plan_run(farm().workspace, "writing:9")}
    assert again["outputs writing:9"].reused


def test_answers_are_within_the_budget_and_kept(farm: Make) -> None:
    with pytest.raises(BudgetError):
        farm(budget=0.055, max_concurrency=1).outputs("writing:9")
    assert len(WritingJudge.asked) == 5
    farm(budget=1.0).outputs("writing:9")
    assert len(WritingJudge.asked) == 10


def test_a_formula_and_an_unknown_judge_are_refused(farm: Make) -> None:
    with pytest.raises(ConfigError, match="a formula that writes no answers"):
        farm().outputs("offline:words")
    with pytest.raises(PluginError, match=r"unknown judge .writting."):
        farm().outputs("writting:9")
