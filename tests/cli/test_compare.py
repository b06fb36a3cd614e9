"""`afarm compare`: several systems in one table."""

from __future__ import annotations

import io
import json
import math
import re
import statistics
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from light_plugin import RAN, WritingJudge
from rich.console import Console
from said import Afarm

from afarm.cli.compare import _lay_out
from afarm.cli.leaderboard import show_board
from afarm.cli.options import FarmOptions
from afarm.evaluation.boards import Entry, Leaderboard, Metric
from afarm.evaluation.boards.from_runs import board_of_systems
from afarm.evaluation.boards.rendering import PADDING, columns, fitting
from afarm.evaluation.protocol import EvaluationProtocol
from afarm.storage.runs import RunRecord

LIGHT = ["--recipe", "light.yaml"]


def test_methods_share_what_comes_before_them_and_are_ranked(afarm: Afarm) -> None:
    said = afarm("compare", *LIGHT, "--methods", "nudge,direct,base", "--set", "nudge.skill=0.9", "--json")
    assert said.code == 0, said.err
    found = said.json["standings"]
    assert [row["system"] for row in found] == ["nudge", "direct"], "base is what they are compared with"
    assert found[0]["win_rate"] >= found[1]["win_rate"] > 50
    assert {row["reference"] for row in found} == {"base"}
    assert found[0]["differences"]["reward"] > 0
    assert sum(line.startswith("fit-reward") for line in RAN) == 1
    assert sum(line == "sample 12x2 at 0.9" for line in RAN) == 1


def test_the_table_and_the_board_say_the_same(afarm: Afarm) -> None:
    said = afarm("compare", *LIGHT, "--methods", "nudge,direct")
    board = Path(said.out.split("Board: ")[1].split(" (took")[0])
    rows = json.loads(board.with_suffix(".json").read_text())["standings"]
    text = board.read_text()
    for row in rows:
        assert row["system"] in said.out
        assert f"{row['win_rate']:.1f}" in said.out
        cells = [row["system"], f"{row['win_rate']:.1f} ± {row['standard_error']:.1f}"]
        assert f" | {' | '.join(cells)} | " in text
        assert f"| {row['differences']['reward']:+.3f} ± " in text
        assert row["reference"] == "base"
    assert ", judged by counting with annotator pool; not clearly apart from nudge" in said.out
    assert "Percent against base; one seed" in text
    assert "| Δ reward | seconds | seeds |" in text
    page = Path(said.out.split("report: ")[1].splitlines()[0])
    links = re.findall(r'href="(\.\./[^"]*)"', page.read_text())
    assert len(links) == 2
    assert all((page.parent / unquote(link)).is_file() for link in links)


def test_a_narrow_screen_shows_fewer_columns_and_no_figure_cut_short() -> None:
    entry = Entry("nudge", 60.0, 1.2, metrics={"Δ gold": Metric(0.25)}, seconds=12, length=30, rank=1)
    board = Leaderboard(EvaluationProtocol(), (entry,))
    shown = columns(board)
    names = ["rank", "system", "win rate, %", "95 %", "characters", "Δ gold", "seconds"]
    assert [column.heading for column in shown] == names
    needed = 8 * PADDING + len("ranksystemwin rate, %57.6–62.4characters+0.250seconds")
    assert fitting(board, shown, needed) == (shown, needed)
    kept, _ = fitting(board, shown, needed - 1)
    assert [column.heading for column in kept] == names[:-1]
    least = 5 * PADDING + len("ranksystemwin rate, %+0.250")
    for width, names in {
        least: ["rank", "system", "win rate, %", "Δ gold"],
        1: ["rank", "system", "win rate, %"],
    }.items():
        assert [column.heading for column in fitting(board, shown, width)[0]] == names


def test_over_seeds_a_method_has_the_mean_and_the_error_of_the_mean(afarm: Afarm) -> None:
    said = afarm("compare", *LIGHT, "--methods", "nudge", "--seeds", "1,2,3", "--json")
    (row,) = said.json["standings"]
    assert row["seeds"] == [1, 2, 3]
    assert row["win_rate"] == pytest.approx(statistics.fmean(row["win_rates"]))
    assert row["standard_error"] == pytest.approx(statistics.stdev(row["win_rates"]) / math.sqrt(3))


