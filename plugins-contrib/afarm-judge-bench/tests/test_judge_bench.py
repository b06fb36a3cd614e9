"""`afarm judge bench`: sets, stored answers, figures worked by hand, a command that goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from afarm_judge_bench.best_of import best_of, ties_score
from afarm_judge_bench.command import draw
from afarm_judge_bench.items import (
    FIRST,
    SECOND,
    TIE,
    Group,
    Item,
    as_given,
    both_orders,
    mean_of_orders,
    sum_of_orders,
)
from afarm_judge_bench.measure import calibration, compare, first_shown, measure, people_figures, share
from afarm_judge_bench.sets import FORMS, majority, read_set
from afarm_judge_bench.stored import read_reply, read_stored
from afarm_judge_bench.verdicts import Verdicts

from afarm import DataError, Instruction, Pair
from afarm.cli import main

HERE = Path(__file__).parent
DATA = Path(os.environ.get("AFARM_TEST_DATA", HERE.parents[3] / "shared/data"))
JUDGEBENCH = DATA / "judgebench"
needs_data = pytest.mark.skipif(not JUDGEBENCH.is_dir(), reason="the benchmarks' files are not here: AFARM_TEST_DATA")


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


Run = Callable[..., Any]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Run `afarm judge bench`: return what it printed as JSON, or the error that it ended with."""

    def run_bench(*words: str, plugin: str | Path = "") -> Any:
        before = ["--plugin-file", str(plugin)] if plugin else []
        with pytest.raises(SystemExit) as ended:
            main([*before, "judge", "bench", *words, "--json", "--output-dir", str(tmp_path / "out")])
        printed = capsys.readouterr()
        return json.loads(printed.out) if not ended.value.code else " ".join(printed.err.split())

    return run_bench


LLMBAR = [
    {"input": f"Name {n} fish.", "output_1": "eel " * n, "output_2": f"I know {n} fish: eel.", "label": 1 + n % 2}
    for n in range(1, 9)
]
JUDGEBENCH_ROW = {
    "pair_id": "a",
    "source": "livebench-math",
    "question": "What is 1 + 1?",
    "response_A": "2",
    "response_B": "3",
    "label": "A>B",
}


# ---------------------------------------------------------------------------------------------- published figures


@needs_data
@pytest.mark.parametrize(
    "pairs, answers, score, differing",
    [
        ("gpt-4o-2024-05-13", "arena_hard.o1-mini", 65.71, 0),
        ("gpt-4o-2024-05-13", "reward.Ray2333_GRM-Gemma-2B-rewardmodel-ft", 59.43, 0),
        ("gpt-4o-2024-05-13", "reward.Skywork_Skywork-Reward-Gemma-2-27B", 64.29, 6),  # equal scores, in both orders
        ("gpt-4o-2024-05-13", "reward.internlm_internlm2-20b-reward", 63.43, 0),
        ("claude-3-5-sonnet-20240620", "arena_hard.claude-3-haiku", 32.22, 0),
    ],
)
def test_stored_answers_give_the_published_figures(
    pairs: str, answers: str, score: float, differing: int, run: Run
) -> None:
    """Every reply is read as its stored decision says, but for equal scores."""
    stored = JUDGEBENCH / f"judgments.{answers}.json.gz"
    shown = run(str(JUDGEBENCH / f"pairs.{pairs}.json.gz"), "--answers", f"x={stored}")
    judge = shown["judges"][0]
    assert round(judge["score"]["value"], 2) == score
    assert score in shown["published"].values()
    assert len(judge["notes"]) == differing
    assert all("read as A=B, stored as B>A" in note for note in judge["notes"])


@needs_data
def test_pandalms_stored_answers_give_the_published_figures(run: Run) -> None:
    folder = DATA / "pandalm"
    words = [str(folder / "testset-v1.json.gz")]
    for name in ("gpt-3.5-turbo", "pandalm-7b"):
        words += ["--answers", f"{name}={folder / f'{name}-testset-v1.json.gz'}"]
    shown = run(*words)
    scores = {judge["name"]: round(judge["score"]["value"], 2) for judge in shown["judges"]}
    assert scores == {"gpt-3.5-turbo": 71.07, "pandalm-7b": 66.77}
    assert {*scores.values()} == {*shown["published"].values()}
    assert [round(judge["unparsed"], 2) for judge in shown["judges"]] == [2.5, 0]
    assert round(shown["judges"][0]["between_people"], 1) == 92.0


