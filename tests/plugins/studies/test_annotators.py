"""Annotators beside people: labels worked by hand, real people's, families, and draws that a grid states."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from places import SHARED_DATA

from afarm import (
    Completion,
    ConfigError,
    Findings,
    FinishedRun,
    Instruction,
    JudgedPair,
    Pair,
    Preference,
    StudyRequest,
)
from afarm_plugins.studies.annotators import Annotators
from afarm_plugins.studies.settings import AnnotatorsConfig

PANDALM = SHARED_DATA / "pandalm"
REQUEST = StudyRequest("ppo", (1,))


def table(found: Findings, name: str) -> dict[str, dict[str, Any]]:
    """The rows of a table by their first cell."""
    [one] = [table for table in found.tables if table.name == name]
    return {str(row[0]): dict(zip(one.columns, row, strict=True)) for row in one.rows}


@pytest.mark.skipif(not PANDALM.is_dir(), reason=f"no PandaLM at {SHARED_DATA}")
def test_three_real_people_and_two_judges() -> None:
    """PandaLM's labels: agreement counted here apart, on the pairs whose two outputs differ or not alike."""
    pairs = json.loads(gzip.decompress((PANDALM / "testset-v1.json.gz").read_bytes()))
    judged = json.loads(gzip.decompress((PANDALM / "gpt-3.5-turbo-testset-v1.json.gz").read_bytes()))
    theirs = {row["idx"]: str(row["gpt_result"]) for row in judged}
    shares, alike = [], []
    for row in pairs:
        people = [str(row[f"annotator{n}"]) for n in (1, 2, 3)]
        alike.append(sum(a == b for a, b in combinations(people, 2)) / 3)
        label = {"Tie": "0"}.get(theirs[row["idx"]], theirs[row["idx"]])
        if label in "012":
            counts = Counter(people)
            most = [one for one, count in counts.items() if count == max(counts.values())]
            shares.append((label in most) / len(most))
    files = [f"gpt={PANDALM}/gpt-3.5-turbo-testset-v1.json.gz", f"panda={PANDALM}/pandalm-7b-testset-v1.json.gz"]
    found = Annotators(AnnotatorsConfig(humans=f"{PANDALM}/testset-v1.json.gz", judged=files)).analyse([])
    rows, matrix = table(found, "annotators"), table(found, "agreement")
    assert list(rows) == ["people", "gpt", "panda"]
    assert rows["people"]["labels"] == 3 * 999
    assert rows["gpt"]["labels"] == len(shares) == 974
    assert rows["gpt"]["agreement, %"].value == pytest.approx(100 * sum(shares) / len(shares))
    assert rows["gpt"]["bias, %"] is None, "one label of a pair has no mode"
    assert matrix["people"]["people"] == pytest.approx(100 * sum(alike) / len(alike))
    assert round(matrix["people"]["people"]) == 92
    assert {plot.name for plot in found.plots} == {"agreement", "preferences"}
    assert any("no plot of agreement by price" in note for note in found.notes)


# --------------------------------------------------------------------------------------------------------------- runs


def done(study: Annotators, labels: dict[str, list[str]], **answers: Completion) -> list[FinishedRun]:
    """The runs of a grid; `labels` has a text of 1s and 2s per pair, a label per draw."""
    return [
        FinishedRun(run, run.label, {}, pairs=lambda run=run: judged(run.place, labels), answers=lambda keys: answers)
        for run in study.grid(REQUEST)
        if run.place["annotator"] in labels
    ]


def judged(place: Any, labels: dict[str, list[str]]) -> list[JudgedPair]:
    rows = []
    for number, drawn in enumerate(labels[place["annotator"]]):
        pair = Pair(Instruction(f"task {number}"), "short", "long " * 20)
        label = Preference(pair.id, float(drawn[place["draw"] - 1]) - 1, completion=f"{place['annotator']}-{number}")
        rows.append(JudgedPair(pair, label))
    same = Pair(Instruction("same"), "one", "one")
    return [*rows, JudgedPair(same, Preference(same.id, None, "draw", source="rule"))]


