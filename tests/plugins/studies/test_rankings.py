"""Rankings by people and judges: real people's labels against a count of one's own, and files with faults."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from places import SHARED_DATA
from scipy import stats

from afarm import Bounded, ConfigError, DataError, Findings, FinishedRun, StudyRequest
from afarm_plugins.studies.rankings import Rankings
from afarm_plugins.studies.settings import RankingsConfig

PANDALM = SHARED_DATA / "pandalm"
FILES = {"gpt": ("gpt-3.5-turbo-testset-v1", "gpt_result"), "panda": ("pandalm-7b-testset-v1", "pandalm_result")}
WIN = {"1": 0.0, "2": 1.0, "0": 0.5, "Tie": 0.5}


def table(findings: Findings, name: str) -> list[dict[str, Any]]:
    [found] = [table for table in findings.tables if table.name == name]
    return [dict(zip(found.columns, row, strict=True)) for row in found.rows]


def read(name: str) -> list[dict[str, Any]]:
    with gzip.open(PANDALM / f"{name}.json.gz", "rt") as handle:
        rows: list[dict[str, Any]] = json.load(handle)
    return rows


@pytest.mark.skipif(not PANDALM.is_dir(), reason=f"no PandaLM at {SHARED_DATA}")
def test_five_models_are_ranked_by_three_people_and_two_judges() -> None:
    """PandaLM's test set: all figures follow from its labels, counted here apart."""
    pairs = read("testset-v1")
    labels = {"people": [[str(row[f"annotator{n}"]) for n in (1, 2, 3)] for row in pairs]}
    for judge, (name, column) in FILES.items():
        by_pair = {row["idx"]: str(row[column]) for row in read(name)}
        labels[judge] = [[by_pair[row["idx"]]] for row in pairs]
    means = {rater: per_task(pairs, given) for rater, given in labels.items()}
    judged = [f"{judge}={PANDALM / name}.json.gz" for judge, (name, _) in FILES.items()]
    findings = Rankings(RankingsConfig(humans=str(PANDALM / "testset-v1.json.gz"), judged=judged)).analyse([])

    board = table(findings, "board")
    order = ["llama-7b", "pythia-6.9b", "bloom-7b", "opt-7b", "cerebras-gpt-6.7B"]
    assert [row["system"] for row in board] == order
    for row in board:
        for rater, systems in means.items():
            values = 100 * np.array(list(systems[row["system"]].values()))
            low, high = stats.t.interval(0.95, len(values) - 1, values.mean(), stats.sem(values))
            assert row[f"win rate by {rater}"] == pytest.approx((values.mean(), low, high))
    assert [row["rank by people"].value for row in board] == [1, 2, 3, 4, 5]
    assert [row["rank by gpt"].value for row in board] == [1, 3, 2, 4, 5], "bloom above pythia"
    assert board[0]["rank by people"] == (1, 1, 1), "llama is best for sure"
    assert board[1]["rank by people"].high >= 3, "that people prefer pythia to bloom is not sure"

    agreement = {row["rater"]: row for row in table(findings, "agreement")}
    rates = {rater: [np.mean(list(systems[s].values())) for s in order] for rater, systems in means.items()}
    for judge in FILES:
        row = agreement[judge]
        assert row["Spearman"].value == pytest.approx(stats.spearmanr(rates[judge], rates["people"])[0])
        assert row["Kendall"].value == pytest.approx(stats.kendalltau(rates[judge], rates["people"])[0])
        assert row["R²"].value == pytest.approx(stats.pearsonr(rates[judge], rates["people"])[0] ** 2)
        assert all(row[name].low <= row[name].value <= row[name].high for name in ("Spearman", "Kendall", "R²"))
    assert (agreement["gpt"]["pairs"], agreement["gpt"]["no answer"]) == (974, 25)
    assert agreement["annotator1"]["Spearman"].value == 1, "a person ranks as the other two do"
    assert sum("bloom-7b above pythia-6.9b" in note for note in findings.notes) == 2


def per_task(pairs: Sequence[Mapping[str, Any]], labels: Sequence[Sequence[str]]) -> dict[str, dict[Any, float]]:
    """Each system's mean win per task, with the fewest steps: no function of afarm's."""
    wins: dict[str, dict[Any, list[float]]] = {}
    for row, given in zip(pairs, labels, strict=True):
        known = [WIN[label] for label in given if label in WIN]
        if known:
            second, task = sum(known) / len(known), (row["instruction"], row["input"])
            for system, win in zip(row["cmp_key"].split("_"), (1 - second, second), strict=True):
                wins.setdefault(system, {}).setdefault(task, []).append(win)
    return {system: {task: sum(w) / len(w) for task, w in tasks.items()} for system, tasks in wins.items()}


# -------------------------------------------------------------------------------------------------------------- files


