"""Why something is not reused, and what a run would do, without doing it."""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from light_farm import Make, light_farm
from light_plugin import RAN, CountingJudge
from places import SUPPORT

from afarm.core.config import Config
from afarm.core.registry import Component
from afarm.experiment.dry_run import PlannedStage, over_budget, plan_run
from afarm.experiment.farm import Farm
from afarm.experiment.plugin_code import files_digest
from afarm.storage.artifacts import Artifact
from afarm.storage.reuse import differences, flatten, nearest, why_not_reused


def artifact(key: str, created: float, **key_fields: Any) -> Artifact:
    return Artifact("train", key, Path(), "content", key_fields, {"created": created})


# ----------------------------------------------------------------------------------------------------------- why


def test_differences_name_what_changed_by_its_dotted_path() -> None:
    old: Mapping[str, Any] = {"method": {"settings": {"lr": 0.1, "beta": 2}}, "seed": 1, "gone": None}
    new: Mapping[str, Any] = {"method": {"settings": {"lr": 0.2, "beta": 2}}, "seed": 1, "added": {"x": 3}}
    assert flatten(old) == {"method.settings.lr": 0.1, "method.settings.beta": 2, "seed": 1, "gone": None}
    assert differences(old, new) == [
        "added.x: absent → 3",
        "gone: None → absent",
        "method.settings.lr: 0.1 → 0.2",
    ]
    assert differences(old, old) == []


def test_an_emptied_section_is_a_difference() -> None:
    assert differences({"data": {}}, {"data": {"sft": "ab"}}) != []
    assert differences({"data": {}}, {}) != []


def test_long_values_are_shortened_but_never_to_the_same_text() -> None:
    (said,) = differences({"x": "x" * 40 + "1" + "y" * 40}, {"x": "x" * 40 + "2" + "y" * 40})
    before, _, after = said.partition(": ")[2].partition(" → ")
    assert before != after
    assert len(said) < 120


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("files:0876dc9e7b392220", "files:489a433de3ad4090", "other contents"),
        ("0876dc9e7b392220", "489a433de3ad4090", "other contents"),
        ("offline:text@1d571f50d398", "offline:text@9c571f50d398", "other contents"),
        ("offline:text@1d571f50d398", "openai:gpt-4o", "offline:text… → openai:gpt-4o"),
        ("0876dc9e7b392220", "sft", "… → sft"),
        ("v1", "v2", "v1 → v2"),
    ],
)
def test_digests_are_told_as_other_contents(old: str, new: str, said: str) -> None:
    assert differences({"model": old}, {"model": new}) == [f"model: {said}"]


def test_the_nearest_relative_has_the_fewest_differences_and_is_the_newest_of_equals() -> None:
    wanted = {"a": 1, "b": 2, "c": 3}
    others = [
        artifact("far", 3.0, a=0, b=0, c=3),
        artifact("near-old", 1.0, a=0, b=2, c=3),
        artifact("near-new", 2.0, a=1, b=9, c=3),
    ]
    found = nearest(wanted, others)
    assert found is not None
    assert (found[0].key, found[1]) == ("near-new", ["b: 9 → 2"])
    assert why_not_reused(wanted, others) == "differs from near-new in b: 9 → 2"
    assert why_not_reused(wanted, []) == "none stored yet"
    by_older_code = [artifact("older", 1.0, **{**wanted, "afarm": "digest", "method": {"source": "digest"}})]
    newer = {**wanted, "afarm": "train 1", "method": {"source": "digest"}}
    assert why_not_reused(newer, by_older_code) == "the code has changed since older (afarm); paid answers are kept"
    edited = {**newer, "method": {"source": "other"}}
    both = "the code has changed since older (afarm, method.source); paid answers are kept"
    assert why_not_reused(edited, by_older_code) == both
    fields = {"method": dict.fromkeys("abcdef", 1), "data": 1}
    other = {"method": dict.fromkeys("abcdef", 0), "data": 0}
    many = why_not_reused(fields, [artifact("x" * 16, 1.0, **other)])
    assert many == "differs from xxxxxxxx in 7 fields: data, method (6)"


