"""Labels that a judge is fitted to: every form, several people, repeats, and what cannot be learned from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from afarm import DataError
from afarm_plugins.fitted_judges.labelled_pairs import LabelledPair, read_labelled

Rows = list[dict[str, Any]]


def judged(number: int, preference: Any, **fields: Any) -> dict[str, Any]:
    outputs = {"output_1": f"a {number}", "output_2": f"b {number}"}
    return {"instruction": f"task {number}", **outputs, "preference": preference, **fields}


def alternating(count: int, **fields: Any) -> Rows:
    return [judged(n, 1 + n % 2, **fields) for n in range(count)]


def write(path: Path, rows: Rows) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def of(rows: list[LabelledPair], number: int) -> LabelledPair:
    return next(row for row in rows if row.pair.instruction.instruction == f"task {number}")


def test_a_swapped_row_is_the_same_label(tmp_path: Path) -> None:
    rows = alternating(60)
    swapped = [
        {**r, "output_1": r["output_2"], "output_2": r["output_1"], "preference": 3 - r["preference"]} for r in rows
    ]
    plain, _ = read_labelled([write(tmp_path / "plain.jsonl", rows)])
    turned, _ = read_labelled([write(tmp_path / "turned.jsonl", swapped)])
    assert plain == turned


def test_neither_rows_nor_files_have_an_order(tmp_path: Path) -> None:
    rows = alternating(60)
    one, _ = read_labelled([write(tmp_path / "all.jsonl", rows)])
    first, second = write(tmp_path / "1.jsonl", rows[30:][::-1]), write(tmp_path / "2.jsonl", rows[:30])
    parts, _ = read_labelled([first, second])
    assert one == parts


def test_rows_about_one_pair_are_several_labels_of_it(tmp_path: Path) -> None:
    rows = [*alternating(60), judged(0, 1), judged(0, 2), judged(1, 1.25)]
    found, counts = read_labelled([write(tmp_path / "rows.jsonl", rows)])
    assert of(found, 0).votes == (0.0, 0.0, 1.0)
    assert of(found, 1).votes == (0.25, 1.0)
    assert counts.labels == 63


def test_equal_outputs_of_two_systems_stay_apart(tmp_path: Path) -> None:
    rows = [*alternating(60, generator_1="x", generator_2="y"), judged(0, 2, generator_1="x", generator_2="z")]
    found, _ = read_labelled([write(tmp_path / "rows.jsonl", rows)])
    assert len(found) == 61
    assert sorted(len(row.votes) for row in found) == [1] * 61


def test_people_have_a_column_each(tmp_path: Path) -> None:
    rows = [
        {
            "instruction": f"task {n}",
            "input": "",
            "response1": "first",
            "response2": "second",
            "cmp_key": "opt-7b_llama-7b",
            **{f"annotator{i}": 1 + (n + i // 3) % 2 for i in (1, 2, 3)},
        }
        for n in range(60)
    ]
    rows[0] |= {"response1": True, "response2": 7, "annotator1": 0, "annotator2": 2, "annotator3": None}
    rows[1] |= {"annotator1": 0, "annotator2": 0, "annotator3": 0}
    found, counts = read_labelled([write(tmp_path / "people.jsonl", rows)])
    assert of(found, 0).pair.canonical == ("7", "True")  # what a table made numbers and booleans are texts again
    assert of(found, 0).votes == (0.0, 0.5)  # in canonical order, the answer that is missing left out
    assert of(found, 2).pair.generator_1 == "opt-7b"
    assert of(found, 2).systems == {"opt-7b", "llama-7b"}
    assert len(found) == 59  # one pair is a draw
    assert (counts.draws, counts.reasons) == (4, {"without a label": 1})
    assert counts.annotators["annotator2"] == 60


@pytest.mark.parametrize("label", [3, True, "better", -1])
def test_a_label_that_is_none_is_an_error_with_its_place(label: Any, tmp_path: Path) -> None:
    row = {"instruction": "task", "response1": "a", "response2": "b", "annotator1": label}
    with pytest.raises(DataError, match=r"people.jsonl: row 0 \(line 1\): field 'annotator1' is .*1 or 2"):
        read_labelled([write(tmp_path / "people.jsonl", [row])])


def test_flipped_and_ruled_labels_are_not_learned_from(tmp_path: Path) -> None:
    rows = [
        *alternating(60),
        judged(100, 1, source="noise"),
        judged(101, 1, source="rule"),
        judged(102, None),
        judged(103, 1, output_1="same", output_2="same"),
    ]
    found, counts = read_labelled([write(tmp_path / "rows.jsonl", rows)])
    assert len(found) == 60
    assert counts.exclusions == {
        "without a label": 1,
        "of identical outputs": 1,
        "left to a coin as label noise": 1,
        "decided by a rule": 1,
    }


def test_twenty_rows_are_too_few(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"20 pairs of 20 instructions .*too few.*at least 50 pairs of 10 instructions"):
        read_labelled([write(tmp_path / "few.jsonl", alternating(20))])


def test_many_pairs_of_few_instructions_are_too_few(tmp_path: Path) -> None:
    rows = [{**row, "instruction": f"task {n % 3}"} for n, row in enumerate(alternating(90))]
    with pytest.raises(DataError, match="90 pairs of 3 instructions"):
        read_labelled([write(tmp_path / "few.jsonl", rows)])


@pytest.mark.parametrize("side", [1, 2])
def test_one_label_only_is_no_lesson(side: int, tmp_path: Path) -> None:
    rows = [judged(n, side, generator_1="gpt4", generator_2="gpt4") for n in range(60)]
    with pytest.raises(DataError, match=rf"all 60 labels are for output_{side} \(gpt4\).*chosen.*rejected"):
        read_labelled([write(tmp_path / "one.jsonl", rows)])


def test_chosen_and_rejected_say_the_side_on_purpose(tmp_path: Path) -> None:
    rows = [{"prompt": f"task {n}", "chosen": f"z {n}", "rejected": f"a {n}"} for n in range(60)]
    found, _ = read_labelled([write(tmp_path / "chosen.jsonl", rows)])
    assert {row.votes for row in found} == {(1.0,)}


def test_nothing_to_learn_from_names_why(tmp_path: Path) -> None:
    rows = [judged(0, None), judged(1, 1.5), judged(2, 1, source="noise")]
    with pytest.raises(DataError, match="1 draws, 1 without a label, 1 left to a coin as label noise"):
        read_labelled([write(tmp_path / "none.jsonl", rows)])
    with pytest.raises(DataError, match="no rows"):
        read_labelled([write(tmp_path / "empty.jsonl", [])])
    torn = [judged(n // 2, 1 + n % 2) for n in range(8)]
    said = "no label to learn from: 4 pairs with as many labels for one output as for the other; a fitted judge needs"
    with pytest.raises(DataError, match=said):
        read_labelled([write(tmp_path / "torn.jsonl", torn)])


def test_labels_on_another_scale_are_read_when_it_is_named(tmp_path: Path) -> None:
    by_one, by_people = (
        alternating(60),
        [
            {"instruction": f"task {n}", "response1": "a", "response2": f"b{n}", "annotator1": 1 + n % 2}
            for n in range(60)
        ],
    )
    for rows, label in ((by_one, "preference"), (by_people, "annotator1")):
        expected, _ = read_labelled([write(tmp_path / "rows.jsonl", rows)])
        for scale in (("0", "1"), ("A", "B")):
            named = [{**row, label: scale[row[label] - 1]} for row in rows]
            path = write(tmp_path / "named.jsonl", named)
            assert read_labelled([path], ",".join(scale))[0] == expected
            with pytest.raises(DataError, match="--labels"):
                read_labelled([path])


def test_a_file_of_another_kind_says_what_it_looks_like(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="one system's outputs"):
        read_labelled([write(tmp_path / "outputs.jsonl", [{"instruction": "x", "output": "y"}])])
    with pytest.raises(DataError, match="no such file"):
        read_labelled([tmp_path / "nowhere.jsonl"])
