"""What the report page says, read back with an HTML parser."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from afarm.cli.stage_lines import in_short
from afarm.core.errors import DataError, StoreError
from afarm.report import build, side_by_side
from afarm.report.charts import (
    MOST_POINTS,
    best_of_n_chart,
    chart_held_out,
    curve_charts,
    proxy_chart,
    stored_over_n,
    thin,
)
from afarm.report.diagram import HEIGHT, WIDTH, diagrams, find_inputs, place, title, without_shortcuts
from afarm.report.format import compact, decimal, in_dollars, moment, seconds
from afarm.report.run import group_curves, over_n_command, stage_figures
from afarm.report.run_page import MOST_CHARACTERS, SHOWN_OUTPUTS, describe_annotators, describe_interval
from afarm.storage.rows import read_rows, write_rows
from afarm.storage.runs import RunRecord, read_run

MakeRun = Callable[..., Path]
Row = dict[str, Any]

HOSTILE = "</script></style><img src=x onerror=\"alert(1)\"><script>alert('2')</script>{{ 7 * 7 }} &amp; ‮"


class Page(HTMLParser):
    """The elements of a page with their attributes, its visible text, and the text of each script."""

    def __init__(self, path: Path):
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.ids: set[str] = set()
        self.scripts: list[str] = []
        self.words: list[str] = []
        self._raw = ""
        self.feed(path.read_text(encoding="utf-8"))
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.ids.add(dict(attrs).get("id") or "")
        self._raw = tag if tag in ("script", "style") else ""

    def handle_endtag(self, tag: str) -> None:
        self._raw = ""

    def handle_data(self, data: str) -> None:
        if self._raw == "script":
            self.scripts.append(data)
        elif not self._raw:
            self.words.append(data)

    def with_class(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for _, attributes in self.elements if name in (attributes.get("class") or "").split()]

    def tags(self) -> list[str]:
        return [tag for tag, _ in self.elements]


@pytest.fixture
def without_plotly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)  # how Python marks a module that cannot be imported


@pytest.mark.usefixtures("without_plotly")
def test_hostile_text_in_any_place_adds_no_element(make_run: MakeRun) -> None:
    calm = Page(build(make_run(metrics=[{"stage": "train", "step": 1, "a": 1.0}], outputs=[_row("an output", "sft")])))
    row = {**_row(HOSTILE, HOSTILE), "instruction": HOSTILE, "output_1": HOSTILE, "member": HOSTILE}
    hostile = Page(
        build(
            make_run(
                metrics=[{"stage": "train", "step": 1, HOSTILE: 1.0}],
                outputs=[row],
                name=HOSTILE.replace("/", " "),  # with a path in it the record would not be read
                command=HOSTILE,
                method=HOSTILE,
                judges=[{"role": HOSTILE, "identity": HOSTILE, "simulated": True}] * 3,
                versions={HOSTILE: HOSTILE, "b": "1", "c": "1", "d": "1"},
            )
        )
    )
    assert hostile.tags() == calm.tags()
    assert hostile.text.count("<img src=x") >= 8
    assert "49" not in hostile.text.split("Outputs, side by side")[1].split("Judges and spend")[0]


def test_hostile_chart_data_cannot_end_their_script_and_stay_what_they_were(make_run: MakeRun) -> None:
    page = Page(build(make_run(metrics=[{"stage": "train", "step": s, HOSTILE: 1.5} for s in (1, 2)])))
    data = json.loads(page.scripts[0])
    assert data["main"][0]["name"] == HOSTILE
    assert page.tags().count("script") == 3
    assert "img" not in page.tags()


def test_only_hashed_scripts_may_run_and_nothing_may_be_fetched(make_run: MakeRun) -> None:
    page = Page(build(make_run()))
    policy = next(a["content"] or "" for t, a in page.elements if t == "meta" and "http-equiv" in a)
    assert "default-src 'none'" in policy
    assert re.search(r"script-src( 'sha256-[A-Za-z0-9+/]{43}='){2};", policy)
    assert not [a for _, a in page.elements if a.get("src") or (a.get("href") or "").startswith("http")]


def test_headline_and_tables_show_the_figures_of_the_run(make_run: MakeRun) -> None:
    text = Page(build(make_run())).text
    assert "60.1 % ± 1.6 standard error" in text
    assert "95% interval 56.9 to 63.2, from 797 comparisons: above even." in text  # as on the screen
    assert "−0.02 → 0.93" in text
    assert "difference 0.51 ± 0.05 (standard error)" in text
    assert "55.5 s 2 of 8 reused, counted as when they were made" in text, "wall time, as on the screen and in the view"
    assert "Time of its stages 55.5 s" in text
    assert "finished 2026-11-21 10:03 UTC" in text
    assert "rows 2,000 decided 1,997 draw 3 1b12cd34ef5…" in text
    assert "made now: no annotate stage is stored yet" in text
    assert "gold_difference 0.511" in text
    assert "56.9 to 63.2 472 313 12 8 797" in text
    assert "afarm run --method ppo --annotator pool --recipe toy --seed 42" in text
    assert "ppo.kl_coef 0.2" in text
    assert "torch 2.13.0" in text


@pytest.mark.parametrize(
    ("win_rate", "reading"),
    [(45.0, "below even"), (51.0, "it includes even, so neither is shown to be ahead"), (60.0, "above even")],
)
def test_the_reading_of_the_interval_follows_where_even_lies(make_run: MakeRun, win_rate: float, reading: str) -> None:
    assert reading in Page(build(make_run(headline={"win_rate": win_rate, "standard_error": 1.6}))).text


def test_interval_is_worked_out_by_hand_and_stays_within_percent() -> None:
    assert describe_interval({"win_rate": 60.0, "standard_error": 2.0}) == {
        "win_rate": 60.0,
        "standard_error": 2.0,
        "low": pytest.approx(56.08, abs=1e-3),
        "high": pytest.approx(63.92, abs=1e-3),
    }
    assert describe_interval({"win_rate": 99.0, "standard_error": 2.0})["high"] == 100
    assert describe_interval({"win_rate": float("nan"), "standard_error": 2.0})["low"] is None


def test_what_would_go_unseen_is_told_where_even_is_not_excluded(make_run: MakeRun) -> None:
    pytest.importorskip("scipy")
    metrics = {"win_rate": 51.0, "standard_error": 1.75, "n_wins": 400, "n_wins_base": 385, "n_draws": 20,
               "n_unparsed": 0, "n_total": 805}  # fmt: skip
    result = {"system": "ppo", "reference": "sft", "evaluator": "win_rate", "metrics": metrics}
    headline = {"win_rate": 51.0, "standard_error": 1.75}
    text = Page(build(make_run(results=[result], headline=headline))).text
    # (1.963 + 0.842) · 1.75, the t quantiles of 97.5% and 80%
    assert "neither is shown to be ahead; with 805 instructions a difference under 4.9 points would go unseen." in text
    assert "unseen" not in Page(build(make_run())).text


def test_a_win_rate_without_an_error_has_no_interval(make_run: MakeRun) -> None:
    metrics = {"win_rate": 51.0, "standard_error": None, "n_wins": 2, "n_wins_base": 2, "n_draws": 0, "n_total": 4}
    result = {"system": "ppo", "reference": "sft", "evaluator": "win_rate", "metrics": metrics}
    text = Page(build(make_run(results=[result], headline={}))).text
    assert "51.0 – 2 2 0" in text
    assert "– to –" not in text


def test_simulated_judges_raise_the_banner_with_their_identity(make_run: MakeRun) -> None:
    page = Page(build(make_run()))
    assert "simulated" in page.ids
    assert "gains in that formula, not in quality" in page.text
    assert "offline(utility=gold, tau=1.5, length_bias=0.06)" in page.text


def test_a_fitted_judge_is_called_by_its_own_name_alone(make_run: MakeRun) -> None:
    text = Page(build(make_run(judges=[{"role": "strong", "identity": "fitted:people@1", "simulated": True}]))).text
    assert "The answers come from a formula with noise: no language model and no person." in text
    assert "fitted:people@1" in text
    assert "a formula costs nothing" in text
    assert "offline" not in text


def test_real_judges_raise_no_banner(make_run: MakeRun) -> None:
    page = Page(build(make_run(judges=[{"role": "strong", "identity": "openai:some-model", "simulated": False}])))
    assert "simulated" not in page.ids
    assert "formula" not in page.text


def test_one_simulated_judge_among_real_ones_is_told_apart(make_run: MakeRun) -> None:
    judges = [{"role": "strong", "identity": "openai:m", "simulated": False}, {"role": "light", "simulated": True}]
    text = Page(build(make_run(judges=judges))).text
    assert "Part of these preferences is simulated." in text
    assert "a formula costs nothing" not in text


def test_calls_of_unknown_price_are_named(make_run: MakeRun) -> None:
    spend = {"dollars": 1.5, "calls": 12, "unpriced_calls": 7}
    assert "Calls of unknown price, not in the sum 7" in Page(build(make_run(spend=spend))).text
    assert "unknown price" not in Page(build(make_run(spend={**spend, "unpriced_calls": 0}))).text


def test_what_a_judge_could_not_take_is_one_line_a_stage(make_run: MakeRun) -> None:
    assert "degraded" not in Page(build(make_run())).ids
    summary = {"rows": 9, "degraded": {"temperature": 7, "logit_bias": 2}}
    page = Page(build(make_run(stages=[{"stage": "annotate", "summary": summary}, {"stage": "evaluate x"}])))
    assert "degraded" in page.ids
    assert "Degraded. annotate: of 9 labels, 7 without temperature and 2 without logit_bias," in page.text


def test_stages_that_cut_off_many_outputs_are_named_with_their_setting(make_run: MakeRun) -> None:
    assert "cut-off" not in Page(build(make_run())).ids
    summaries = {"sample": 137, "outputs": 32, "answers": 33}
    stages = [
        {"stage": f"{kind} of x", "kind": kind, "summary": {"rows": 160, "cut_off": cut}}
        for kind, cut in summaries.items()
    ]
    page = Page(build(make_run(stages=stages)))
    assert "cut-off" in page.ids
    assert "Cut off. sample of x: 137 of 160 outputs (86 %) were cut off" in page.text
    assert "--set sample.max_new_tokens=" in page.text
    assert "answers of x: 33 of 160 outputs (21 %)" in page.text
    assert "outputs of x: 32" not in page.text, "a fifth is not more than a fifth"


def test_identical_outputs_are_told_from_draws_that_were_judged(make_run: MakeRun) -> None:
    metrics = {"win_rate": 50.0, "standard_error": 1.0, "n_draws": 7, "n_identical": 5}
    result = {"system": "a", "reference": "b", "evaluator": "win_rate", "metrics": metrics}
    assert "7 (5 identical)" in Page(build(make_run(results=[result]))).text


def test_a_comparison_of_two_files_shows_them_and_nothing_about_training(make_run: MakeRun) -> None:
    stage = {"stage": "compare a with b", "summary": {"rows": 9}}
    files = {"outputs": "a.json", "reference": "b.json"}
    gone = {"method": None, "recipe": None}
    page = Page(
        build(
            make_run(
                files=files, stages=[stage], metrics=[], headline={"win_rate": 60.0, "standard_error": 1.0}, **gone
            )
        )
    )
    assert "outputs a.json reference b.json annotator pool" in page.text
    assert "curves" not in page.ids
    assert "training seed" not in page.text
    assert "compare a with b" in page.text
    assert not page.with_class("diagram")


def test_what_the_run_has_cost_is_beside_what_was_bought_this_time_stage_by_stage(make_run: MakeRun) -> None:
    now = {"dollars": 0.25, "calls": 3, "answers_reused": 210, "unpriced_calls": 0}
    spend = {"dollars": 1.5, "calls": 12, "unpriced_calls": 0, "this_time": now}
    annotate = {"stage": "annotate", "spend": {"dollars": 1.25, "calls": 9, "input_tokens": 800, "output_tokens": 70}}
    sft = {"stage": "sft", "spend": {}}
    text = Page(build(make_run(spend=spend, stages=[annotate, sft]))).text
    assert "12 calls to judges; this time $0.25 for 3" in text
    assert "210 answers were reused" in text
    table = text.split("Judges and spend")[-1]
    for row in ("annotate $1.25 9 800 70", "All stages $1.50 12", "Bought this time $0.25 3"):
        assert row in table
    assert "sft $" not in table
    all_of_it = {**spend, "this_time": {**now, "calls": 12}}
    assert "; this time" not in Page(build(make_run(spend=all_of_it))).text
    unpriced = Page(build(make_run(spend={**all_of_it, "unpriced_calls": 12}))).text
    assert "12 calls to judges, 12 of unknown price" in unpriced


@pytest.mark.usefixtures("without_plotly")
def test_without_plotly_the_page_has_its_tables_and_says_how_to_get_charts(make_run: MakeRun) -> None:
    path = build(make_run())
    page = Page(path)
    assert "pip install 'afarm[report]'" in page.text
    assert "objective/kl" in page.text
    assert not page.with_class("plot")
    assert path.stat().st_size < 200_000


def test_run_json_alone_with_no_optional_key_still_makes_a_page(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    page = Page(build(tmp_path))
    assert tmp_path.name in page.text
    for sentence in ("This run has no win rate", "recorded no stages", "logged no metrics", "no judged outputs"):
        assert sentence in page.text


@pytest.mark.parametrize(
    "key",
    [
        "judges",
        "stages",
        "spend",
        "annotators",
        "results",
        "headline",
        "config",
        "versions",
        "machine",
        "status",
        "reward_model",
        "checkpoint",
    ],
)
@pytest.mark.usefixtures("without_plotly")
def test_any_part_of_run_json_may_be_missing_or_of_another_type(make_run: MakeRun, key: str) -> None:
    assert "Repeat it" in Page(build(make_run(**{key: None}))).text
    assert "Repeat it" in Page(build(make_run(**{key: 3}))).text


@pytest.mark.usefixtures("without_plotly")
def test_how_training_ended_is_said(make_run: MakeRun) -> None:
    text = Page(build(make_run())).text
    assert "Training: the best on validation, of step 30: 68.2 % ± 3.3 (the last, of step 40: 66.5 %)." in text
    assert "Training: 3 prompts were too long and left out." in text
    assert "Training: stopped at step 2: the KL" in Page(build(make_run(checkpoint={"stopped/max_kl": 2.0}))).text
    assert "Training: " not in Page(build(make_run(checkpoint={"best/step": "x"}))).text


@pytest.mark.usefixtures("without_plotly")
def test_the_reward_model_is_shown_on_its_held_out_pairs(make_run: MakeRun) -> None:
    run = make_run()
    text = Page(build(run)).text
    assert "(pairs 50, cross-entropy 0.6312, Brier score 0.2201, expected calibration error 0.0417)." in text
    reliability, margins = chart_held_out(read_run(run))
    assert (reliability["x"], reliability["y"], reliability["pairs"]) == ([0.52, 0.72], [0.55, 0.6333], [20, 30])
    assert (margins["x"], margins["y"], margins["width"]) == ([-0.25, 0.25, 0.75], [19, 24, 7], 0.5)
    assert "in 62.0% of pairs that it was not fitted to" in text
    assert "held-out" not in Page(build(make_run(reward_model={}))).ids


@pytest.mark.parametrize(
    ("summary", "figures"),
    [
        ({"accuracy": 0.5, "train_accuracy": 0.7, "margin": 1.0}, {"train_accuracy": 0.7, "margin": 1.0}),
        ({"accuracy": 0.5, "margin": 1.0}, {"accuracy": 0.5, "margin": 1.0}),
        (
            {"loss": 0.7, "accuracy": 0.47, "eval_loss": 0.6, "eval_accuracy": 0.62, "step": 2},
            {"held-out accuracy": 0.62, "held-out loss": 0.6, "step": 2},
        ),
        ({"rows": 2, "outcomes": {"draw": 1}}, {"rows": 2, "draw": 1}),
    ],
)
def test_a_last_minibatch_gives_way_to_what_was_measured_on_all_rows(summary: Row, figures: Row) -> None:
    assert list(stage_figures(summary).items()) == list(figures.items())


def test_screen_and_table_of_stages_show_the_held_out_accuracy(make_run: MakeRun) -> None:
    run = make_run()
    text = Page(build(run)).text
    assert "held-out accuracy 0.62 held-out loss 0.6312 step 62" in text
    assert "0.4762" not in text
    stage = read_run(run).stage("fit-reward")
    assert stage is not None
    assert in_short(stage["summary"]) == "held-out accuracy 0.62"


@pytest.mark.usefixtures("without_plotly")
def test_entries_with_nothing_in_them_still_make_a_page(make_run: MakeRun) -> None:
    empty: dict[str, Any] = {"judges": [{}, 3], "stages": [{}, 3], "results": [{}, {"metrics": {}}, 3]}
    page = Page(build(make_run(outputs=[{}], annotators={"training": {}, "evaluation": None}, **empty)))
    assert "unnamed" in page.text
    assert page.text.count("empty output") == 2


def test_an_unfinished_run_says_so(make_run: MakeRun) -> None:
    assert "This run is failed, not finished." in Page(build(make_run(status="failed"))).text
    assert "unfinished" not in Page(build(make_run())).ids


def test_the_same_run_makes_the_same_bytes(make_run: MakeRun) -> None:
    run = make_run()
    assert build(run).read_bytes() == build(run).read_bytes()
    assert sorted(p.name for p in run.iterdir()) == ["metrics.jsonl", "outputs.jsonl", "report.html", "run.json"]


def test_text_that_has_no_utf8_is_still_written(make_run: MakeRun) -> None:
    assert "cut off \\ud83d" in Page(build(make_run(outputs=[_row("cut off \ud83d", "ppo")]))).text


def test_reading_a_directory_that_holds_no_run_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"run\.json.*afarm run"):
        build(tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(DataError, match=r"run\.json: not valid JSON"):
        build(tmp_path)


def test_a_page_that_cannot_be_written_names_it_and_leaves_nothing_behind(make_run: MakeRun) -> None:
    run = make_run()
    (run / "report.html").mkdir()
    (run / "report.html" / "in the way").touch()
    with pytest.raises(StoreError, match=r"report\.html: cannot be written"):
        build(run)
    assert not list(run.glob(".report.html*"))


def test_a_step_logged_twice_counts_once_the_later_one_and_nan_is_a_gap(make_run: MakeRun) -> None:
    rows = [(1, 0.5), (2, 0.6), (3, 0.9), (2, 0.7), (3, float("nan"))]
    run = make_run(metrics=[{"stage": "train", "step": s, "objective/kl": v} for s, v in rows])
    curves = group_curves(read_rows(run / "metrics.jsonl"))
    assert curves["train"]["objective/kl"] == [(1, 0.5), (2, 0.7), (3, None)]
    assert "0.5 0.7 0.5 0.7 3 (1 not finite)" in Page(build(run)).text


def test_verdicts_are_from_the_side_of_the_second_output() -> None:
    seen = [
        side_by_side.row_verdict({**_row("an output", "ppo", preference=p), "outcome": o})
        for p, o in [(2, "decided"), (1, "decided"), (1.8, "decided"), (1.2, ""), (1.5, "draw"), (0, "draw"),
                     (None, "unparsed"), (None, "refused"), (float("nan"), ""), (2, "unparsed"),
                     (True, ""), ("2", ""), (3, "decided"), (-1, "decided")]
    ]  # fmt: skip
    assert seen == ["win", "loss", "win", "loss", "draw", "draw", *["none"] * 8]


def test_the_sample_shows_all_verdicts_and_does_not_depend_on_the_order_of_rows() -> None:
    rows = [
        _row(f"output {i}", "ppo", preference=p) for p, n in [(2, 60), (1, 35), (1.5, 3), (None, 5)] for i in range(n)
    ]
    shown, counts = side_by_side.sample_rows(rows, 24, seed=1)
    assert counts == {"win": 60, "loss": 35, "draw": 3, "none": 5}
    assert side_by_side.sample_rows(shown, 24, seed=1)[1] == {"win": 9, "loss": 9, "draw": 3, "none": 3}
    assert side_by_side.sample_rows(rows[::-1], 24, seed=1)[0] == shown
    assert side_by_side.sample_rows(rows, 24, seed=2)[0] != shown
    assert len(side_by_side.sample_rows(rows[:5], 24, seed=1)[0]) == 5


def test_the_diagram_follows_the_flow_of_data() -> None:
    stages = [
        ("sft", ["base"]), ("outputs sft", ["sft"]), ("sample", ["sft"]), ("annotate", ["sample"]),
        ("fit-reward", ["annotate", "sft"]), ("train ppo", ["fit-reward", "sft"]), ("outputs ppo", ["train ppo"]),
        ("evaluate ppo against sft", ["outputs sft", "outputs ppo"]),
    ]  # fmt: skip
    inputs = without_shortcuts(find_inputs([{"stage": name, "inputs": inputs} for name, inputs in stages]))
    assert inputs == [[], [0], [0], [2], [3], [4], [5], [1, 6]]
    assert place(inputs) == [(0, 0), (5, 1), (1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (6, 0)]


def test_a_stage_is_fed_by_its_earlier_inputs_alone() -> None:
    def inputs(*stages: tuple[str, object]) -> list[list[int]]:
        return find_inputs([{"stage": name, "inputs": named} for name, named in stages])

    assert inputs(
        ("sft", []), ("train best_of_n", ["sft"]), ("outputs best_of_n", ["train best_of_n"]),
        ("outputs sft", ["sft"]), ("evaluate best_of_n against sft", ["outputs best_of_n", "outputs sft"]),
        ("outputs sft at T=1", ["sft"]),
        ("evaluate best_of_n against sft at T=1", ["outputs best_of_n", "outputs sft at T=1"]),
    ) == [[], [0], [1], [0], [2, 3], [0], [2, 5]]  # fmt: skip
    assert inputs(("a", None), ("b", ["c", "b"]), ("c", ["a", "x"])) == [[], [], [0]]
    assert find_inputs([{"stage": "a"}, {}]) == [[], []]


def test_a_stage_is_titled_by_its_kind_and_its_subject() -> None:
    titles = [title(name) for name in ("fit-reward", "outputs sft at T=1", "evaluate ppo against sft at T=1")]
    assert [tuple(parts.values()) for parts in titles] == [
        ("fit-reward", ""), ("outputs", "sft at T=1"), ("evaluate", "against sft at T=1"),
    ]  # fmt: skip


def test_the_diagram_leaves_out_arrows_that_other_arrows_imply() -> None:
    assert without_shortcuts([[], [0], [0, 1], [0, 1, 2]]) == [[], [0], [1], [2]]
    assert without_shortcuts([[], [0], [0], [1, 2]]) == [[], [0], [0], [1, 2]]


def test_no_two_boxes_of_a_diagram_overlap() -> None:
    names = ["sft", "sample", "annotate", "train x", "outputs x", "outputs sft", "evaluate x against sft",
             "outputs sft at T=1", "evaluate x against sft at T=1", "fit-reward"]  # fmt: skip
    fed = [{"stage": name, "inputs": names[:number][-2:]} for number, name in enumerate(names)]
    (diagram,) = diagrams(fed)
    corners = {(box["x"], box["y"]) for box in diagram["boxes"]}
    assert len(corners) == len(names)
    assert all(x + WIDTH <= diagram["width"] and y + HEIGHT <= diagram["height"] for x, y in corners)
    assert diagrams([{"stage": "a"}, {"stage": "b", "inputs": ["x"]}]) == []


def test_annotator_shares_are_of_their_own_use_and_special_ones_come_last() -> None:
    table = describe_annotators({"training": {"(noise)": 6, "x": 2}, "evaluation": {"x": 5, "y": 5}})
    assert [row["name"] for row in table["rows"]] == ["x", "y", "(noise)"]
    assert [cell["share"] for cell in table["rows"][0]["uses"]] == [0.25, 0.5]
    assert table["totals"] == [8, 10]
    assert table["most"] == 0.75


def test_what_was_logged_once_is_in_the_table_but_is_no_curve(make_run: MakeRun) -> None:
    metrics = [{"stage": "train", "step": s, "loss": 1.0 / s} for s in (1, 2)]
    page = Page(build(make_run(metrics=[*metrics, {"stage": "train", "step": 2, "examples": 4000}])))
    assert [chart["name"] for chart in json.loads(page.scripts[0])["main"]] == ["loss"]
    assert "examples 4,000" in page.text


def test_where_the_method_logs_nothing_the_losses_come_first() -> None:
    two: list[tuple[float, float | None]] = [(1, 0.5), (2, 0.4)]
    first, others = curve_charts({"sft": {"loss": two, "lr": two}, "fit-reward": {"loss": two}})
    assert [(c["stage"], c["name"]) for c in first] == [("sft", "loss"), ("fit-reward", "loss")]
    assert [c["name"] for c in others] == ["lr"]


def test_results_against_several_references_stand_side_by_side(make_run: MakeRun) -> None:
    results = [
        {"system": "best_of_n", "reference": reference, "evaluator": "gold", "metrics": {"gold": 1.5, **more}}
        for reference, more in [("sft", {"gold_reference": 0.5}), ("sft at T=1", {"gold_reference": 0.25, "n": 9})]
    ]
    text = Page(build(make_run(results=results))).text
    assert "Evaluator gold : best_of_n Metric against sft against sft at T=1" in text
    assert "gold 1.5 1.5 gold_reference 0.5 0.25 n – 9" in text


def test_long_curves_are_thinned_and_keep_their_ends() -> None:
    points: list[tuple[float, float | None]] = [(step, float(step)) for step in range(12_345)]
    kept = thin(points)
    assert len(kept) <= MOST_POINTS
    assert (kept[0], kept[-1]) == (points[0], points[-1])
    assert thin(points[:10]) == points[:10]


def test_numbers_are_written_for_people() -> None:
    assert [seconds(v) for v in (0.04, 59.94, 95.2, 7500, None)] == ["0.0 s", "59.9 s", "1 min 35 s", "2 h 5 min", "–"]
    assert [decimal(v, 1) for v in (-0.26, 0, 1234.56, float("inf"))] == ["−0.3", "0.0", "1,234.6", "–"]
    assert decimal(0.0004) == "0.0004"
    assert [in_dollars(v) for v in (0, 0.0021, 12.345, None)] == ["$0.00", "$0.0021", "$12.35", "–"]
    assert [compact(v) for v in (4000, 0.64213, -0.5, 2e-4, "cpu", None)] == [
        "4,000", "0.6421", "−0.5", "0.0002", "cpu", "–",
    ]  # fmt: skip
    assert [moment(v) for v in (0, 1795255428.9, "soon")] == ["1970-01-01 00:00 UTC", "2026-11-21 10:03 UTC", "soon"]


def test_every_table_has_a_caption_and_headings_skip_no_level(make_run: MakeRun) -> None:
    tags = Page(build(make_run())).tags()
    assert tags.count("table") == tags.count("caption") >= 8
    levels = [int(tag[1]) for tag in tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(below - above <= 1 for above, below in itertools.pairwise(levels))


def test_text_has_the_contrast_of_wcag_aa_in_both_schemes(make_run: MakeRun) -> None:
    style = build(make_run()).read_text(encoding="utf-8").split("<style>")[1].split("</style>")[0]
    schemes = [
        dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", block)) for block in re.findall(r":root \{(.*?)\}", style, re.S)
    ]
    assert len(schemes) == 2
    pairs = [("ink", "ground"), ("ink", "surface"), ("muted", "ground"), ("muted", "surface"), ("muted", "sunk"),
             ("system", "surface"), ("system", "ground"), ("system", "system-soft"), ("reference", "reference-soft"),
             ("reference", "surface"), ("warn", "warn-soft"), ("ink", "system-soft")]  # fmt: skip
    for colours in schemes:
        low = [(a, b) for a, b in pairs if _contrast(colours[a], colours[b]) < 4.5]
        assert not low


def test_building_a_report_loads_no_torch(make_run: MakeRun) -> None:
    code = "import sys; from afarm.report import build; build(sys.argv[1]); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, make_run()], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def _row(output: str, generator: str, preference: float | None = 2) -> dict[str, Any]:
    return {
        "instruction": "do this", "input": "with that", "output_1": "a reference", "output_2": output,
        "preference": preference, "member": "gpt4_1", "generator_1": "sft", "generator_2": generator,
    }  # fmt: skip


def _contrast(first: str, second: str) -> float:
    """The ratio of WCAG 2: (L1 + 0.05) / (L2 + 0.05), of relative luminances."""

    def luminance(colour: str) -> float:
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(first), luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_texts_too_long_to_show_are_cut_with_their_whole_length_and_the_page_stays_small(
    make_run: MakeRun, output_row: dict[str, Any]
) -> None:
    short = build(make_run()).stat().st_size
    long = {"instruction": "do " * 50_000, "output_1": "word " * 40_000, "output_2": " " * 200_000}
    row = output_row | long
    path = build(make_run(outputs=[row | {"input": f"number {i}"} for i in range(100)]))
    page = Page(path)
    assert page.text.count(f"Cut here: the first {MOST_CHARACTERS:,} of 200,000 characters") == 2 * SHOWN_OUTPUTS
    assert page.text.count(f"Cut here: the first {MOST_CHARACTERS:,} of 150,000 characters") == SHOWN_OUTPUTS
    assert page.text.count(" 200,000 characters") == 4 * SHOWN_OUTPUTS, "beside each output, and in its note"
    assert "empty output" not in page.text
    assert path.stat().st_size < short + 3.2 * SHOWN_OUTPUTS * MOST_CHARACTERS


def test_a_text_of_just_the_length_that_is_shown_is_whole(make_run: MakeRun, output_row: dict[str, Any]) -> None:
    row = output_row | {"output_2": "x" * MOST_CHARACTERS}
    page = Page(build(make_run(outputs=[row])))
    assert "x" * MOST_CHARACTERS in page.text
    assert "Cut here" not in page.text


def test_the_earlier_turns_of_a_conversation_are_shown_before_its_last_message(
    make_run: MakeRun, output_row: Row
) -> None:
    turns = [{"role": "user", "content": "Eels?"}, {"role": "assistant", "content": HOSTILE}, "no turn"]
    page = Page(build(make_run(outputs=[{**output_row, "messages": turns}])))
    assert "2 earlier turns user Eels?" in page.text
    assert page.text.index("Eels?") < page.text.index(output_row["instruction"])
    assert "img" not in page.tags()
    assert "earlier turn" not in Page(build(make_run(outputs=[output_row]))).text


def test_training_is_drawn_with_its_errors_its_kept_checkpoint_and_its_way_over_the_kl() -> None:
    curves = {
        "objective/scores": [(1, 0.1), (2, 0.5), (3, 0.4)],
        "objective/kl": [(1, 0.0), (2, 1.5), (3, None)],
        "validation/win_rate": [(2, 60.0), (3, 55.0)],
        "validation/standard_error": [(2, 5.0)],
        "rewards/margins": [(1, 0.0), (2, 0.3)],
    }
    first, others = curve_charts({"train": curves, "sft": {"loss": [(1, 2.0), (2, 1.0)]}}, 2)
    by_name = {chart["name"]: chart for chart in first}
    assert list(by_name) == [
        *("objective/scores", "validation/win_rate", "objective/kl", "rewards/margins", "reward over KL")
    ]
    assert by_name["validation/win_rate"]["half"] == [pytest.approx(9.8, abs=0.001), None]
    assert by_name["objective/scores"]["half"] is None
    assert {chart["kept"] for chart in first} == {2}
    assert [chart["kept"] for chart in others if chart["stage"] == "sft"] == [None]
    path = by_name["reward over KL"]
    assert (path["x"], path["y"], path["steps"]) == ([0.0, 1.5], [0.1, 0.5], [1, 2])


def test_the_reward_of_the_best_of_the_first_n_samples_is_drawn_over_n(tmp_path: Path) -> None:
    chart = best_of_n_chart([[1.0, 0.0, 4.0], [-1.0, 2.0, 1.0]])
    assert chart is not None
    assert (chart["x"], chart["y"]) == ([1, 2, 3], [0.0, 1.5, 3.0])
    assert best_of_n_chart([[1.0], [2.0]]) is None
    assert best_of_n_chart([]) is None

    made, run = tmp_path / "artifacts" / "outputs" / "k", tmp_path / "runs" / "r"
    for directory in (made, run):
        directory.mkdir(parents=True)
    stages = [{"stage": "outputs best_of_n", "artifact": "artifacts/outputs/k"}]
    (run / "run.json").write_text(json.dumps({"name": "r", "method": "best_of_n", "stages": stages}))
    assert "reward over n" not in build(run).read_text(), "an artifact that is gone leaves the page without"
    write_rows(
        made / "outputs.jsonl", [{"output": "a", "scores": [1, 2.5]}, {"output": "b"}, {"output": "c", "scores": "?"}]
    )
    kept = stored_over_n(run, read_run(run))
    assert kept is not None
    assert kept["y"] == [1, 2.5]
    assert "reward over n" in build(run).read_text()


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("afarm run --method best_of_n --recipe toy --seed 3", "afarm best-of-n --n 1,4,16 --recipe toy --seed 3"),
        ("afarm run --method=best_of_n --json --launcher local:2", "afarm best-of-n --n 1,4,16"),
        ("afarm run --set best_of_n.n=16 --set=best_of_n.keep_scores=true --set seed=1",
         "afarm best-of-n --n 1,4,16 --set seed=1"),
        ("afarm study lengths --recipe toy", "afarm best-of-n --n 1,4,16"),
        ("afarm run --set 'best_of_n.x=a b' --set 'sft.x=a b' --launcher 'local 2'",
         "afarm best-of-n --n 1,4,16 --set 'sft.x=a b'"),
    ],
)  # fmt: skip
def test_a_run_of_best_of_n_names_the_command_that_measures_over_n(command: str, expected: str) -> None:
    record = {"method": "best_of_n", "command": command, "config": {"best_of_n": {"n": 16}}}
    assert over_n_command(RunRecord(Path("x"), record)) == expected
    assert over_n_command(RunRecord(Path("x"), {**record, "method": "ppo"})) == ""
    without = over_n_command(RunRecord(Path("x"), {**record, "config": None}))
    assert without.startswith("afarm best-of-n --n 1,4,16,64")


def test_gold_is_drawn_over_its_proxy_output_by_output() -> None:
    rows = [(0.0, 1.0), (1.0, 3.0), (2.0, 5.0)]
    results = [
        {"system": "ppo", "reference": "sft", "evaluator": name, "metrics": {},
         "rows": [{name: row[place], f"{name}_reference": row[1 - place]} for row in rows]}
        for place, name in enumerate(("reward", "gold"))
    ]  # fmt: skip
    chart = proxy_chart(RunRecord(Path("x"), {"results": results}))
    assert chart is not None
    ours, theirs = chart["series"]
    assert (ours["name"], ours["x"], ours["y"]) == ("ppo: r 1.00", [0.0, 1.0, 2.0], [1.0, 3.0, 5.0])
    assert theirs["x"] == [1.0, 3.0, 5.0]
    results[0]["rows"] = results[0]["rows"][:2]
    assert proxy_chart(RunRecord(Path("x"), {"results": results})) is None, "rows of other outputs"