def test_figures_families_and_prices_are_read_off_several_labels_per_pair() -> None:
    config = AnnotatorsConfig(annotators="a_1,a_2,b_1,b_2", people="folk", draws=3, family=["b_2=c"])
    study = Annotators(config)
    runs = done(
        study,
        {"folk": ["222", "221"], "a_1": ["222", "111"], "a_2": ["222", "112"], "b_1": ["111", "222"]},
        **{"a_1-0": Completion("x", price=0.02), "a_1-1": Completion("x", price=0.04)},
    )
    found = study.analyse(runs)
    rows = table(found, "annotators")
    assert {name: row["family"] for name, row in rows.items()} == {"folk": "folk", "a_1": "a", "a_2": "a", "b_1": "b"}
    # a_1: right on the first pair, wrong on the second, always the same; people's own: 1 1 1, then 1/2 1/2 0.
    assert (rows["a_1"]["agreement, %"].value, rows["a_1"]["bias, %"].value) == (50, 50)
    assert rows["a_1"]["variance, %"].value == 0
    assert rows["folk"]["agreement, %"].value == pytest.approx(100 * 4 / 6)
    assert rows["a_2"]["variance, %"].value == pytest.approx(100 * 2 / 6)
    # A label over each pair's three draws: their mean price is that of a draw, for a thousand of them.
    assert rows["a_1"]["$ per 1,000"].value == pytest.approx(30)
    assert rows["a_1"]["longer"].value == 0.5
    families = table(found, "families")
    assert families["a"]["a"] == pytest.approx(100 * (1 + 2 / 3) / 2)
    assert families["b"]["b"] is None, "b_2 has no run yet, and is another family"
    assert families["a"]["b"] == families["b"]["a"] == pytest.approx(100 * (0 + (0 + 1 / 3) / 2) / 2)


def test_each_annotator_labels_the_same_outputs_as_often_as_asked() -> None:
    runs = Annotators(AnnotatorsConfig(annotators="pool+0.25,crowd", draws=2)).grid(REQUEST)
    assert [(run.method, run.place["annotator"], run.place["draw"]) for run in runs] == [
        *(("sft", "crowd", draw) for draw in (1, 2)),
        *(("sft", "pool + 25% flipped", draw) for draw in (1, 2)),
    ]
    assert runs[3].settings == ("evaluate.annotator=pool", "evaluate.label_noise=0.25", "evaluate.label_seed=2")


def test_rows_of_one_label_each_are_read_too(tmp_path: Path) -> None:
    def rows(labels: str, annotator: str) -> list[dict[str, Any]]:
        return [
            {"instruction": f"task {n}", "output_1": "a", "output_2": "b", "preference": int(x), "annotator": annotator}
            for n, x in enumerate(labels)
        ]

    for name, given in {"people": rows("1222", "folk") + rows("1222", "folk"), "judge": rows("1121", "gpt")}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(given))
    humans, judge = str(tmp_path / "people.json"), str(tmp_path / "judge.json")
    for judged_by, name in ((judge, "gpt"), (f"mine={judge}", "mine")):
        found = Annotators(AnnotatorsConfig(humans=humans, judged=[judged_by])).analyse([])
        assert table(found, "annotators")[name]["agreement, %"].value == 50
    with pytest.raises(ConfigError, match="'people' has the name of another"):
        Annotators(AnnotatorsConfig(humans=humans, judged=[f"people={judge}"])).analyse([])


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"humans": "people.json"}, "--humans needs judges"),
        ({"judged": ["judge.json"]}, "--judged names judges of pairs"),
        ({"family": ["gpt4"]}, "family: 'gpt4': an annotator and its family"),
        ({"annotators": "pool+2"}, "'pool\\+2': an annotator, or one with a share"),
    ],
)
def test_what_compares_nothing_is_refused(config: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        Annotators(AnnotatorsConfig(**config)).grid(REQUEST)
