"""Two sets of outputs compared apart from any run: stored, reused, on an account of their own."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from evaluator_directories import weighted, write
from light_farm import Make
from light_plugin import CountingJudge

from afarm import compare_outputs
from afarm.core.errors import BudgetError, ConfigError, DataError
from afarm.core.judge import Capabilities, ChatRequest, Completion
from afarm.core.records import Instruction, Output, Pair
from afarm.evaluation.matching import STRICT, MatchPolicy
from afarm.experiment import preflight
from afarm.experiment.comparison.outputs import OutputComparison
from afarm.experiment.dry_run import PlannedStage, plan_stage
from afarm.experiment.farm import Farm
from afarm.experiment.result import Result, read_result
from afarm.experiment.run_record import record, record_comparison
from afarm.judging.ledger import Ledger
from afarm.storage.rows import read_preferences, read_rows

JUDGED_BY = "evaluate.annotator=chatgpt_1"


def compared(
    farm: Farm,
    rows: Sequence[Output],
    reference: Sequence[Output],
    annotator: str | None = None,
    match_policy: MatchPolicy = STRICT,
) -> OutputComparison:
    return OutputComparison.of(farm.workspace, rows, reference, annotator, match_policy)


def compare(farm: Farm, rows: Sequence[Output], reference: Sequence[Output], **how: Any) -> Result:
    return compare_outputs(rows, reference, farm=farm, **how)


def outputs(generator: str, texts: Sequence[str]) -> list[Output]:
    return [Output(Instruction(f"i{n}"), text, generator) for n, text in enumerate(texts)]


MINE = outputs("mine", ["word word", "word word", "word", "equal"])
THEIRS = outputs("theirs", ["word", "word", "word word", "equal"])


@pytest.fixture
def without_logit_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which chatgpt_1 asks for."""
    monkeypatch.setattr(CountingJudge, "capabilities", Capabilities(chat=True, completion=True))


def test_a_farm_is_compared_with_as_it_is(farm: Make) -> None:
    with pytest.raises(ConfigError, match="the farm has its own seed; leave it out"):
        compare_outputs(MINE, THEIRS, farm=farm(), seed=3)
    with pytest.raises(ConfigError, match="2 problems") as refused:
        compare_outputs(MINE, THEIRS, farm=farm(), recipe="toy", output_dir="elsewhere")
    assert [problem.split("its own ")[1] for problem in refused.value.problems] == [
        "recipe; leave it out",
        "output_dir; leave it out",
    ]


BY_PLACE = "the judge goes by place: it chose the output shown first {} % of {} times"
TURNED = "the other order of the outputs turned the verdict on 30 of 30 pairs: those tell nothing"


@pytest.mark.parametrize(
    ("probability", "settings", "flags"),
    [
        (None, [], [BY_PLACE.format(100, 30)]),
        (None, ["pool.both_orders=true"], [BY_PLACE.format(100, 60), TURNED]),
        (0.98, [], [BY_PLACE.format(99, 30)]),
        (0.98, ["alpaca_eval.both_orders=true"], [BY_PLACE.format(99, 60), TURNED]),
        (0.0098, [], ["in 30 of 30 answers all tokens of a verdict together had less than half of the probability"]),
    ],
)
def test_a_judge_that_goes_by_place_or_hardly_judges_is_flagged_in_the_result(
    farm: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    probability: float | None,
    settings: list[str],
    flags: list[str],
) -> None:
    """The light judge finds the first output better if none has more words."""
    mine, theirs = (outputs(name, [f"{name} {'word ' * (n % 7)}{n}" for n in range(30)]) for name in ("mine", "theirs"))
    annotator = "chatgpt_1"
    if probability is not None:
        both = {"m": math.log(probability), "M": math.log(0.01)}

        async def weigh(self: CountingJudge, request: ChatRequest) -> Completion:
            return Completion("m", 100, 1, price=0.001, logprobs=(both,))

        monkeypatch.setattr(CountingJudge, "complete", weigh)
        monkeypatch.setattr(CountingJudge, "capabilities", Capabilities(chat=True, logit_bias=True, logprobs=True))
        annotator = f"alpaca_eval:{write(tmp_path, {'weighted': weighted()})}"
    else:
        settings = [setting.replace("pool", annotator) for setting in settings]
    result = compare(farm(*settings), mine, theirs, annotator=annotator)
    own = [flag for flag in result.flags if "same words" not in flag]
    assert [flag.partition(": the judge was")[0] for flag in own] == flags
    assert result.to_dict()["flags"] == list(result.flags)
    assert own[0] in repr(result)


