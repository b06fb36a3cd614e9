"""Labels of any scale, and files whose labels can be read in two ways refused by everybody who reads labels."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from afarm.core.errors import ConfigError, DataError
from afarm.evaluation.annotation_files import annotated_systems
from afarm.evaluation.boards import read_boards
from afarm.evaluation.labels import read_labels
from afarm.storage.label_scales import LabelReader, LabelScale
from afarm.storage.labelled_pairs import own_preferences, read_annotations
from afarm_plugins.judges.replay import read_stored


def write(path: Path, labels: list[Any], **fields: Any) -> Path:
    rows = [
        {"instruction": f"task {n}", "output_1": f"one {n}", "output_2": f"two {n}", "preference": label, **fields}
        for n, label in enumerate(labels)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


READERS: dict[str, Callable[[Path], Any]] = {
    "preferences": lambda path: list(own_preferences(path)),
    "annotations": lambda path: list(read_annotations(path)),
    "systems": lambda path: annotated_systems([path], path.parent),
    "annotators": lambda path: read_labels([path]),
    "a board": lambda path: read_boards([], [path]),
    "a replay": read_stored,
}


@pytest.mark.parametrize("reader", READERS)
def test_labels_0_and_1_are_refused_with_both_readings(reader: str, tmp_path: Path) -> None:
    read = READERS[reader]
    path = write(tmp_path / "own.jsonl", [0, 1, 1, 0, 1], generator_1="a", generator_2="b", annotator="me")
    with pytest.raises(DataError) as caught:
        read(path)
    said = str(caught.value)
    assert said.startswith(f"{path}: its labels are 0 and 1 and never 2, which can mean two things. Either 0 says that")
    with_option = "and 1 the second: say --labels 0,1. Or 1 is the first output and 0 a draw"
    with_advice = "and 1 the second: add 1 to each. Or 1 is the first output and 0 a draw"
    assert (with_option if reader == "preferences" else with_advice) in said
    with pytest.raises(DataError, match="its labels are 0 and never 1 or 2, which can mean two things"):
        read(write(path, [0, 0], generator_1="a", generator_2="b", annotator="me"))
    for labels in ([0, 1, 2], [1, 1], [1, 1.5], [1, None], [2, 0]):
        read(write(path, labels, generator_1="a", generator_2="b", annotator="me"))


def test_0_1_and_2_of_a_row_that_is_not_alpaca_evals_can_mean_two_things(tmp_path: Path) -> None:
    for name, labels, seen in (("label", [0, 1, 2], "0, 1 and 2"), ("preference", ["0", "2"], "0 and 2")):
        rows = [
            {"instruction": f"{n}", "output_1": "a", "output_2": "b", name: label} for n, label in enumerate(labels)
        ]
        path = tmp_path / "own.jsonl"
        path.write_text("\n".join(map(json.dumps, rows)))
        with pytest.raises(DataError) as caught:
            list(own_preferences(path))
        assert f"its labels are {seen}, which can mean two things. Either 0 says that the first output" in str(
            caught.value
        )
        assert "2 the second, and 1 a draw: say --labels 0,2,1. Or 1 is the first" in str(caught.value)
        assert [judged.win for judged in own_preferences(path, scale="0,2,1")][-1] == 1
        rows[1][name] = 1.25  # weighted labels are AlpacaEval's
        path.write_text("\n".join(map(json.dumps, rows)))
        assert [judged.win for judged in own_preferences(path)][:2] == [0.5, 0.25]


def test_what_can_only_be_a_draw_is_no_sign_of_another_scale(tmp_path: Path) -> None:
    path = write(tmp_path / "same.jsonl", [0, 1])
    first, second = map(json.loads, path.read_text().splitlines())
    for row in ({**first, "output_2": first["output_1"]}, {**first, "outcome": "draw"}):
        path.write_text(f"{json.dumps(row)}\n{json.dumps(second)}")
        assert [judged.win for _, _, judged in read_annotations(path)] == [0.5, 0.0]


@pytest.mark.parametrize(
    ("scale", "labels", "wins"),
    [
        ("0,1", [0, 1, "1", 0.25, 1.0, None], [0, 1, 1, 0.25, 1, None]),
        ("1,0", [0, 1, 0.25], [1, 0, 0.75]),
        ("1,2,0", [0, 1, 2], [0.5, 0, 1]),
        ("-1,1,0", [-1, 1, 0, "-1.0"], [0, 1, 0.5, 0]),
        ("A,B,tie", ["a", " B", "Tie", ""], [0, 1, 0.5, None]),
        ("false,true", [True, False, "True"], [1, 0, 1]),
        ("left,right", ["right"], [1]),
    ],
)
def test_a_named_scale_is_read(scale: str, labels: list[Any], wins: list[float | None], tmp_path: Path) -> None:
    path = write(tmp_path / "own.jsonl", labels)
    assert [judged.win for judged in own_preferences(path, scale=scale)] == wins
    assert [judged.win for _, _, judged in read_annotations(path, scale)] == wins


def test_a_label_of_another_scale_is_named_with_its_row_and_the_option(tmp_path: Path) -> None:
    path = write(tmp_path / "own.jsonl", ["0", "x"])
    with pytest.raises(
        DataError, match=r"row 1 \(line 2\): field 'preference' is 'x'; by --labels 0 is .* 1 the second"
    ):
        list(own_preferences(path, scale="0,1"))
    with pytest.raises(
        DataError, match=r"row 1 \(line 2\): .*1 or 2 for the better output.*--labels FIRST,SECOND\[,DRAW\]"
    ):
        list(own_preferences(path))
    with pytest.raises(DataError, match=r"row 1 \(line 2\): .*1 or 2 for the better output.*; write other labels so"):
        list(read_annotations(path))


@pytest.mark.parametrize("text", ["1", "1,", "1,1", "a,A", "1,2,3,4", ""])
def test_a_scale_has_two_or_three_values(text: str) -> None:
    with pytest.raises(ConfigError, match=f"labels: '{text}' must name the labels of the first output"):
        LabelScale.parse(text)


def test_people_who_agree_on_0_and_1_are_asked_too(tmp_path: Path) -> None:
    row = {"instruction": "i", "response1": "x", "response2": "y"}
    path = tmp_path / "people.json"
    path.write_text(json.dumps([{**row, "annotator1": 0, "annotator2": 1}, {**row, "annotator1": 1, "annotator2": 1}]))
    with pytest.raises(DataError, match="never 2, which can mean two things"):
        list(own_preferences(path))
    assert [judged.win for judged in own_preferences(path, scale="0,1")] == [0.5, 1]


def test_numbers_out_of_range_are_no_labels() -> None:
    for label in (3, -1, 0.5, float("inf"), True, "two", [1], {}):
        with pytest.raises(DataError, match="row 0: field 'preference' is"):
            LabelReader("f").number(label, "preference", "f: row 0")