def test_an_edited_setting_is_named_as_the_reason(farm: Make) -> None:
    farm().train()
    again = farm("sft.skill=0.75")
    again.train()
    assert "sft" in again.workspace.history["sft"].label
    assert again.workspace.history["sft"].why.endswith("in method.settings.skill: 0.5 → 0.75")
    assert "inputs.policy" in again.workspace.history["sample"].why


def test_a_stage_is_compared_with_earlier_ones_of_its_own_system_and_purpose(farm: Make) -> None:
    farm("sft.skill=0.25").evaluate("nudge")
    planned = {p.label: p.why for p in plan_run(farm().workspace, "hot")}
    assert planned["sft"].endswith("in method.settings.skill: 0.25 → 0.5")
    one = farm()
    one.evaluate("hot")
    why = {label: run.why for label, run in one.workspace.history.items()}
    assert "inputs.policy" in why["outputs sft"]
    for new in ("train hot", "outputs hot", "outputs sft at T=1", "evaluate hot against sft"):
        assert why[new] == "none stored yet", "neither SFT's nor nudge's is a relative of it"
    again = farm("hot.skill=0.75")
    again.evaluate("hot")
    assert again.workspace.history["train hot"].why.endswith("in method.settings.skill: 0.5 → 0.75")


def test_an_edited_plugin_source_never_gives_yesterdays_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "scratch_plugin.py"
    shutil.copy(SUPPORT / "light_plugin.py", source)
    monkeypatch.syspath_prepend(str(tmp_path))
    light_farm(tmp_path, module="scratch_plugin").train()
    again = light_farm(tmp_path, module="scratch_plugin")
    again.train()
    assert all(run.reused for run in again.workspace.history.values())
    again.evaluate()
    source.write_text(source.read_text() + "#")
    files_digest.cache_clear()  # the source is looked at once a process: this is the next one
    edited = light_farm(tmp_path, module="scratch_plugin")
    edited.evaluate()
    # Every model is made anew and samples anew, even where its files come out the same, since what it does with them
    # is in the source. Labels of samples that came out the same are not paid for again.
    kept = {label for label, run in edited.workspace.history.items() if run.reused}
    assert kept == {"base", "annotate"}
    assert "method.source" in edited.workspace.history["sft"].why
    assert edited.workspace.history["sample"].artifact.content == again.workspace.history["sample"].artifact.content


# ---------------------------------------------------------------------------------------------------------- plans


def summary(planned: list[PlannedStage]) -> dict[str, bool]:
    return {p.label: p.reused for p in planned}


def test_a_plan_lists_the_stages_of_a_run_in_order_and_runs_nothing(farm: Make) -> None:
    planned = plan_run(farm().workspace, "nudge")
    assert RAN == []
    assert CountingJudge.asked == 0
    one = farm()
    one.evaluate("nudge")
    assert set(summary(planned)) == set(one.workspace.history)
    order = [p.label for p in planned]
    for before, after in (("sft", "sample"), ("annotate", "fit-reward"), ("fit-reward", "train nudge")):
        assert order.index(before) < order.index(after)
    assert not any(p.reused for p in planned)
    assert {p.label: p.why for p in planned}["base"] == "none stored yet"
    assert {p.label: p.why for p in planned}["sft"] == ""


def test_a_second_comparison_is_planned_before_anything_is_stored(farm: Make) -> None:
    setting = ["evaluate.annotator=chatgpt_1"]
    planned = {p.label: p for p in plan_run(farm(*setting).workspace, "hot")}
    assert RAN == []
    one = farm(*setting)
    one.evaluate("hot")
    assert list(planned) == list(one.workspace.history)
    assert (planned["evaluate hot against sft"].calls, planned["evaluate hot against sft at T=1"].calls) == (10, 10)
    cold = farm("evaluate.temperature=1.0")
    assert "outputs sft at T=1" not in summary(plan_run(cold.workspace, "hot")), "there is nothing more to compare"
    assert "outputs base at T=1" in summary(plan_run(farm("start=model").workspace, "hot"))