def test_a_judge_without_the_log_probabilities_that_a_prompt_reads_is_named(
    farm: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CountingJudge, "capabilities", Capabilities(chat=True, logit_bias=True, logprobs=True))
    monkeypatch.setattr("light_plugin.render", lambda *given: "m")
    annotator = f"alpaca_eval:{write(tmp_path, {'weighted': weighted()})}"
    with pytest.raises(DataError, match=r"3 of 3 answers .* log-probabilities .*--set VENDOR.capab"):
        compare(farm(), MINE[:3], THEIRS[:3], annotator=annotator)


def test_any_text_is_judged_without_a_farm_by_the_judge_that_is_named(tmp_path: Path) -> None:
    long = outputs("long", ["A herring swims in the sea.", "Blue, as the sky is."])
    short = outputs("short", ["x", "x"])
    for annotator in ({}, {"annotator": "chatgpt_1"}):
        with pytest.raises(ConfigError, match=r'(?s)no judge is named.*judge="openai:gpt-4o".*for 2 pairs'):
            compare_outputs(long, short, **annotator, output_dir=tmp_path / "new")
    assert not (tmp_path / "new").exists()
    result = compare_outputs(long, short, annotator="chatgpt_1", judge="offline", output_dir=tmp_path)
    assert (result.system, result.judged_by) == ("long", "the formula offline:text_utility")
    assert {row["judged_by"] for row in result.table_rows()} == {result.judged_by} == {result.to_dict()["judged_by"]}
    assert f"judged by {result.judged_by}" in repr(result)
    assert result.win_rate > 50
    assert {row.preference.outcome for row in result.judgements["short"]} == {"decided"}


# ----------------------------------------------------------------------------------------------- made once, and kept


def test_a_comparison_is_stored_whole_and_reused(farm: Make) -> None:
    one = farm(JUDGED_BY)
    made = compared(one, MINE, THEIRS).run()
    assert not made.reused
    rows = read_preferences(made.artifact.path / "judgements.jsonl")
    assert [(row.pair.output_2, row.p2, row.annotator) for row in rows] == [
        *(("word word", 1.0, "chatgpt_1"), ("word word", 1.0, "chatgpt_1"), ("word", 0.0, "chatgpt_1")),
        ("equal", None, "chatgpt_1"),
    ]
    (found,) = read_rows(made.artifact.path / "results.jsonl")
    assert (found["system"], found["reference"], found["degraded"]) == ("mine", "theirs", {})
    assert (found["metrics"]["win_rate"], found["metrics"]["n_draws"], found["metrics"]["n_identical"]) == (62.5, 1, 1)

    again = farm(JUDGED_BY, "max_concurrency=2")
    assert compared(again, MINE, THEIRS).run().reused
    assert compare(again, MINE, THEIRS) == read_result("mine", [made.artifact])
    assert compare(again, MINE, THEIRS).win_rate == 62.5
    assert CountingJudge.asked == 3


def test_other_rows_or_another_judgement_is_another_comparison(farm: Make) -> None:
    compare(farm(JUDGED_BY), MINE, THEIRS)
    others = {
        "rows": compared(farm(JUDGED_BY), [*MINE[:3], Output(Instruction("i3"), "more", "mine")], THEIRS),
        "reference": compared(farm(JUDGED_BY), MINE, outputs("theirs", ["word", "word", "word", "equal"])),
        "annotator": compared(farm(JUDGED_BY), MINE, THEIRS, "chatgpt_2"),
        "judge": compared(farm(JUDGED_BY, "judge.*=counting:other"), MINE, THEIRS),
        "noise": compared(farm(JUDGED_BY, "evaluate.label_noise=0.2"), MINE, THEIRS),
        "seed": compared(farm(JUDGED_BY, "seed=7"), MINE, THEIRS),
        "setting": compared(farm(JUDGED_BY, "chatgpt_1.votes=3"), MINE, THEIRS),
    }
    first = compared(farm(JUDGED_BY), MINE, THEIRS).name
    assert first.startswith("evaluate-mine-vs-theirs-chatgpt_1-seed42-")
    assert len({first, *(other.name for other in others.values())}) == len(others) + 1
    for what, other in others.items():
        assert not other.run().reused, what


def test_what_changes_no_result_leaves_the_name_as_it_is(farm: Make) -> None:
    names = {
        compared(farm(JUDGED_BY, *settings), MINE, THEIRS).name
        for settings in ((), ("openai.timeout=5",), ("budget=3",), ("max_concurrency=2",), ("nudge.skill=0.1",))
    }
    assert len(names) == 1