@needs_data
def test_every_set_is_read_whole() -> None:
    llmbar = sorted((DATA / "llmbar").glob("*.json.gz"))
    assert len(llmbar) == 6
    sets = [[str(path) for path in llmbar], [str(DATA / "autoj/pairwise_human.json.gz")]]
    read = [read_set(files) for files in sets]
    assert [(one.name, len(one.items), len({i.subset for i in one.items})) for one in read] == [
        ("LLMBar", 619, 6),
        ("Auto-J", 1392, 58),
    ]
    assert all(len({item.id for item in one.items}) == len(one.items) for one in read)


# ------------------------------------------------------------------------------------------------------- scoring


@pytest.mark.parametrize(
    "one, other, label, judgebench, llmbar, autoj, pandalm",
    [
        (FIRST, FIRST, FIRST, 1, 1, 1, 1),
        (FIRST, SECOND, FIRST, 0, 0.5, 0, 1),
        (FIRST, TIE, FIRST, 1, 0.75, 0, 1),
        (TIE, TIE, FIRST, 0, 0.5, 0, 0),
        (TIE, TIE, TIE, 0, 1, 1, 1),
        (None, FIRST, FIRST, 1, 0.5, 0, 0),
        (None, None, TIE, 0, 0, 0, 1),  # PandaLM counts what cannot be read as a tie
        (0.4, 0.9, SECOND, 0, 0.5, 0, 0),
    ],
)
def test_benchmarks_score_in_their_own_ways(
    one: float | None, other: float | None, label: float, judgebench: float, llmbar: float, autoj: float, pandalm: float
) -> None:
    scorings = (sum_of_orders, mean_of_orders, both_orders, as_given)
    assert [scoring(one, other, label) for scoring in scorings] == [judgebench, llmbar, autoj, pandalm]


def test_rewardbench_scores_are_those_of_its_package() -> None:
    """Numbers of rewardbench 0.1.4 on rows drawn at random: `rewardbench_scores.json`."""
    stored = json.loads((HERE / "rewardbench_scores.json").read_text())
    for row in stored["best_of_4"]:
        assert best_of(row["scores"]) == pytest.approx(row["result"])
    pair = Pair(Instruction("x"), "a", "b")
    for case in stored["ties"]:
        groups = [Group(row["id"], (pair,), row["num_correct"], "Ties", "") for row in case["rows"]]
        scores = [row["scores"] for row in case["rows"]]
        assert ties_score(groups, scores) == pytest.approx(case["score"]), case["kind"]


def test_figures_by_hand() -> None:
    def item(label: float, *people: float) -> Item:
        return Item("i", Pair(Instruction("x"), "a", "b"), label, "", "", people)

    flat = [(0.9, item(SECOND)), (0.6, item(FIRST)), (0.2, item(FIRST)), (None, item(FIRST)), (0.9, item(TIE))]
    # Brier (0.01 + 0.36 + 0.04) / 3; bins 0.9: 0.1 too low, 0.6: 0.6 too high, 0.8: 0.2 too low
    assert calibration(flat) == (pytest.approx(0.41 / 3), pytest.approx((0.1 + 0.6 + 0.2) / 3))
    assert calibration([(1.0, item(SECOND)), (TIE, item(FIRST))]) == (None, None)
    always_first = Verdicts("x", ((FIRST, SECOND), (FIRST, SECOND), (FIRST, TIE)))
    assert first_shown(always_first) == 100
    people = [item(SECOND, 1, 1, 0)]
    assert people_figures([(0.7, people[0])], people) == (pytest.approx(200 / 3), pytest.approx(100 / 3))
    assert [majority([0, 1]), majority([0.5, 1, 1])] == [TIE, SECOND]


def test_intervals_and_differences_count_instructions() -> None:
    whole = share([1.0] * 20, [str(n) for n in range(20)])
    assert whole.value == whole.high == 100
    assert 80 < (whole.low or 0) < 90  # Wilson: not 100 to 100
    values, names = [0.0, 1.0] * 10, [str(n) for n in range(20)]
    doubled = share(values * 2, names * 2)
    assert doubled.low == pytest.approx(share(values, names).low, abs=0.5)  # the same questions twice tell no more
    found = compare({"a": [1, 1, 1, 0], "b": [1, 0, 1, 0], "c": [0, 0, 0, 0]}, list("wxyz"))
    assert [(one.name, one.against, one.value) for one in found] == [("b", "a", -25), ("c", "a", -75)]
    # −0.25 ± s/√4 with s = 0.5: z = 1, p = 0.317, times the two of three tests that are left
    assert found[0].p == pytest.approx(0.6346, abs=1e-3)
    [alike] = compare({"a": [1, 1, 1], "b": [0, 0, 0]}, list("xyz"))
    assert (alike.p, alike.low, alike.high) == (0.25, None, None)  # three rows that differ alike are no certainty