@pytest.mark.parametrize("method", ["nudge", "sft", "hot"])
def test_after_a_run_everything_is_planned_for_reuse_and_nothing_is_asked(farm: Make, method: str) -> None:
    one = farm()
    one.evaluate(method)
    planned = plan_run(farm().workspace, method)
    assert summary(planned) == dict.fromkeys(one.workspace.history, True)
    assert (sum(p.calls for p in planned), sum(p.most_dollars or 0 for p in planned)) == (0, 0.0)


def test_calls_are_counted_exactly_once_the_outputs_are_there(farm: Make) -> None:
    setting = ["annotate.annotator=chatgpt_1", "evaluate.annotator=chatgpt_1"]
    farm(*setting).sample()
    (annotate,) = [p for p in plan_run(farm(*setting).workspace, "nudge") if p.kind == "annotate"]
    one = farm(*setting)
    judged = one.annotate()
    assert annotate.calls == CountingJudge.asked == sum(p.preference.source == "judge" for p in judged)
    assert annotate.most_dollars == pytest.approx(0.001 * annotate.calls)


def test_before_there_are_outputs_calls_are_estimated_from_the_number_of_pairs(farm: Make) -> None:
    setting = ["annotate.annotator=chatgpt_1", "evaluate.annotator=chatgpt_1"]
    planned = {p.kind: p for p in plan_run(farm(*setting).workspace, "nudge")}
    assert (planned["annotate"].calls, planned["evaluate"].calls) == (12, 10)
    noisy = {p.kind: p for p in plan_run(farm(*setting, "annotate.label_noise=0.5").workspace, "nudge")}
    assert noisy["annotate"].calls == 0, "a coin needs no call"


def test_answers_that_are_paid_for_already_are_not_planned_again(farm: Make, tmp_path: Path) -> None:
    setting = ["annotate.annotator=chatgpt_1"]
    one = farm(*setting)
    one.annotate()
    shutil.rmtree(one.workspace.history["annotate"].artifact.path)
    (annotate,) = [p for p in plan_run(farm(*setting).workspace, "nudge") if p.kind == "annotate"]
    assert (annotate.reused, annotate.calls) == (False, 0)
    with sqlite3.connect(one.workspace.store.ledger_path) as ledger:
        ledger.execute("DELETE FROM judgements")  # as a kill leaves it, between an answer and what it taught
    (annotate,) = [p for p in plan_run(farm(*setting).workspace, "nudge") if p.kind == "annotate"]
    assert (annotate.reused, annotate.calls) == (False, 0)


def test_an_unknown_price_is_not_taken_for_nothing(farm: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CountingJudge, "worst_case_price", lambda self, request: None)
    planned = {p.kind: p for p in plan_run(farm().workspace, "nudge")}
    assert planned["annotate"].most_dollars is None
    assert planned["train"].most_dollars == 0.0


def test_a_dry_run_validates_the_settings_of_each_component_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Those of 18 components were validated 68 times, SFT's 14 times (97 times in all by the command)."""
    validated: Counter[tuple[str, str]] = Counter()
    validate = Component.settings

    def counted(self: Component, values: Mapping[str, Any] | None = None) -> Config | None:
        validated[self.kind, self.full_name] += 1
        return validate(self, values)

    monkeypatch.setattr(Component, "settings", counted)
    plan_run(Farm("toy", output_dir=tmp_path, progress=False).workspace, "ppo")
    assert {("methods", "ppo"), ("reward_models", "bradley_terry"), ("annotators", "pool")} <= validated.keys()
    assert set(validated.values()) == {1}


def test_a_plan_with_nothing_to_buy_fits_a_budget_that_is_spent() -> None:
    assert over_budget([], budget=1.0, committed=2.0, split="evaluation") == ""
