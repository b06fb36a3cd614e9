"""Live objects at a prompt: short reprs, tables, data frames, progress, and methods over seeds in one call."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from light_farm import Make, light_farm, light_workspace
from light_plugin import RAN, Nudge, WordPolicy

from afarm.core.errors import BudgetError, ConfigError
from afarm.core.interfaces import no_progress
from afarm.core.records import Evaluation, Instruction, JudgedPair, Pair, Preference
from afarm.experiment import notebook
from afarm.experiment.farm import Farm
from afarm.experiment.method_comparison import MethodComparison
from afarm.experiment.recipe import list_overrides
from afarm.experiment.result import Result
from afarm.storage.table import Records, html_table

LONGEST_REPR = 400


def test_a_result_is_a_line_a_table_a_frame_and_json(farm: Make) -> None:
    result = farm().evaluate()
    line = repr(result)
    assert line.startswith(f"Result(nudge against sft: win rate {result.win_rate:.1f} % (95 % ")
    assert line.count("against sft") == 1
    assert f"; reward {result.metric('reward'):.3f} (reference {result.metric('reward_reference'):.3f}, diff" in line
    assert len(line) < LONGEST_REPR
    html = result._repr_html_()
    assert html.count("<tr>") == 1 + len(result.evaluations)
    assert "against" in html
    frame = result.to_pandas()
    assert len(frame) == 1, "all evaluators against one reference, so that nothing is empty"
    assert (frame["win_rate"][0], frame["reward"][0]) == (result.win_rate, result.metric("reward"))
    stored = json.loads(json.dumps(result.to_dict()))
    assert stored["system"] == "nudge"
    assert stored["evaluations"][0]["metrics"]["win_rate"] == result.win_rate


def test_records_are_lists_that_show_a_few_rows(farm: Make) -> None:
    made = farm()
    preferences = made.annotate()
    assert repr(preferences) == "<12 of JudgedPair: .to_pandas(), .to_dict(), or [0], the first>"
    frame = preferences.to_pandas()
    assert len(frame) == 12
    assert list(frame["output_1"]) == [judged.pair.output_1 for judged in preferences]
    assert set(frame["preference"]) <= {0, 1, 1.5, 2}
    html = preferences._repr_html_()
    assert html.count("<tr>") == 1 + 5
    assert "12 of JudgedPair, the first 5" in html
    assert made.sample().to_dict()[0]["output"] == made.sample()[0].output
    assert made.annotate_pairs([preferences[0].pair]).to_dict()[0]["pair_id"] == preferences[0].pair.id
    assert repr(Records([1])) == "Records([1])"
    assert preferences == list(preferences)


def test_cells_are_escaped_and_cut() -> None:
    html = html_table(["<a>"], [["<script>\x1b[31m" + "x" * 500]], "<b>")
    assert "<script>" not in html
    assert "<b>" not in html
    assert "\x1b" not in html
    assert "x" * 101 not in html


def test_a_farm_tells_its_settings_and_its_stages(farm: Make) -> None:
    made = farm()
    assert repr(made).startswith("Farm(")
    assert "nudge, annotator pool, seed 42, in " in repr(made)
    assert made._repr_html_().count("<tr>") == 1
    made.annotate()
    stages = made._repr_html_()
    assert stages.count("<tr>") == 1 + len(made.workspace.history)
    assert "annotate" in stages


def test_a_farm_keeps_its_place_when_the_notebook_changes_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = Farm(recipe="toy", output_dir="kept", progress=False)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    made.train("base")
    assert [path.parent.parent.name for path in tmp_path.glob("kept/artifacts/*/*/artifact.json")] == ["base"]
    assert not any((tmp_path / "elsewhere").iterdir()), "another store would train again, and its ledger pay again"


def test_a_method_may_change_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    train = Nudge.train

    def wander(self: Nudge, inputs: Any, context: Any) -> Any:
        os.chdir(tmp_path / "elsewhere")
        return train(self, inputs, context)

    monkeypatch.setattr(Nudge, "train", wander)
    with light_workspace(Path("."), method="nudge") as workspace:  # a path as the command line has it
        Farm.over(workspace).evaluate()
    assert not any((tmp_path / "elsewhere").iterdir())
    assert Path.cwd() == tmp_path / "here"


def test_a_policy_answers_one_text_or_several() -> None:
    policy = WordPolicy(1.0)
    alone = policy.generate("Name a bird.", temperature=0.5)
    assert policy.generate(["Name a bird.", Instruction("Name a fish.")], temperature=0.5)[0] == alone
    assert set(alone.split()) == {"word"}
    assert policy.generate((text for text in ("Name a bird.",)), temperature=0.5) == [alone]


@pytest.mark.parametrize(
    ("prompts", "decoding", "problem"),
    [
        (
            {"role": "user", "content": "Hi"},
            {},
            "takes a text or an Instruction, or a list, none empty, not {'role': 'user', 'content': 'Hi'}",
        ),
        (["Hi", {"role": "user"}], {}, "not ['Hi', {'role': 'user'}]"),
        (3, {}, "not 3"),
        ([], {}, "not []"),
        ("", {}, "takes a text or an Instruction, or a list, none empty, not ''"),
        (["Hi", " \n"], {}, "none empty, not ['Hi', ' \\n']"),
        (Instruction(""), {}, "none empty, not Instruction(instruction=''"),
        ("Hi", {"temperature": -1}, "temperature must be a number from 0, not -1"),
        ("Hi", {"temperature": "0.7"}, "temperature must be a number from 0, not '0.7'"),
        ("Hi", {"temprature": 0.7}, "generate takes no 'temprature'. Did you mean 'temperature'"),
        (
            "Hi",
            {"n": 2},
            "generate takes no 'n'. Known: max_new_tokens, per_device_batch_size, seed, temperature,",
        ),
        ("Hi", {"clipped": True, "temp": 1}, "- generate takes no 'temp'. Did you mean 'temperature'"),
        ("Hi", {"max_new_tokens": 0}, "max_new_tokens must be a whole number from 1, not 0"),
        ("Hi", {"max_new_tokens": 2.5}, "max_new_tokens must be a whole number from 1, not 2.5"),
    ],
)
def test_what_a_policy_cannot_answer_is_refused(prompts: Any, decoding: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(problem)):
        WordPolicy(1.0).generate(prompts, **decoding)


def test_a_policy_of_a_run_answers_as_the_run_decodes(farm: Make) -> None:
    made = farm("evaluate.temperature=0.3", "evaluate.max_new_tokens=7")
    for policy in (made.sft(), made.train("nudge")):
        RAN.clear()
        policy.generate("Name a bird.")
        assert RAN == ["sample 1x1 at 0.3"]
        assert policy.default_decoding.max_new_tokens == 7
    RAN.clear()
    made.train("hot").generate("Name a bird.")
    assert RAN == ["sample 1x1 at 1"], "its own temperature, as in the run"


# --------------------------------------------------------------------------------------------- several methods


def openable(directory: Path, **choices: Any) -> Farm:
    """A farm over the light recipe that can open itself again, as one made by `Farm(…)`."""
    farm = Farm.over(light_workspace(directory, **choices))
    farm._lay_out_run = lambda method, seed: light_workspace(directory, **{"method": method, "seed": seed, **choices})
    return farm


def test_methods_are_compared_over_seeds_on_shared_artifacts(tmp_path: Path) -> None:
    farm = openable(tmp_path)
    compared = farm.compare_methods(["nudge", "direct"], seeds=[1, 2, 3])
    assert set(compared.results) == {(m, s) for m in ("nudge", "direct") for s in (1, 2, 3)}
    rates = [result.win_rate for result in compared["nudge"]]
    row = next(row for row in compared.table_rows() if row["method"] == "nudge")
    mean = sum(rates) / 3
    spread = (sum((rate - mean) ** 2 for rate in rates) / 2 / 3) ** 0.5
    assert row["win_rate"] == pytest.approx(mean)
    assert row["standard_error"] == pytest.approx(spread)
    assert row["high"] - row["low"] == pytest.approx(2 * 4.302653 * spread), "Student's t with 2 degrees of freedom"
    assert (row["seeds"], row["seed 2"]) == ("1, 2, 3", rates[1])
    assert [r["win_rate"] for r in compared.table_rows()] == sorted(r["win_rate"] for r in compared.table_rows())[::-1]
    assert compared.to_pandas().shape[0] == 2
    assert len(repr(compared)) < LONGEST_REPR
    assert compared._repr_html_().count("<tr>") == 3
    assert "(95 % " in repr(compared)
    with pytest.raises(KeyError):
        compared["ppo"]


def test_one_method_may_be_given_as_a_text_and_several_with_commas(tmp_path: Path) -> None:
    farm = openable(tmp_path)
    assert {*farm.compare_methods("nudge").results} == {("nudge", 42)}
    assert {*farm.compare_methods("nudge, direct", seeds=(2,)).results} == {("nudge", 2), ("direct", 2)}
    with pytest.raises(ConfigError, match="seeds names 1 twice"):
        farm.compare_methods("nudge", seeds=[1, 2, 1])


def test_a_comparison_says_where_it_is_and_reports_a_shared_stage_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    farm = openable(tmp_path, on_stage=notebook.tell_stage)
    farm._tell = print
    farm.compare_methods(["nudge", "direct"], seeds=[1, 2])
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("method")] == [
        f"method {number} of 4: {method}, seed {seed}"
        for number, (seed, method) in enumerate(((s, m) for s in (1, 2) for m in ("nudge", "direct")), start=1)
    ]
    assert sum("outputs sft" in line for line in lines) == 2 * 2, "announced and made, once a seed"
    assert not any("outputs sft, reused" in line for line in lines)


def test_a_setting_may_be_named_with_a_dot_in_a_mapping() -> None:
    assert list_overrides({"ppo.kl_coef": 0.1, "ppo": {"total_steps": 3}, "seed": 2}) == [
        {"ppo": {"kl_coef": 0.1, "total_steps": 3}, "seed": 2}
    ]
    assert list_overrides(["a.b=1", {"a": {"b": 2}}]) == ["a.b=1", {"a": {"b": 2}}]


def test_a_farm_with_preferences_of_ones_own_names_them(tmp_path: Path) -> None:
    with light_farm(tmp_path, preferences="mine.jsonl", checks=[]) as made:
        assert "nudge, preferences mine.jsonl, seed 42" in repr(made)


def test_one_seed_has_the_interval_over_instructions(tmp_path: Path) -> None:
    compared = openable(tmp_path).compare_methods(["nudge"])
    [row] = compared.table_rows()
    assert row["standard_error"] == compared["nudge"][0].standard_error
    assert row["low"] < row["win_rate"] <= row["high"]
    assert row["seeds"] == "42"


def test_a_method_that_fails_is_named_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import light_plugin

    monkeypatch.setattr(light_plugin.Nudge, "dies_after", 2)
    compared = openable(tmp_path).compare_methods(["nudge", "direct"])
    assert [name for name, _ in compared.results] == ["direct"]
    assert "the loss is NaN at step 2" in compared.failed["nudge", 42]
    assert "nudge   failed: the loss is NaN at step 2" in repr(compared)
    assert "step 2" in compared._repr_html_()


def test_a_comparison_with_a_wrong_method_or_without_money_ends(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nudge"):
        openable(tmp_path).compare_methods(["nudgee"])
    farm: Any = openable(tmp_path)
    for methods in ([], "", {"nudge": 1, 2: 3}, 3, ["nudge", None], None):
        with pytest.raises(ConfigError, match=r'name one or more, such as .* or \["ppo", "dpo"\], not'):
            farm.compare_methods(methods)
    for seeds in (3, "1,2", [1.5], [True], ["1"], None):
        with pytest.raises(ConfigError, match=r"seeds=\[1, 2, 3\], not"):
            farm.compare_methods("nudge", seeds=seeds)
    with pytest.raises(ConfigError, match="'sft' is what the others are compared with"):
        farm.compare_methods(["nudge", "sft"])
    with pytest.raises(ConfigError, match=r"add win_rate to evaluate\.evaluators"):
        openable(tmp_path, evaluate={"evaluators": ["reward"]}).compare_methods("nudge")
    with pytest.raises(BudgetError):
        openable(tmp_path, budget=0.0001).compare_methods(["nudge", "direct"])


RATES = {"b": [60.0, 60.0], "c": [60.0, 80.0]}


def test_a_comparison_of_known_results_has_their_order() -> None:
    def result(rate: float) -> Result:
        metrics = {"win_rate": rate, "standard_error": 2.0, "n_total": 100}
        return Result("x", (("sft", Evaluation("win_rate", "x", metrics)),))

    compared = MethodComparison({("a", 1): result(40.0), ("b", 1): result(60.0)})
    assert repr(compared) == (
        "MethodComparison: win rates against sft\n  b   60.0 % (95 % 55.3 to 63.9)\n  a   40.0 % (95 % 36.1 to 44.7)"
    )
    several = {(name, seed): result(rate) for name, rates in RATES.items() for seed, rate in enumerate(rates)}
    compared = MethodComparison(several, {("a", 2): "the loss is NaN\nat step 2", ("longer", 1): "no"})
    assert repr(compared) == (
        "MethodComparison: win rates against sft, seeds 0, 1\n"
        "  c                70.0 % (95 % 0.0 to 100.0)\n"
        "  b                60.0 %\n"
        "  a, seed 2       failed: the loss is NaN at step 2\n"
        "  longer, seed 1  failed: no"
    )
    [_, b] = compared.table_rows()
    assert (b["standard_error"], b["low"], b["high"]) == (None, None, None), "two equal seeds tell of no spread"
    assert "<td>0.0 to 100.0</td>" in compared._repr_html_().replace("95 % ", "")
    assert "<td>the loss is NaN at step 2</td>" in compared._repr_html_()
    assert repr(MethodComparison({})) == "MethodComparison: nothing was compared"


def test_values_by_instruction_are_of_the_first_reference_and_of_usable_labels() -> None:
    asked = [Instruction(text) for text in ("one", "two", "three")]

    def labels(*wins: tuple[int, float | None]) -> list[JudgedPair]:
        pairs = [(Pair(asked[number], "a", "b"), win) for number, win in wins]
        return [
            JudgedPair(pair, Preference(pair.id, win, "decided" if win is not None else "unparsed"))
            for pair, win in pairs
        ]

    rows = ({"instruction": "i", "own": 1.0}, {"instruction": "i", "own": 2.0}, {"instruction": "j", "own": None}, {})
    result = Result(
        "x",
        (
            ("sft", Evaluation("win_rate", "x", {"win_rate": 75.0})),
            ("sft", Evaluation("own", "x", {"own": 1.5}, rows)),
            ("sft", Evaluation("none", "x", {"none": None}, rows)),
            ("base", Evaluation("win_rate", "x", {"win_rate": 0.0})),
        ),
        {"sft": labels((1, 1.0), (0, 0.5), (1, 0.5), (2, None)), "base": labels((0, 0.0))},
    )
    assert result.by_instruction("win_rate") == {asked[1].id: 75.0, asked[0].id: 50.0}
    assert result.by_instruction("own") == {"i": 1.5}
    assert result.by_instruction("none") == result.by_instruction("unknown") == {}


# ------------------------------------------------------------------------------------------------------ progress


def test_notebooks_show_progress_unless_told_not_to(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert notebook.choose_display(None)[0] is no_progress, "this is no notebook"
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    wraps, on_stage, tell = notebook.choose_display(None)
    assert tell is print
    assert list(wraps(range(3), "counting")) == [0, 1, 2]
    on_stage("sft", None)
    assert capsys.readouterr().out == "… sft\n"
    assert notebook.choose_display(False)[0] is no_progress
    assert notebook.choose_display(True)[0] is notebook.bars
    shell.kernel = None
    assert notebook.choose_display(None)[0] is no_progress, "IPython in a terminal is no notebook"


def test_a_farm_with_progress_prints_a_line_for_each_stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Farm.over(light_workspace(tmp_path, on_stage=notebook.tell_stage)) as farm:
        farm.sample()
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["… base", "✓ base, 0 s"]
    with Farm.over(light_workspace(tmp_path, on_stage=notebook.tell_stage)) as farm:
        farm.sample()
    assert "✓ base, reused" in capsys.readouterr().out