@pytest.mark.parametrize(
    "reply, read",
    [
        ("[[A>>B]]", "A>B"),
        ("so [[B>A]], finally [[B>A]].", "B>A"),
        ("[[A=B]]", "A=B"),
        ("[[A>B]] or [[B>A]]", None),
        ("[[A>B]] or [[A>>B]]", None),
        ("[[A>A]] A>B [B>A]", None),
    ],
)
def test_a_reply_is_read_by_its_mark(reply: str, read: str | None) -> None:
    assert read_reply(reply) == read


# ------------------------------------------------------------------------------------------------------ commands


def test_judges_reward_models_and_formulas_in_one_table(run: Run, tmp_path: Path) -> None:
    """Both orders are asked, and a second start buys nothing."""
    file = write(tmp_path / "natural.json", LLMBAR)
    words = [file, "--judge", "offline", "--annotator", "gpt4_3", "--annotator", "fitted", "--reward-model"]
    words += ["text_utility", "--set", "reward.soft=true"]
    shown = run(*words)
    judges = {judge["name"]: judge for judge in shown["judges"]}
    assert [*judges] == ["fitted", "gpt4_3 + offline", "reward:text_utility"]
    assert judges["gpt4_3 + offline"]["consistent"] is not None
    assert judges["fitted"]["consistent"] is None  # it knows no order
    assert judges["reward:text_utility"]["brier"] is not None
    assert len(shown["differences"]) == 2
    planned = run(*words, "--dry-run")
    assert [stage["calls"] for stage in planned["stages"]] == [0, 0, 0]


JUDGE = HERE / "stopping_judge.py"


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The questions that `stopping_judge.py` was paid for."""
    file = tmp_path / "asked.log"
    file.write_text("")
    monkeypatch.setenv("STOPPING_LOG", str(file))
    return file


def test_a_calibrated_pool_is_measured_by_what_its_judges_say(run: Run, tmp_path: Path) -> None:
    """A calibration's coin is keyed by the pair: both orders would agree on it."""
    file = write(tmp_path / "natural.json", [{**row, "label": 1} for row in LLMBAR])
    for name, noise in (("plain", 0), ("noisy", 0.5)):
        (tmp_path / f"{name}.yaml").write_text(f"members: [gpt4_4, chatgpt_2]\ncalibration: {{noise: {noise}}}\n")
    pools = [word for name in ("plain", "noisy") for word in ("--annotator", f"pool:{tmp_path / name}.yaml")]
    plain, noisy = run(file, "--judge", "offline", *pools)["judges"]
    assert (plain["score"], plain["consistent"]) == (noisy["score"], noisy["consistent"])


def test_killed_by_a_signal_it_goes_on_and_buys_nothing_twice(
    run: Run, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "natural.json", LLMBAR)
    words = [file, "--judge", "stops", "--annotator", "chatgpt_4", "--budget", "1", "--max-concurrency", "1"]
    command = [sys.executable, "-m", "afarm", "--plugin-file", str(JUDGE), "judge", "bench", *words]
    killed = subprocess.Popen(
        [*command, "--output-dir", str(tmp_path / "out")], env={**os.environ, "STOPPING_AFTER": "5"}
    )
    try:
        while "hangs" not in log.read_text() and killed.poll() is None:
            time.sleep(0.05)
    finally:
        killed.kill()
    assert killed.wait() == -signal.SIGKILL
    assert log.read_text().splitlines()[5:] == ["hangs"]
    log.write_text(log.read_text().replace("hangs\n", ""))  # it was never answered, and never paid for
    monkeypatch.setattr("afarm.judging.ledger.LIVE_SECONDS", 0.5)  # here, only the dead are silent
    shown = run(*words, plugin=JUDGE)
    bought = log.read_text().splitlines()
    assert len(bought) == len({*bought}) == 2 * len(LLMBAR)
    assert shown["judges"][0]["dollars"] == pytest.approx(0.001 * len(bought))
    assert shown["judges"][0]["first"] == 100


