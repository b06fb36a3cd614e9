"""The experiment from end to end with light parts: what runs, what is reused, and what a failure leaves."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import light_plugin
import pytest
from light_farm import Make, light_farm
from light_plugin import RAN, CountingJudge, WordPolicy, WordReward
from places import SUPPORT

from afarm.core.errors import BudgetError, DataError, TrainingError
from afarm.core.judge import ChatRequest, Completion
from afarm.core.records import Instruction, Output, Pair
from afarm.core.seeding import integer
from afarm.experiment.annotation import adjacent_pairs
from afarm.experiment.farm import Farm
from afarm.experiment.result import Result
from afarm.experiment.run_record import record
from afarm.experiment.training_stages import base_stage
from afarm.storage.rows import read_preferences


def labels(one: Farm) -> list[tuple[str, bool]]:
    return [(run.label, run.reused) for run in one.workspace.history.values()]


SHARED = ["base", "sft", "sample", "annotate", "fit-reward", "outputs sft"]


# ------------------------------------------------------------------------------------------------ order and reuse


def test_stages_run_in_order_and_the_result_is_an_evaluation_of_every_evaluator(farm: Make) -> None:
    one = farm()
    result = one.evaluate()
    assert [label for label, _ in labels(one)] == [
        *("base", "sft", "sample", "annotate", "fit-reward", "train nudge", "outputs nudge", "outputs sft"),
        "evaluate nudge against sft",
    ]
    assert not any(reused for _, reused in labels(one))
    assert [
        *(f"Sft step {i}" for i in (1, 2, 3)),
        *("sample 12x2 at 0.9", "fit-reward 12"),
        *(f"Nudge step {i}" for i in (1, 2, 3)),
        *("sample 10x1 at 0.7", "sample 10x1 at 0.7"),
    ] == RAN
    assert [(reference, e.evaluator) for reference, e in result.evaluations] == [("sft", "win_rate"), ("sft", "reward")]
    assert result.win_rate > 50, "more skill, more words, and the judge counts words"
    assert result.metric("reward_difference") > 0
    assert len(result.judgements["sft"]) == 10
    with pytest.raises(KeyError):
        result.metric("nonsense")


def test_a_second_method_reuses_everything_that_comes_before_it(farm: Make) -> None:
    farm().evaluate("nudge")
    RAN.clear()
    asked = CountingJudge.asked
    second = farm()
    second.evaluate("direct")
    assert {label for label, reused in labels(second) if reused} == set(SHARED)
    assert [f"Direct step {i}" for i in (1, 2, 3)] + ["sample 10x1 at 0.7"] == RAN
    assert CountingJudge.asked - asked <= 10, "only the evaluation of the new policy is judged"
    assert second.outputs("direct")[0].generator == "direct", "though its weights happen to equal nudge's"


def test_the_same_command_again_does_nothing_and_finds_the_same(farm: Make) -> None:
    first = farm().evaluate()
    RAN.clear()
    asked = CountingJudge.asked
    again = farm()
    second = again.evaluate()
    assert all(reused for _, reused in labels(again))
    assert (RAN, CountingJudge.asked) == ([], asked)
    assert second == first


def test_two_output_directories_hold_equal_artifacts(tmp_path: Path) -> None:
    farms = [light_farm(tmp_path / name) for name in ("one", "two")]
    for one in farms:
        one.evaluate()
        one.close()
    keys = [{label: run.artifact.name for label, run in one.workspace.history.items()} for one in farms]
    contents = [{label: run.artifact.content for label, run in one.workspace.history.items()} for one in farms]
    assert keys[0] == keys[1]
    assert contents[0] == contents[1]


def test_settings_that_change_no_result_reuse_everything_and_others_what_they_do_not_touch(farm: Make) -> None:
    farm().evaluate()
    for setting in ("nudge.batch=1", "max_concurrency=1", "sample.per_device_batch_size=1", "budget=7"):
        again = farm(setting)
        again.evaluate()
        assert all(reused for _, reused in labels(again)), setting
    again = farm("nudge.skill=0.25")
    again.evaluate()
    assert {label for label, reused in labels(again) if reused} == set(SHARED)
    assert "settings.skill: 0.5 → 0.25" in again.workspace.history["train nudge"].why
    again = farm("evaluate.temperature=0.8")
    again.evaluate()
    assert {label for label, reused in labels(again) if reused} == {*SHARED[:-1], "train nudge"}
    for everything in ("seed=7", "backend.dtype=bfloat16", "backend.mixed_precision=bf16"):
        again = farm(everything)
        again.evaluate()
        assert not any(reused for label, reused in labels(again)), everything


def test_a_base_model_that_moved_is_the_same_model(farm: Make, tmp_path: Path) -> None:
    farm().sft()
    (tmp_path / "base").rename(tmp_path / "elsewhere")
    moved = farm(f"model={tmp_path / 'elsewhere'}")
    assert moved.workspace.ensure(base_stage(moved.workspace))
    assert [run.reused for run in moved.workspace.history.values()] == [True]
    assert isinstance(moved.workspace.load(moved.workspace.history["base"].artifact), WordPolicy)
    assert moved.workspace.components.backend.loaded == [str(tmp_path / "elsewhere")]  # type: ignore[attr-defined]
    moved.sft()
    assert moved.workspace.history["sft"].reused


def test_an_edited_base_model_is_another_model(farm: Make, tmp_path: Path) -> None:
    farm().sft()
    one = farm()
    (tmp_path / "base" / "weights").write_text("another")
    one.sft()
    assert not any(reused for _, reused in labels(one))


# -------------------------------------------------------------------------------------------------------- failures


def test_a_failure_in_the_middle_keeps_what_is_finished_and_the_rerun_goes_on_from_the_checkpoint(
    farm: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(light_plugin.Nudge, "dies_after", 2)
    with pytest.raises(TrainingError, match="step 2"):
        farm().evaluate()
    RAN.clear()
    monkeypatch.setattr(light_plugin.Nudge, "dies_after", 99)
    again = farm()
    result = again.evaluate()
    assert RAN[0] == "Nudge step 3"
    assert [label for label, reused in labels(again) if reused] == SHARED[:-1]
    lines = (again.workspace.history["train nudge"].artifact.path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3]
    assert result.win_rate > 50


def test_a_budget_that_runs_out_keeps_what_was_bought_and_a_larger_one_goes_on_from_there(farm: Make) -> None:
    poor = farm(budget=0.003, annotator="chatgpt_1")
    with pytest.raises(BudgetError):
        poor.annotate()
    assert CountingJudge.asked == 3
    still_poor = farm(budget=0.005, annotator="chatgpt_1")
    with pytest.raises(BudgetError):
        still_poor.annotate()
    assert CountingJudge.asked == 5, "what was spent before counts against the larger budget too"
    assert farm(annotator="chatgpt_1").annotate()


# ----------------------------------------------------------------------------------------------------- live objects


def test_every_step_returns_live_objects(farm: Make) -> None:
    one = farm()
    policy, model = one.sft(), one.fit_reward()
    assert isinstance(policy, WordPolicy)
    assert policy.skill == 0.5
    assert isinstance(model, WordReward)
    assert model.score([Instruction("x")], ["three little words"])[0].value == 3.0
    samples = one.sample()
    assert len(samples) == 24
    assert samples[0].instruction == samples[1].instruction
    preferences = one.annotate()
    assert len(preferences) == 12
    assert {p.annotator for p in preferences} == {"pool"}
    trained = one.train("nudge")
    assert isinstance(trained, WordPolicy)
    assert trained.skill == 1.0
    assert one.train("nudge") is not trained, "nobody shares a model with what a user may do to it"
    assert len(one.outputs("nudge")) == 10


def test_a_farm_works_inside_a_running_event_loop(farm: Make) -> None:
    async def as_in_a_notebook() -> Result:
        with farm() as one:
            return one.evaluate()

    assert asyncio.run(as_in_a_notebook()).win_rate > 50


def test_a_farm_can_be_used_again_after_it_was_closed(farm: Make) -> None:
    one = farm()
    one.annotate()
    one.close()
    assert one.evaluate().win_rate > 50


def test_progress_and_stages_are_told_as_they_happen(farm: Make) -> None:
    told: list[tuple[str, bool]] = []
    one = farm(on_stage=lambda label, run: told.append((label, run is None)))
    one.sft()
    assert told == [("base", True), ("base", False), ("sft", True), ("sft", False)]
    told.clear()
    farm(on_stage=lambda label, run: told.append((label, run is None))).sft()
    assert told == [("base", False), ("sft", False)], "what is reused is not announced as if it started"


def test_annotating_pairs_of_ones_own_goes_by_the_runs_annotator(farm: Make) -> None:
    pairs = [Pair(Instruction("x"), "word", "word word"), Pair(Instruction("y"), "word word", "word")]
    assert [p.p2 for p in farm().annotate_pairs(pairs)] == [1.0, 0.0]
    farm().evaluate("online")
    assert "online decided" in RAN


# --------------------------------------------------------------------------------------- recipes of another shape


def test_a_recipe_that_skips_sft_starts_from_the_model_as_it_is(farm: Make) -> None:
    one = farm("start=model")
    result = one.evaluate("nudge")
    assert "sft" not in one.workspace.history
    assert [reference for reference, _ in result.evaluations] == ["base", "base"]
    assert "evaluate nudge against base" in one.workspace.history
    trained = one.train("nudge")
    assert isinstance(trained, WordPolicy)
    assert trained.skill == 0.5


def test_the_baseline_alone_is_compared_with_the_data_and_needs_no_reward_model(farm: Make) -> None:
    one = farm()
    result = one.evaluate("sft")
    assert [label for label, _ in labels(one)] == ["base", "sft", "outputs sft", "evaluate sft against data"]
    assert [(reference, e.evaluator) for reference, e in result.evaluations] == [("data", "win_rate")]
    judged = result.judgements["data"]
    assert {row.pair.generator_1 for row in judged} == {"people"}


def test_a_comparison_with_the_data_needs_outputs_in_it(farm: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_outputs(self: object, split: str) -> list[Output]:
        return [Output(Instruction(f"{split} {i}"), "") for i in range(12)]

    monkeypatch.setattr(light_plugin.Numbers, "load", without_outputs)
    assert farm("sft.skill=0.1").evaluate("direct").win_rate > 50, "the reference is another policy"
    for one, method in ((farm(), "sft"), (farm("evaluate.reference=data"), "nudge")):
        RAN.clear()
        with pytest.raises(DataError, match=r"'numbers'.*no outputs to compare with"):
            one.evaluate(method)
        assert RAN == [], "said before anything is trained"


def test_a_method_can_be_compared_with_the_datas_outputs(farm: Make) -> None:
    one = farm("evaluate.reference=data")
    result = one.evaluate("nudge")
    assert {reference for reference, _ in result.evaluations} == {"data"}
    assert "outputs sft" not in one.workspace.history


def test_a_policy_with_a_temperature_of_its_own_is_compared_at_both(farm: Make) -> None:
    one = farm()
    result = one.evaluate("hot")
    assert [r for r, e in result.evaluations if e.evaluator == "win_rate"] == ["sft", "sft at T=1"]
    assert "sample 10x1 at 1" in RAN
    assert RAN.count("sample 10x1 at 1") == 2, "the policy itself, and the baseline once more at its temperature"
    hotter = {row.pair.output_1 for row in result.judgements["sft at T=1"]}
    assert hotter != {row.pair.output_1 for row in result.judgements["sft"]}


def test_more_samples_make_more_pairs_and_an_odd_one_is_left_out(farm: Make) -> None:
    assert len(farm("sample.n=5").annotate()) == 24


def test_label_noise_is_in_the_training_labels_and_not_in_the_evaluation(farm: Make) -> None:
    one = farm("annotate.label_noise=0.5", "rows.preference=all", "numbers.count=200")
    sources = [p.preference.source for p in one.annotate()]
    assert set(sources) == {"noise", "rule"}
    assert {p.preference.source for p in one.evaluate().judgements["sft"]} <= {"judge", "rule"}


# ---------------------------------------------------------------------------------------------------- pairs to label


def test_neighbouring_samples_of_an_instruction_are_paired_and_repeats_numbered() -> None:
    texts = ["x", "y", "y", "x", "z"] * 2
    outputs = [Output(Instruction(f"i{n // 5}"), text) for n, text in enumerate(texts)]
    pairs = adjacent_pairs(outputs, 5)
    assert [(p.output_1, p.output_2, p.occurrence) for p in pairs] == [("x", "y", 0), ("y", "x", 1)] * 2
    assert len({p.id for p in pairs}) == 4


# ---------------------------------------------------------------------------------------------------- runs on disk


def test_a_runs_record_says_what_was_run_with_what_and_what_came_of_it(farm: Make) -> None:
    one = farm()
    result = one.evaluate()
    directory = record(one.workspace, "nudge", result, "afarm run --method nudge", 1.0).directory
    run = json.loads((directory / "run.json").read_text())
    assert run["command"] == "afarm run --method nudge"
    assert run["headline"]["win_rate"] == result.win_rate
    assert run["headline"]["kl"] == 0.3
    made = [(label, stage.artifact.key) for label, stage in one.workspace.history.items()]
    assert [(s["stage"], s["key"]) for s in run["stages"]] == made
    assert run["spend"]["calls"] > 0
    assert run["spend"]["dollars"] == pytest.approx(0.001 * run["spend"]["calls"])
    assert run["config"]["evaluate"]["temperature"] == 0.7
    steps = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert [(s["stage"], s["step"]) for s in steps if s["stage"] == "train"] == [("train", i) for i in (1, 2, 3)]
    assert read_preferences(directory / "outputs.jsonl") == list(result.judgements["sft"])
    assert one.workspace.store.in_use() == {r.artifact.name for r in one.workspace.history.values()}


def recorded(one: Farm, method: str = "nudge") -> dict[str, Any]:
    return dict(record(one.workspace, method, one.evaluate(method), "", 1.0))


def test_a_rerun_keeps_what_the_run_has_cost_and_says_that_it_bought_nothing(farm: Make) -> None:
    first, again = recorded(farm())["spend"], recorded(farm())["spend"]
    assert first["calls"] == first["this_time"]["calls"] > 0
    assert (first["input_tokens"], first["output_tokens"]) == (100 * first["calls"], 10 * first["calls"])
    assert {k: v for k, v in again.items() if k != "this_time"} == {k: v for k, v in first.items() if k != "this_time"}
    assert (again["this_time"]["calls"], again["this_time"]["dollars"]) == (0, 0.0)


def test_a_stage_counts_what_it_cost_and_another_run_that_reuses_it_counts_it_too(farm: Make) -> None:
    spent = {s["stage"]: s["spend"].get("calls", 0) for s in recorded(farm())["stages"]}
    assert {stage for stage, calls in spent.items() if calls} == {"annotate", "evaluate nudge against sft"}
    asked = CountingJudge.asked
    other = recorded(farm(), "direct")
    calls = {s["stage"]: s["spend"].get("calls", 0) for s in other["stages"]}
    assert calls["annotate"] == spent["annotate"]
    assert other["spend"]["calls"] == calls["annotate"] + calls["evaluate direct against sft"]
    assert other["spend"]["this_time"]["calls"] == calls["evaluate direct against sft"] <= CountingJudge.asked - asked


def test_a_stage_that_was_stopped_and_resumed_counts_all_its_calls(farm: Make) -> None:
    with pytest.raises(BudgetError):
        farm(budget=0.003, annotator="chatgpt_1").annotate()
    assert CountingJudge.asked == 3
    resumed = farm(annotator="chatgpt_1")
    resumed.annotate()
    spent = resumed.workspace.history["annotate"].artifact.meta["spend"]
    assert spent["calls"] == CountingJudge.asked > 3
    assert spent["dollars"] == pytest.approx(0.001 * CountingJudge.asked)
    assert resumed.workspace.judges.client.spend.calls == CountingJudge.asked - 3


def test_calls_of_unknown_price_are_counted_and_a_method_that_asks_has_its_own_account(
    farm: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete = CountingJudge.complete

    async def unpriced(self: CountingJudge, request: ChatRequest) -> Completion:
        return replace(await complete(self, request), price=None)

    monkeypatch.setattr(CountingJudge, "complete", unpriced)
    one = farm()
    one.train("online")
    spent = one.workspace.history["train online"].artifact.meta["spend"]
    assert (spent["calls"], spent["unpriced_calls"], spent["dollars"]) == (1, 1, 0.0)
    assert one.workspace.history["sft"].artifact.meta["spend"].get("calls", 0) == 0


def test_a_runs_name_does_not_change_with_what_changes_no_result(farm: Make) -> None:
    neutral = ("max_concurrency=3", "openai.timeout=5", "nudge.batch=1", "sample.per_device_batch_size=1")
    assert farm(*neutral, budget=3).workspace.run_name() == farm().workspace.run_name()
    assert farm("nudge.batch=1", "nudge.skill=1").workspace.run_name() == farm("nudge.skill=1.0").workspace.run_name()
    names = {farm(*s).workspace.run_name() for s in ((), ("seed=7",), ("nudge.skill=1",), ("sample.temperature=0.3",))}
    assert len(names) == 4
    assert farm().workspace.run_name("direct") != farm().workspace.run_name("nudge")


def test_seeds_of_purposes_are_independent_and_never_change(farm: Make) -> None:
    one = farm(seed=3)
    assert one.workspace.seed("sample") == integer(3, "sample") != one.workspace.seed("annotate")


def test_a_whole_light_experiment_loads_no_torch(tmp_path: Path) -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(SUPPORT)!r})\n"
        "from pathlib import Path\n"
        "from light_farm import Make, light_farm\n"
        f"light_farm(Path({str(tmp_path)!r})).evaluate()\n"
        "print({'torch', 'transformers', 'openai', 'anthropic', 'datasets'} & set(sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "set()\n", done.stderr