def test_one_that_fails_does_not_take_the_others_with_it(afarm: Afarm) -> None:
    said = afarm("compare", *LIGHT, "--methods", "nudge,diverges,direct", "--seeds", "1,2", "--json")
    assert said.code == 1
    assert {row["system"] for row in said.json["standings"]} == {"nudge", "direct"}
    assert "step 3: the loss is [nan]" in said.json["left_out"]["diverges (seed 2)"]
    assert "Failed: diverges (seed 1): " in said.err
    assert "Left out: diverges (seed 1): step 3" in Path(said.json["board"]).read_text()
    alone = afarm("compare", *LIGHT, "--methods", "diverges", "--seeds", "1")
    assert alone.code == 1
    assert "Error: step 3: the loss is [nan]" in alone.err


def test_systems_are_ranked_by_the_win_rate_and_by_nothing_else(afarm: Afarm) -> None:
    said = afarm("compare", *LIGHT, "--methods", "nudge", "--set", "evaluate.evaluators=[reward]", "--dry-run")
    assert said.code == 1
    assert "add win_rate to evaluate.evaluators" in said.err


def test_all_leaves_out_what_cannot_be_run_and_says_why(afarm: Afarm) -> None:
    with ExitStack() as farms:
        laid_out, left_out = _lay_out(FarmOptions(recipe="light.yaml"), "all", [1, 2], farms)
        found = [(system, workspace.config.seed) for system, workspace in laid_out]
    assert {"needy"} <= left_out.keys()
    assert "needs 'reward_modell'" in left_out["needy"]
    assert {("nudge", 1), ("nudge", 2), ("direct", 1), ("hot", 2)} <= set(found)
    assert RAN == []


def test_all_leaves_out_what_the_data_has_no_split_for(afarm: Afarm, tmp_path: Path) -> None:
    rows = [{"instruction": f"do {i}", "output": f"done {i}"} for i in range(40)]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    shares = ["unlabeled=0", "sft=0.2", "preference=0.4", "validation=0", "evaluation=0.4"]
    sizes = ["rows.preference=4", "rows.evaluation=4"]
    settings = [part for s in [*(f"files.shares.{s}" for s in shares), *sizes] for part in ("--set", s)]
    given = ("compare", *LIGHT, "--data", "rows.json", *settings, "--dry-run", "--json")
    said = afarm(*given)
    assert said.code == 0, said.err
    assert "Left out: nudge: rows.json: split 'unlabeled' is empty" in said.err
    assert "train direct" in {stage["label"] for stage in said.json["stages"]}
    named = afarm(*given, "--methods", "nudge,direct")
    assert named.code == 1
    assert "split 'unlabeled' is empty" in named.err


def test_a_method_that_is_named_and_cannot_be_run_stops_all_before_anything_runs(afarm: Afarm) -> None:
    said = afarm("compare", *LIGHT, "--methods", "nudge,needy,nudg")
    assert said.code == 1
    assert "needs 'reward_modell'" in said.err
    assert "unknown method 'nudg'" in said.err
    assert RAN == []


def test_a_judge_llm_stands_beside_methods(afarm: Afarm) -> None:
    WritingJudge.asked.clear()
    said = afarm("compare", *LIGHT, "--methods", "nudge,writing:40", "--json")
    assert said.json["standings"][0]["system"] == "writing:40"
    assert len(WritingJudge.asked) == 10