def test_a_jury_is_asked_in_both_orders(run: Run, log: Path, tmp_path: Path) -> None:
    """Its judge always names the first, so that the other order turns every verdict."""
    words = (write(tmp_path / "natural.json", LLMBAR), "--annotator", "relay:chatgpt_4", "--judge", "stops")
    assert run(*words, "--dry-run", plugin=JUDGE)["stages"][0]["calls"] == 2 * len(LLMBAR)
    [judge] = run(*words, plugin=JUDGE)["judges"]
    assert (judge["first"], judge["consistent"], judge["score"]["value"], judge["judges"]) == (100, 0, 50, ["stops:"])
    assert len(log.read_text().splitlines()) == 2 * len(LLMBAR)
    assert run(*words, "--dry-run", plugin=JUDGE)["stages"][0]["calls"] == 0


WEIGHTED = """\
weighted:
  prompt_template: mine/prompt.txt
  fn_completions: openai_completions
  completions_kwargs: {model_name: m, max_tokens: 1, temperature: 1, logprobs: true, top_logprobs: 5}
  fn_completion_parser: logprob_parser
  completion_parser_kwargs: {numerator_token: m, denominator_tokens: [m, M], is_binarize: false}
  completion_key: completions_all
"""


def test_a_judge_without_log_probabilities_is_refused_before_it_is_asked_or_named_after(
    run: Run, log: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "configs.yaml").write_text(WEIGHTED)
    prompt = "{instruction}\n\nm: {output_1}\n\nM: {output_2}"
    (tmp_path / "mine" / "prompt.txt").write_text(f"<|im_start|>user\n{prompt}\n<|im_end|>\n")
    file = write(tmp_path / "natural.json", LLMBAR)
    words = (file, "--annotator", f"alpaca_eval:{tmp_path / 'mine'}", "--judge")
    assert "takes no top_logprobs, which weighted asks for: choose another judge" in run(*words, "stops", plugin=JUDGE)
    assert not log.read_text()
    said = run(*words, "stops:claims", "--annotator", "fitted", "--price", "stops:claims=1/1", plugin=JUDGE)
    assert "no figures of 1 of 2 judges" in said
    assert "none of its verdicts can be read; 16 of 16 answers came without the log-probabilities" in said


def test_re_asks_are_paid_and_counted(run: Run, log: Path, tmp_path: Path) -> None:
    words = (write(tmp_path / "natural.json", LLMBAR), "--judge", "stops:stutters", "--annotator", "chatgpt_4")
    [judge] = run(*words, plugin=JUDGE)["judges"]
    assert (judge["unparsed"], len(log.read_text().splitlines())) == (0, 4 * len(LLMBAR))
    assert judge["dollars"] == pytest.approx(0.001 * 4 * len(LLMBAR))


def test_a_larger_limit_adds_to_a_smaller_one(tmp_path: Path) -> None:
    whole = read_set([write(tmp_path / "natural.json", LLMBAR)])
    few, more = (draw(whole, limit, seed=0) for limit in (3, 6))
    assert [len(few[0].items), len(more[0].items)] == [3, 6]
    assert {*few[1]} < {*more[1]}
    assert few[0].published is None
    assert draw(whole, 8, 0)[0] is whole


def test_ties_are_drawn_with_their_partners(tmp_path: Path) -> None:
    rows = [
        {"id": f"{kind}:{n}", "prompt": f"{kind} {n}", "chosen": right, "rejected": ["q"], "subset": "Ties"}
        | {"num_correct": len(right)}
        for kind, right in (("ref", ["r"]), ("tied", ["r", "s"]))
        for n in range(20)
    ]
    drawn, _ = draw(read_set([write(tmp_path / "rb2.jsonl", rows)]), 8, seed=0)
    assert sorted(one.id.partition(":")[0] for one in drawn.groups) == ["ref"] * 4 + ["tied"] * 4
    assert len({one.id.partition(":")[2] for one in drawn.groups}) == 4
    assert ties_score(drawn.groups, [[2.0] * one.correct + [0.0] for one in drawn.groups]) == 1