def rows(labels: Sequence[str], **more: Any) -> list[dict[str, Any]]:
    """Three systems, each pair on each of two tasks; a label per row."""
    pairs = [("a", "b"), ("b", "c"), ("a", "c")]
    return [
        {"instruction": f"task {n // 3}", "generator_1": one, "generator_2": two, "idx": n, "annotator1": label, **more}
        for n, ((one, two), label) in enumerate(zip(pairs * 2, labels, strict=True))
    ]


def analysed(directory: Path, people: list[dict[str, Any]], judge: list[dict[str, Any]]) -> Findings:
    (directory / "people.json").write_text(json.dumps(people))
    (directory / "judge.json").write_text(json.dumps(judge))
    config = RankingsConfig(humans=str(directory / "people.json"), judged=str(directory / "judge.json"))
    return Rankings(config).analyse([])


def verdicts(labels: Sequence[Any]) -> list[dict[str, Any]]:
    return [{"idx": n, "preference": label} for n, label in enumerate(labels)]


def test_a_win_rate_is_the_mean_over_tasks(tmp_path: Path) -> None:
    findings = analysed(tmp_path, rows("111100"), verdicts([1, 1, 1, 1, 0, 0]))
    board = table(findings, "board")
    assert [(row["system"], row["win rate by people"].value) for row in board] == [("a", 87.5), ("b", 37.5), ("c", 25)]
    [agreement] = table(findings, "agreement")
    assert (agreement["rater"], agreement["Spearman"].value, agreement["R²"].value) == ("judge", 1, pytest.approx(1))


def test_what_is_no_verdict_is_counted_and_a_system_without_any_is_named(tmp_path: Path) -> None:
    findings = analysed(tmp_path, rows("111111"), verdicts([1, "garbage", None, 1]))
    [agreement] = table(findings, "agreement")
    assert (agreement["pairs"], agreement["no answer"]) == (2, 2)
    assert agreement["Spearman"] is None
    assert "judge has no label for c." in findings.notes


@pytest.mark.parametrize(
    ("people", "judge", "reason"),
    [
        ([{"instruction": "x", "idx": 1}], verdicts([1]), "has no label of a person"),
        (rows("111119"), verdicts([1]), "field 'annotator1' is '9'"),
        ([*rows("111111"), *rows("111111")], verdicts([1]), "stands there twice"),
        ([{"instruction": "x", "idx": 1, "annotator1": 1}], verdicts([1]), "its systems have no name"),
        (rows("111111"), [{"idx": 77, "preference": 1}], "none of its rows has a label for a pair that people"),
        (rows("111111"), [{"idx": 0, "verdict": 1}], "has no label; call its column 'preference'"),
        (rows("111111"), verdicts([1, "A", "B", "A"]), "most labels are none, such as 'A'"),
    ],
)
def test_files_with_faults_are_named(people: Any, judge: Any, reason: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=reason):
        analysed(tmp_path, people, judge)


@pytest.mark.parametrize("name", ["people", "annotator1", "judge"])
def test_a_judge_with_the_name_of_another_rater_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "people.json").write_text(json.dumps(rows("111122")))
    for file in ("judge.json", "other.json"):
        (tmp_path / file).write_text(json.dumps(verdicts([1, 2, 1, 2, 1, 2])))
    judged = [str(tmp_path / "judge.json"), f"{name}={tmp_path / 'other.json'}"]
    with pytest.raises(ConfigError, match=f"--judged {name}=.*{name!r} has the name of another"):
        Rankings(RankingsConfig(humans=str(tmp_path / "people.json"), judged=judged)).analyse([])


@pytest.mark.parametrize("files", [{"humans": "people.json"}, {"judged": ["judge.json"]}])
def test_people_without_judges_and_judges_without_people_are_refused(files: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="--judged"):
        Rankings(RankingsConfig(**files)).grid(StudyRequest("ppo", (1,)))


# --------------------------------------------------------------------------------------------------------------- runs


def test_both_worlds_have_seeds_of_their_own() -> None:
    runs = Rankings(RankingsConfig(methods="ppo,dpo")).grid(StudyRequest("ppo", (1, 2)))
    by = {world: {run.seed for run in runs if run.place["by"] == world} for world in ("people", "simulated")}
    assert len(runs) == 8
    assert by["people"].isdisjoint(by["simulated"])
    people = {setting for run in runs if run.place["by"] == "people" for setting in run.settings}
    assert people == {"annotate.annotator=crowd", "annotate.label_noise=0", "evaluate.annotator=crowd"}, "no flips"
    assert all(not run.settings for run in runs if run.place["by"] == "simulated"), "as the recipe says"