def test_a_judge_llm_without_a_key_stops_all_before_anything_runs(
    afarm: Afarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    said = afarm("compare", "--recipe", "light.yaml", "--methods", "nudge,openai:gpt-4.1")
    assert said.code == 1
    assert "export OPENAI_API_KEY" in said.err
    assert RAN == []


def test_best_of_n_takes_the_options_of_a_run(afarm: Afarm) -> None:
    said = afarm("best-of-n", "--n", "1", "--data", "nowhere.json")
    assert said.code == 1
    assert "nowhere.json: no such file" in said.err
    said = afarm("best-of-n", "--n", "1,2", "--n", "4", "--data", "nowhere.json")
    assert "nowhere.json: no such file" in said.err
    for wrong in ("0", "1,x", "1,,2", "-3"):
        said = afarm("best-of-n", f"--n={wrong}")
        assert "whole numbers from 1, with commas between, such as --n 1,4,16" in said.err
    assert "No such option: --method" in afarm("best-of-n", "--method", "nudge").err


def test_what_systems_share_is_told_once(afarm: Afarm) -> None:
    said = afarm("compare", *LIGHT, "--methods", "nudge,hot", "--seeds", "1,2")
    lines = said.err.splitlines()
    systems = [f"{system}, seed {seed}" for seed in (1, 2) for system in ("nudge", "hot")]
    assert [line for line in lines if line.startswith("method ")] == [
        f"method {number} of 4: {system}" for number, system in enumerate(systems, start=1)
    ]
    assert sum(line.startswith("✓ sample") for line in lines) == 2  # one a seed


def test_a_judge_llm_that_answers_can_be_priced(afarm: Afarm) -> None:
    priced = ["--price", "writing:40=1/2", "--json"]
    for command in (["compare", "--methods", "nudge,writing:40"], ["sample", "--policy", "writing:40"]):
        for more in ([], ["--dry-run"]):
            said = afarm(*command, *LIGHT, *priced, *more)
            assert said.code == 0, said.err
    said = afarm("compare", *LIGHT, "--methods", "nudge,writing:40", "--price", "writing:4=1/2")
    assert "--price names 'writing:4', which is none of the judges. Did you mean 'writing:40'?" in said.err


def test_what_all_are_compared_with_is_no_system_beside_them(afarm: Afarm) -> None:
    said = afarm("compare", *LIGHT, "--methods", "base,nudge", "--dry-run")
    assert "Left out: base: it is what the others are compared with" in said.err
    alone = afarm("compare", *LIGHT, "--methods", "base")
    assert alone.code == 1
    assert "leaves nothing to compare: base is what others are compared with" in alone.err


def test_wrong_options_are_refused(afarm: Afarm) -> None:
    assert "--methods" in afarm("compare", *LIGHT, "--method", "nudge").err
    assert "whole numbers" in afarm("compare", *LIGHT, "--seeds", "one").err
    assert "contradict" in afarm("compare", *LIGHT, "--seeds", "1,2", "--seed", "3").err
    twice = afarm("compare", *LIGHT, "--methods", "nudge", "--seeds", "1,2,01")
    assert twice.code == 1
    assert "--seeds names 1 twice" in twice.err
    assert afarm("compare", *LIGHT, "--methods", ",").code == 1


def test_a_policy_s_answers_to_the_evaluation_are_sampled_by_name(afarm: Afarm) -> None:
    said = afarm("sample", *LIGHT, "--policy", "writing:3", "--json")
    assert said.json["stage"] == "outputs writing:3"
    assert said.json["summary"]["rows"] == 10
    said = afarm("sample", *LIGHT, "--policy", "nudge", "--json")
    assert said.json["stage"] == "outputs nudge"
    assert "10 " in afarm("sample", *LIGHT, "--policy", "writing:5", "--dry-run").out


def test_what_all_of_them_would_do_and_buy_is_told_once(afarm: Afarm) -> None:
    said = afarm("compare", *LIGHT, "--methods", "nudge,direct", "--dry-run", "--json")
    labels = [stage["stage"] if "stage" in stage else stage["label"] for stage in said.json["stages"]]
    assert len(labels) == len(set(labels))
    assert {"sample", "train nudge", "train direct", "evaluate direct against base"} <= set(labels)
    both = afarm("compare", *LIGHT, "--methods", "nudge,direct", "--seeds", "1,2", "--dry-run", "--json")
    assert len(both.json["stages"]) == 2 * len(labels)
    assert RAN == []


def test_a_budget_is_for_all_of_them_together(afarm: Afarm) -> None:
    single = afarm("run", *LIGHT, "--method", "nudge", "--json").json["spend"]["dollars"]
    said = afarm("compare", *LIGHT, "--methods", "nudge,direct", "--output-dir", "other", "--budget", str(single * 1.1))
    assert said.code == 1
    assert "budget" in said.err
    again = afarm("compare", *LIGHT, "--methods", "nudge,direct", "--output-dir", "other", "--budget", "9", "--json")
    assert again.code == 0, again.err


def record(system: str, seed: int, win_rate: float, **figures: float) -> RunRecord:
    def result(name: str, reference: str, metrics: dict[str, float]) -> dict[str, Any]:
        return {"system": system, "reference": reference, "evaluator": name, "metrics": metrics}

    main = {"win_rate": win_rate, "standard_error": 1.5, "avg_length": 30.0}
    values = {
        "method": system,
        "seed": seed,
        "results": [
            result("win_rate", "sft", main),
            *(result(name, "sft", {name: 7.0, f"{name}_difference": value}) for name, value in figures.items()),
            result("win_rate", "sft at T=1", {**main, "win_rate": 0.0}),
        ],
        "stages": [{"stage": f"train {system}", "seconds": 4.0}, {"stage": "sft", "seconds": 99.0}],
    }
    return RunRecord(Path(system), values)


def test_standings_are_of_the_first_reference_and_of_what_every_seed_has() -> None:
    board = board_of_systems(
        [record("a", 1, 40.0, gold=1.0, reward=2.0), record("a", 2, 50.0, gold=3.0), record("b", 1, 60.0)]
    )
    best, worse = board.entries
    assert (best.system, best.win_rate, best.standard_error, best.seeds) == ("b", 60.0, 1.5, (1,))
    assert (worse.win_rate, worse.standard_error) == (45.0, pytest.approx(5.0))
    assert worse.metrics == {"Δ gold": Metric(2.0, pytest.approx(1.0))}
    assert board.note.endswith(" No Δ reward of a: not every seed has one.")
    assert worse.seconds == 103.0, "of all stages"


def test_further_win_rates_are_in_percent_and_differences_have_their_errors() -> None:
    run = record("a", 1, 40.0)
    more = {"fitted_win_rate": 60.125, "fitted_standard_error": 0.81, "fitted_difference": 0.3}
    rewards = {"reward": 0.26, "reward_reference": -0.13, "reward_difference": 0.39, "reward_difference_se": 0.031}
    for name, metrics in {"fitted": more, "reward": rewards}.items():
        result = {"system": "a", "reference": "sft", "evaluator": name, "metrics": metrics, "needs": ["judgements"]}
        run["results"].append(result)
    board = board_of_systems([run])
    shown = {column.heading: column.cell(board.entries[0]) for column in columns(board)}
    assert shown["fitted, %"] == "60.1 ± 0.8"
    assert shown["Δ reward"] == "+0.390 ± 0.031"
    by_it = columns(Leaderboard(board.protocol, board.entries, order="fitted"))
    assert [column.heading for column in by_it][:3] == ["rank", "system", "fitted, %"]


def test_over_seeds_no_figure_and_no_warning_is_lost() -> None:
    runs = [record("a", seed, 40.0) for seed in (1, 2)]
    for run, rate in zip(runs, (50.0, 54.0), strict=True):
        more = {
            "length_controlled": {"length_controlled_winrate": rate, "lc_standard_error": 3.0, "lc_warning": "few"},
            "half": {"half_win_rate": rate, "half_win_rate_difference": rate - 50, "half_warning": f"at {rate:g}"},
        }
        for name, metrics in more.items():
            result = {"system": "a", "reference": "sft", "evaluator": name, "metrics": metrics, "needs": ["judgements"]}
            run["results"].append(result)
    (entry,) = board_of_systems(runs).entries
    assert (entry.length_controlled, entry.length_controlled_error) == (52.0, pytest.approx(2.0))
    assert entry.length_controlled_warning == "few"
    assert entry.metrics == {"Δ half": Metric(2.0, pytest.approx(2.0), flag="at 50; at 54", unit="%")}
    shown = {column.heading: column.cell(entry) for column in columns(Leaderboard(EvaluationProtocol(), (entry,)))}
    assert (shown["Δ half, %"], shown["LC, %"]) == ("+2.0 ± 2.0 [2]", "52.0 ± 2.0 [1]")
    (single,) = board_of_systems(runs[:1]).entries
    assert single.metrics["Δ half"].flag == "at 50"
    del runs[1]["results"][-2]
    assert board_of_systems(runs).entries[0].length_controlled is None


def test_a_method_with_fewer_seeds_than_the_others_is_said_to_have_them() -> None:
    board = board_of_systems([record("a", seed, 40.0 + seed) for seed in (1, 2, 3)] + [record("b", 1, 60.0)])
    assert board.note.endswith("standard errors; b has 1 of them and errors over instructions.")
    board = board_of_systems([*(record("a", seed, 40.0) for seed in (1, 2, 3)), record("b", 1, 1.0), record("b", 2, 2)])
    assert board.note.endswith("standard errors; b has 2 of them.")


def test_on_a_terminal_that_rich_does_not_know_no_figure_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes any file for a terminal then
    name, screen = "a_method_with_a_name_that_leaves_no_room_for_its_figures_on_eighty_columns", io.StringIO()
    board = Leaderboard(EvaluationProtocol(), (Entry(name, 60.0, 1.2, rank=1),))
    show_board(Console(file=screen, force_terminal=True), board)
    assert f"1st    {name}    60.0 ± 1.2" in screen.getvalue()


def test_the_judge_s_taste_is_the_mean_over_seeds_and_flags_are_those_of_any() -> None:
    runs = [record("a", seed, 40.0) for seed in (1, 2, 3)]
    for run, share in zip(runs, (0.5, 0.7, None), strict=True):
        taste = None if share is None else {"value": share, "error": None, "n": 9}
        run["results"][0]["red_flags"] = {"prefers_longer": taste, "flags": [{"says": "it is odd"}]}
    (found,) = board_of_systems(runs).entries
    assert (found.prefers_longer, found.prefers_lists) == (pytest.approx(0.6), None)
    assert found.flags == ("it is odd",)