def test_own_pairs_of_several_people(tmp_path: Path) -> None:
    """A pair that two people saw in other orders is one item, with both labels."""
    rows = [
        {"instruction": "x", "output_1": "a", "output_2": "b", "preference": 1, "annotator": "ann", "subset": "s"},
        {"instruction": "x", "output_1": "b", "output_2": "a", "preference": 2, "annotator": "bob"},
        {"instruction": "y", "output_1": "a", "output_2": "b", "preference": 2, "annotator": "ann"},
    ]
    bench = read_set([write(tmp_path / "mine.jsonl", rows)])
    assert [(item.label, item.people, item.subset) for item in bench.items] == [(0, (0, 0), "s"), (1, (), "")]


def test_what_may_be_a_slip_in_a_file_is_said(tmp_path: Path) -> None:
    """A repeated row without an id, a better one of equal outputs, a missing column."""
    same = {**LLMBAR[0], "output_2": LLMBAR[0]["output_1"]}
    notes = read_set([write(tmp_path / "natural.json", [*LLMBAR, LLMBAR[2], same])]).notes
    assert notes[0].endswith("count each time: 1")
    assert "natural.json: row" in notes[1]
    assert "line 10" in notes[1]
    people = {"idx": 1, "instruction": "x", "input": "", "response1": "a", "response2": "b", "annotator1": 1}
    bench = read_set([write(tmp_path / "pandalm.jsonl", [people | {"annotator2": 1}])])
    assert (bench.name, len(bench.items)) == ("own pairs", 1)
    assert bench.notes[0].endswith("near to PandaLM, but lacks 'annotator3'; read as pairs of your own")
    own = {"instruction": "x", "input": "", "output_1": "a", "output_2": "b", "preference": 1}
    assert not read_set([write(tmp_path / "mine.jsonl", [own])]).notes


def test_stored_answers_in_one_order_are_not_half_unread(tmp_path: Path) -> None:
    bench = read_set([write(tmp_path / "set.jsonl", [JUDGEBENCH_ROW])])
    stored = [{"pair_id": "a", "judgments": [{"response": "[[A>B]]"}]}]
    figures = measure(read_stored("x", write(tmp_path / "answers.jsonl", stored), bench), bench)
    assert (figures.unparsed, figures.consistent) == (0, None)
    assert figures.accuracy is not None
    assert figures.accuracy.value == 100


def test_rewardbench_2_end_to_end(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {
            "id": "1",
            "prompt": "x",
            "chosen": ["a b c"],
            "rejected": ["a", "b", "c"],
            "num_correct": 1,
            "subset": "Focus",
        },
        {"id": "ref:1", "prompt": "y", "chosen": ["r"], "rejected": ["q"], "num_correct": 1, "subset": "Ties"},
        {"id": "tied:1", "prompt": "z", "chosen": ["r", "s"], "rejected": ["q"], "num_correct": 2, "subset": "Ties"},
    ]
    file = write(tmp_path / "rb2.jsonl", rows)
    words = ("--judge", "offline", "--annotator", "ratings", "--reward-model", "text_utility")
    shown = run(file, *words)
    assert [{*judge["subsets"]} for judge in shown["judges"]] == [{"Focus", "Ties"}] * 2
    assert "needs a score of each answer" in run(file, "--judge", "offline")
    with pytest.raises(SystemExit):
        main(["judge", "bench", file, "--judge", "offline", *words[2:], "--output-dir", str(tmp_path / "out")])
    assert "ratings + offline" in capsys.readouterr().out  # one that cannot score keeps nothing from the others


def test_a_file_has_every_row_with_its_verdicts(run: Run, tmp_path: Path) -> None:
    """Credits are those whose mean is the score; a draw of the labels has no right output."""
    rows = [
        {"instruction": "x", "input": "in", "output_1": "long answer", "output_2": "no", "preference": 2},
        {"instruction": "y", "output_1": "long answer", "output_2": "no", "preference": 1.5},
    ]
    kept = tmp_path / "kept.json"
    file = write(tmp_path / "mine.jsonl", rows)
    shown = run(file, "--reward-model", "text_utility", "--annotator", "fitted", "--output", str(kept))
    document = json.loads(kept.read_text())
    assert {name: document[name] for name in shown} == shown
    items = document["items"]
    assert [(row["label"], row["right"], row["outputs"]) for row in items] == [
        (1.0, [1], ["long answer", "no"]),
        (0.5, [], ["long answer", "no"]),
    ]
    assert items[0]["input"] == "in"
    assert items[0]["judges"]["reward:text_utility"] == [0.0]  # it knows no order, and prefers the long answer
    for judge in shown["judges"]:
        credits = [row["credit"][judge["name"]] for row in items]
        assert judge["score"]["value"] == pytest.approx(100 * sum(credits) / 2)
    assert "must be a file in .json" in run(file, "--annotator", "fitted", "--output", "x.csv")