def test_methods_are_ranked_in_both_worlds_and_mismatches_named() -> None:
    study = Rankings(RankingsConfig(methods="a,b,c,d"))
    rates = {"simulated": {"a": 60, "b": 50, "c": 55, "d": 40}, "people": {"a": 58, "b": 52, "c": 51}}
    finished = [
        FinishedRun(run, run.label, {"win_rate": rates[str(run.place["by"])][run.method] + run.seed % 2})
        for run in study.grid(StudyRequest("a", (1, 2)))
        if run.method in rates[str(run.place["by"])]
    ]
    findings = study.analyse(finished)
    agreement, over_seeds = table(findings, "agreement")
    assert (agreement["methods"], agreement["interval over"]) == (3, "methods")
    assert agreement["Spearman"].value == pytest.approx(0.5)  # ranks 1 3 2 with 1 2 3
    assert agreement["Kendall"].value == pytest.approx(1 / 3)
    assert over_seeds["interval over"] == "seeds"
    assert over_seeds["Spearman"] == (0.5, 0.5, 0.5), "seeds move all methods alike, so no draw changes the order"
    assert "d is left out of the correlation: one world lacks it." in findings.notes
    assert "Mismatch: b less c is -5.0 points simulated and +1.0 by people." in findings.notes
    [first, *_] = table(findings, "board")
    assert first["win rate by people"] == Bounded(58.5, *stats.t.interval(0.95, 1, 58.5, 0.5))
    assert not math.isnan(first["win rate by simulated"].value)


def test_an_order_that_hangs_on_the_seed_has_a_wide_interval_over_seeds() -> None:
    """One method that is second on the mean of simulated seeds, and first with half of them."""
    study = Rankings(RankingsConfig(methods="a,b,c,d"))
    rates = {"a": [60] * 4, "b": [62, 56, 62, 56], "c": [50] * 4, "d": [40] * 4}
    steady = {"a": 60, "b": 59, "c": 50, "d": 40}
    finished = [
        FinishedRun(run, run.label, {"win_rate": rates[run.method][run.seed] if run.seed < 4 else steady[run.method]})
        for run in study.grid(StudyRequest("a", (0, 1, 2, 3)))
    ]
    over_methods, over_seeds = table(study.analyse(finished), "agreement")
    assert over_methods["Spearman"].value == over_seeds["Spearman"].value == 1
    assert over_methods["Spearman"].low == 1, "whatever methods are drawn, their means have one order"
    assert over_seeds["Spearman"].low == pytest.approx(0.8), "ranks 2 1 3 4 with 1 2 3 4"


def test_one_seed_has_no_interval_over_seeds() -> None:
    study = Rankings(RankingsConfig(methods="a,b,c"))
    finished = [
        FinishedRun(run, run.label, {"win_rate": 50.0 + ord(run.method)}) for run in study.grid(StudyRequest("a", (1,)))
    ]
    [agreement] = table(study.analyse(finished), "agreement")
    assert agreement["interval over"] == "methods"


# ------------------------------------------------------------------------------------------- people's own preferences


def test_peoples_own_preferences_train_their_half_and_methods_without_any_are_named() -> None:
    study = Rankings(RankingsConfig(methods="a,b,c,d", people_preferences=["a=hh.jsonl", "b=b.csv", "c=hf:me/mine"]))
    runs = study.grid(StudyRequest("a", (1,)))
    people = {run.method: run.settings for run in runs if run.place["by"] == "people"}
    assert people == {"a": ("preferences=hh.jsonl",), "b": ("preferences=b.csv",), "c": ("preferences=hf:me/mine",)}
    assert [run.method for run in runs if run.place["by"] == "simulated"] == ["a", "b", "c", "d"]
    findings = study.analyse([FinishedRun(run, run.label, {"win_rate": 50.0 + run.seed % 7}) for run in runs])
    assert "d has no preferences of people: it learned from simulated labels alone." in findings.notes
    assert any("(hh.jsonl for a, b.csv for b, mine for c)" in note for note in findings.notes)
    assert any("is judged by the recipe's annotator." in note for note in findings.notes)
    assert {"win rate, labels by people", "win rate, labels by simulated"} < {*table(findings, "board")[0]}
    assert findings.plots[0].x_title == "win rate, labels by people, %", "one judge: it is no win rate by people"


def test_an_annotator_that_stands_for_people_may_judge_what_their_preferences_teach() -> None:
    study = Rankings(RankingsConfig(methods="a", people="me", people_preferences=["all.jsonl"]))
    [run] = [run for run in study.grid(StudyRequest("a", (1,))) if run.place["by"] == "people"]
    assert run.settings == ("preferences=all.jsonl", "evaluate.annotator=me")
    findings = study.analyse([FinishedRun(run, run.label, {"win_rate": 50.0})])
    assert "win rate by people" in table(findings, "board")[0]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (["ppp=x.jsonl"], "'ppp' is none of the methods: a, b"),
        (["a=x.jsonl", "a=y.jsonl"], "two files for a: join them"),
        (["x.jsonl", "y.jsonl"], "two files for all methods"),
    ],
)
def test_preferences_of_no_method_or_of_one_twice_are_refused(given: list[str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        Rankings(RankingsConfig(methods="a,b", people_preferences=given))