def test_another_version_of_afarm_judges_anew_on_the_same_account(farm: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compared(farm(JUDGED_BY), MINE, THEIRS)
    first.run()
    monkeypatch.setattr("afarm.experiment.workspace.code_identity", lambda stage: "another version")
    next_one = compared(farm(JUDGED_BY), MINE, THEIRS)
    assert next_one.name == first.name
    assert not next_one.run().reused


def test_names_from_a_file_are_safe_in_a_path(farm: Make) -> None:
    hostile = outputs("../../é\n" + "x" * 300, [row.output for row in MINE])
    name = compared(farm(JUDGED_BY), hostile, THEIRS).name
    assert name.isascii()
    assert len(name) < 200
    assert not set("/\n") & set(name)
    of_a_path = outputs("alpaca_eval:../checkouts/alpaca_eval/evaluators_configs/weighted_gpt4", ["word"] * 4)
    assert compared(farm(JUDGED_BY), of_a_path, THEIRS).name.startswith("evaluate-weighted_gpt4-vs-theirs-")


def test_comparisons_of_one_name_are_told_apart_and_leave_the_run_alone(farm: Make) -> None:
    one = farm(JUDGED_BY)
    one.evaluate()
    stages = list(one.workspace.history)
    assert compare(one, MINE, THEIRS).win_rate == 62.5
    assert compare(one, outputs("mine", ["word"] * 3 + ["equal"]), THEIRS).win_rate == 25.0 + 12.5
    assert list(one.workspace.history) == stages


def test_evaluators_that_need_more_than_judgements_are_left_out(farm: Make) -> None:
    one = farm(JUDGED_BY, "evaluate.evaluators=[reward]")
    assert [e.evaluator for _, e in compare(one, MINE, THEIRS).evaluations] == ["win_rate"]


def test_outputs_that_do_not_match_are_refused_before_anything_is_asked(farm: Make) -> None:
    with pytest.raises(DataError, match="do not match the reference"):
        compare(farm(JUDGED_BY), MINE, THEIRS[:3])
    with pytest.raises(DataError, match="no outputs to compare"):
        compare(farm(JUDGED_BY), [], [])
    assert CountingJudge.asked == 0


def test_rows_that_do_not_fit_are_left_out_or_lost_where_that_is_asked_for(farm: Make) -> None:
    one, part = farm(JUDGED_BY), outputs("part", ["word word", "word word"])
    assert compare(one, part, THEIRS, match_policy=MatchPolicy("skip")).win_rate == 100.0
    assert compare(one, part, THEIRS, match_policy=MatchPolicy("loss")).win_rate == 50.0
    assert CountingJudge.asked == 2
    whole, skipped = (compared(one, MINE, THEIRS, match_policy=j) for j in (STRICT, MatchPolicy("skip")))
    assert whole.name == skipped.name, "where all rows fit, the policy changes nothing"


# ------------------------------------------------------------------------------------------------- money, and looks


def test_each_comparison_has_a_budget_and_an_account_of_its_own(farm: Make) -> None:
    texts = [f"word {n}" for n in range(6)]
    mine, other, theirs = outputs("mine", texts), outputs("other", [t + " x" for t in texts]), outputs("t", ["a"] * 6)
    for rows in (mine, other):
        with pytest.raises(BudgetError):
            compare(farm(JUDGED_BY, budget=0.003), rows, theirs)
    assert CountingJudge.asked == 6, "three each: what one has spent does not count against the other"
    with pytest.raises(BudgetError):
        compare(farm(JUDGED_BY, "openai.timeout=5", budget=0.005), mine, theirs)
    assert CountingJudge.asked == 8, "a setting that changes no result goes on with the same account"
    last = farm(JUDGED_BY)
    compare(last, mine, theirs)
    accounts = dict(last.workspace.judges.ledger.read("SELECT run, COUNT(*) FROM completions GROUP BY run"))
    assert accounts == {
        compared(farm(JUDGED_BY), mine, theirs).name: 6,
        compared(farm(JUDGED_BY), other, theirs).name: 3,
    }


def plan(comparison: OutputComparison) -> PlannedStage:
    [planned] = plan_stage(comparison.workspace, comparison.stage())
    return planned


def test_a_comparison_is_planned_from_its_own_prompts(farm: Make) -> None:
    planned = plan(compared(farm(JUDGED_BY), MINE, THEIRS))
    assert (planned.reused, planned.calls, planned.most_dollars) == (False, 3, pytest.approx(0.003))
    assert CountingJudge.asked == 0
    one = farm(JUDGED_BY)
    compare(one, MINE, THEIRS)
    one.close()
    one.workspace.store.ledger_path.unlink()
    Ledger(one.workspace.store.ledger_path).close()  # begun anew on purpose
    planned = plan(compared(farm(JUDGED_BY), MINE, THEIRS))
    assert (planned.reused, planned.calls) == (True, 0), "whatever the ledger holds"
    noisy = plan(compared(farm(JUDGED_BY, "evaluate.label_noise=0.5"), MINE, THEIRS))
    assert noisy.calls == 0, "a coin needs no call"
    other = plan(compared(farm(JUDGED_BY), MINE, THEIRS, "chatgpt_4"))
    assert other.calls == 3


def test_the_record_holds_the_comparison_and_nothing_of_the_recipe(farm: Make) -> None:
    one = farm(JUDGED_BY)
    comparison = compared(one, MINE, THEIRS)
    made = comparison.run()
    result = read_result("mine", [made.artifact])
    files = {"outputs": "a.json", "reference": "b.json"}
    run = record_comparison(comparison, made, result, files, "afarm evaluate", 1.0)
    assert (run["name"], run["files"], run["annotator"]) == (comparison.name, files, "chatgpt_1")
    assert [stage["stage"] for stage in run["stages"]] == ["compare mine with theirs"]
    assert (run["spend"]["calls"], run["headline"]["win_rate"]) == (3, 62.5)
    assert not {"model", "sample", "rows", "method"} & run["config"].keys()
    assert one.workspace.store.in_use() == {made.artifact.name}, "so that it is not collected"


# -------------------------------------------------------------------------------------------------------- degraded


@pytest.mark.usefixtures("without_logit_bias")
def test_what_a_judge_could_not_take_is_in_every_label_and_result(farm: Make) -> None:
    one = farm(JUDGED_BY, "allow_degraded=true")
    made = compared(one, MINE, THEIRS).run()
    rows = list(read_rows(made.artifact.path / "judgements.jsonl"))
    assert [row.get("degraded") for row in rows] == ["logit_bias"] * 3 + [None], "identical outputs asked for nothing"
    (found,) = read_rows(made.artifact.path / "results.jsonl")
    assert found["degraded"] == {"logit_bias": 3} == compare(one, MINE, THEIRS).degraded("theirs")
    assert made.artifact.meta["summary"]["degraded"] == {"logit_bias": 3}


@pytest.mark.usefixtures("without_logit_bias")
def test_a_runs_labels_and_results_say_so_as_well(farm: Make) -> None:
    one = farm(JUDGED_BY, "annotate.annotator=chatgpt_1", "allow_degraded=true")
    result = one.evaluate()
    run = json.loads((record(one.workspace, "nudge", result, "", 1.0).directory / "run.json").read_text())
    judged = {
        name: sum(row.preference.degraded == ("logit_bias",) for row in rows)
        for name, rows in (("training", one.annotate()), ("evaluation", result.judgements["sft"]))
    }
    assert judged["training"] > 0 < judged["evaluation"]
    summaries = {stage["stage"]: stage["summary"] for stage in run["stages"]}
    assert summaries["annotate"]["degraded"] == {"logit_bias": judged["training"]}
    assert [result["degraded"] for result in run["results"]] == [{"logit_bias": judged["evaluation"]}] * 2
    stored = one.workspace.history["evaluate nudge against sft"].artifact.path / "results.jsonl"
    assert [row["degraded"] for row in read_rows(stored)] == [{"logit_bias": judged["evaluation"]}] * 2


# ------------------------------------------------------------------------------------------------------ pairs alone


def test_annotators_are_not_asked_about_identical_outputs(farm: Make) -> None:
    one = farm("annotate.annotator=chatgpt_1")
    pairs = [Pair(Instruction("x"), "same", "same"), Pair(Instruction("y"), "word", "word word")]
    assert [(p.outcome, p.p2) for p in one.annotate_pairs(pairs)] == [("draw", None), ("decided", 1.0)]
    assert CountingJudge.asked == 1


def test_a_farm_that_only_compares_needs_neither_model_nor_data(farm: Make) -> None:
    without = farm(JUDGED_BY, "model=./nowhere", "rows.evaluation=99", checks=preflight.judging_checks())
    assert isinstance(without, Farm)
    assert compare(without, MINE, THEIRS).win_rate == 62.5


@pytest.mark.usefixtures("without_logit_bias")
def test_a_farm_that_only_compares_asks_nothing_of_who_labels_training_pairs(farm: Make) -> None:
    settings = ("evaluate.annotator=gpt4_3", "annotate.annotator=chatgpt_1")
    assert compare(farm(*settings, checks=preflight.judging_checks()), MINE, THEIRS).metric("n_total") == 4