SCORED: dict[str, Any] = {
    "id": ["1", "ref:1", "tied:1"],
    "scores": [[1, 3.0, 2, 0], [[2.0], [1.0]], [3, 2, 0.5]],  # some models' scores are lists of one
    "model": "someone/model",
}


def rewardbench_set(tmp_path: Path) -> str:
    common = {"prompt": "x", "rejected": ["d"]}
    rows = [
        {**common, "id": "1", "chosen": ["a"], "rejected": ["b", "c", "d"], "num_correct": 1, "subset": "Focus"},
        {**common, "id": "ref:1", "chosen": ["r"], "num_correct": 1, "subset": "Ties"},
        {**common, "id": "tied:1", "chosen": ["r", "s"], "num_correct": 2, "subset": "Ties"},
    ]
    return write(tmp_path / "rb2.jsonl", rows)


def test_rewardbenchs_stored_scores_are_joined_by_id(tmp_path: Path, run: Run) -> None:
    """The right answer is second of four: no credit. All right answers of ties score higher."""
    file, scores = rewardbench_set(tmp_path), tmp_path / "scores.json"
    scores.write_text(json.dumps(SCORED))
    [judge] = run(file, "--answers", f"m={scores}")["judges"]
    assert judge["subsets"]["Focus"]["value"] == 0
    assert judge["subsets"]["Ties"]["value"] == pytest.approx(
        80
    )  # 1.5 > 3 - 2: 0.2 more than 0.6; ref's 1 is not above it
    drawn = run(file, "--answers", f"m={scores}", "--limit", "1")
    assert drawn["rows"] == 1
    rows = [{"id": id, "scores": row} for id, row in zip(SCORED["id"], SCORED["scores"], strict=True)]
    again = run(file, "--answers", f"m={write(tmp_path / 'rows.jsonl', rows[::-1])}")
    assert again["judges"][0]["subsets"] == judge["subsets"]


@pytest.mark.parametrize(
    "change, told",
    [
        ({"scores": [[1, 2], [1, 2], [1, 2, 3]]}, "scores.json: 0: has 2 scores, and"),
        ({"scores": [[1, 3, 2, None], [1, 2], [1, 2, 3]]}, "scores.json: 0: has 3 scores, and"),
        ({"id": ["1", "ref:1", "ref:1"]}, "id 'ref:1' was answered before"),
        ({"id": ["1", "ref:1", "ref:9"]}, "id 'ref:9' is none of RewardBench 2"),
    ],
)
def test_wrong_scores_are_named(change: dict[str, Any], told: str, tmp_path: Path, run: Run) -> None:
    file, scores = rewardbench_set(tmp_path), tmp_path / "scores.json"
    scores.write_text(json.dumps({**SCORED, **change}))
    assert told in run(file, "--answers", f"m={scores}")


def test_rewardbenchs_results_of_pairs_are_held_against_the_texts(tmp_path: Path, run: Run) -> None:
    """Scores count before the result: equal ones are a draw, which RewardBench counts as wrong."""
    file = write(
        tmp_path / "mine.jsonl", [{"prompt": f"q{n}", "chosen": f"good {n}", "rejected": "bad"} for n in (1, 2, 3)]
    )
    stored = [
        {"text_chosen": f"<s>q{n}</s>good {n}", "text_rejected": f"<s>q{n}</s>bad", "results": result, **scores}
        for n, result, scores in (
            (1, 1, {}), (2, 0, {"scores_chosen": 2.0, "scores_rejected": 2.0}), (3, 0, {"scores_chosen": None}),
        )
    ]  # fmt: skip
    answers = tmp_path / "rm_outputs.jsonl"
    [judge] = run(file, "--answers", f"rm={write(answers, stored)}")["judges"]
    assert (judge["score"]["value"], judge["consistent"]) == (50, None)  # 1, one half and 0
    assert "'text_chosen' does not hold that output" in run(file, "--answers", f"rm={write(answers, stored[::-1])}")
    assert "is the last of 2 results, of 3 pairs" in run(file, "--answers", f"rm={write(answers, stored[:2])}")
    assert "field 'results' is 7" in run(
        file, "--answers", f"rm={write(answers, [{**stored[0], 'results': 7}, *stored[1:]])}"
    )


# ----------------------------------------------------------------------------------------------------- bad input


def judgebench(**changes: Any) -> list[dict[str, Any]]:
    return [JUDGEBENCH_ROW, {**JUDGEBENCH_ROW, "pair_id": "b", **changes}]


@pytest.mark.parametrize(
    "rows, told",
    [
        (judgebench(label="A=B"), r"line 2\): field 'label' is 'A=B', a tie, and JudgeBench means none"),
        (judgebench(label="A"), r"line 2\): field 'label' is 'A'; JudgeBench has 'A>B', 'B>A'"),
        (judgebench(pair_id="a"), r"line 2\): the id 'a' is in .*line 1. already"),
        (judgebench(pair_id=None), r"line 2\): field 'pair_id' is empty"),
        (judgebench(source="gsm8k"), r"line 2\): field 'source' is 'gsm8k'"),
        ([JUDGEBENCH_ROW, {"pair_id": "b"}], r"line 2\): field 'source' is missing, which JudgeBench has"),
        ([{k: v for k, v in JUDGEBENCH_ROW.items() if k != "pair_id"}], "near to JudgeBench, but lacks 'pair_id'"),
        ([{**LLMBAR[0], "label": 0}], r"line 1\): field 'label' is 0, a tie, and LLMBar means none"),
        ([{**LLMBAR[0], "label": "1"}], r"line 1\): field 'label' is '1'; LLMBar has 1, 2"),
        ([{**LLMBAR[0], "output_2": 7}], r"line 1\): field 'output_2' must be a text, not 7"),
        (
            [{"id": "1", "prompt": "x", "chosen": "a", "rejected": "b", "num_correct": 1, "subset": "s"}],
            "lists of texts in 'chosen'",
        ),
        (
            [{"id": "1", "prompt": "x", "chosen": ["a"], "rejected": ["b"], "num_correct": 1, "subset": "Ties"}],
            "of the subset Ties it is ref:NUMBER or tied:NUMBER",
        ),
    ],
)
def test_wrong_rows_are_named(rows: list[dict[str, Any]], told: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=told):
        read_set([write(tmp_path / "set.jsonl", rows)])


@pytest.mark.parametrize(
    "answers, told",
    [
        ([], "has no answer about a"),
        ([{"pair_id": "z", "judgments": []}], r"line 1\): pair_id 'z' is none of JudgeBench"),
        ([{"pair_id": "a", "label": "B>A", "judgments": []}], r"line 1\): its label is 'B>A', and that in"),
        ([{"pair_id": "a", "judgments": []}], "must be a list of one answer per order"),
        ([{"pair_id": "a", "judgments": [{"text": "x"}]}], r"line 1\), order 1: has neither a response"),
        ([{"output": "a"}], "is no stored answer"),
        ([{"pair_id": "a", "judgments": [{"response": "[[A>B]]"}]}] * 2, r"line 2\): pair_id 'a' was answered before"),
    ],
)
def test_wrong_answers_are_named(answers: list[dict[str, Any]], told: str, tmp_path: Path) -> None:
    bench = read_set([write(tmp_path / "set.jsonl", [JUDGEBENCH_ROW])])
    with pytest.raises(DataError, match=told):
        read_stored("x", write(tmp_path / "answers.jsonl", answers), bench)


def test_wrong_commands_say_what_to_do(run: Run, tmp_path: Path) -> None:
    file, other = write(tmp_path / "natural.json", LLMBAR), write(tmp_path / "jb.jsonl", [JUDGEBENCH_ROW])
    for words, told in (
        ([file], "no judge to measure: add --judge"),
        ([file, other, "--annotator", "fitted"], "one benchmark at a time"),
        ([file, file, "--annotator", "fitted"], "is named twice"),
        ([file, "--annotator", "fitted", "--annotator", "fitted"], "fitted is named twice"),
        ([file, "--annotator", "gpt4_3"], "no judge is named"),
        ([file, "--judge", "nobody:x"], "unknown judge 'nobody'"),
    ):
        assert told in run(*words)


def test_forms_are_told_apart() -> None:
    """No form's fields are all in an earlier one's: the first that fits is the right one."""
    for number, form in enumerate(FORMS):
        assert not any({*form.fields} <= {*later.fields} for later in FORMS[number + 1 :])
