"""Reading labels: whose they are, which pairs are the same, and what they cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from afarm.analysis import HUMANS, compare, read_labels
from afarm.analysis.labels import with_prices
from afarm.errors import DataError
from afarm.judges import Completion
from afarm.records import Instruction, JudgedPair, Pair, Preference

ROW = {"instruction": "i", "output_1": "one", "output_2": "two", "preference": 2}


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text(json.dumps([{**ROW, **row} for row in rows]), encoding="utf-8")
    return path


def test_a_row_belongs_to_its_annotator_or_to_its_file(tmp_path: Path) -> None:
    file = write(tmp_path / "mine.json", {"annotator": "a"}, {}, {"annotator": "human"}, {"source": "human"})
    found = read_labels([file])
    assert {name: len(labels) for name, labels in found.items()} == {HUMANS: 2, "a": 1, "mine": 1}
    assert next(iter(found)) == HUMANS


def test_people_are_whom_the_user_names_by_annotator_or_file(tmp_path: Path) -> None:
    crowd = write(tmp_path / "crowd.json", {"annotator": "worker 1"}, {"annotator": "worker 2"})
    judges = write(tmp_path / "judges.json", {"annotator": "human"}, {"annotator": "expert"}, {"annotator": "b"})
    for name in ("crowd", "crowd.json", str(crowd)):
        found = read_labels([crowd, judges], humans=[name, "expert"])
        assert {n: len(labels) for n, labels in found.items()} == {HUMANS: 3, "b": 1, "human": 1}
    with pytest.raises(DataError, match=r"--humans crowds.*called that"):
        read_labels([crowd, judges], humans=["crowds"])


def test_members_of_a_pool_can_be_told_apart(tmp_path: Path) -> None:
    members: list[dict[str, Any]] = [{"member": "gpt4_1"}, {"member": "x"}, {"source": "noise"}]
    file = write(tmp_path / "p.json", *({"annotator": "pool", **row} for row in members))
    assert set(read_labels([file])) == {"pool"}
    assert set(read_labels([file], by_member=True)) == {"gpt4_1", "x", "(noise)"}


def test_swapped_files_hold_the_same_pairs_and_choices(tmp_path: Path) -> None:
    one = write(tmp_path / "one.json", {"annotator": "a", "preference": 2})
    swapped = {"output_1": "two", "output_2": "one", "preference": 1, "annotator": "b"}
    two = write(tmp_path / "two.json", swapped)
    found = read_labels([one, two])
    assert found["a"][0].pair_id == found["b"][0].pair_id
    assert found["a"][0].choice == found["b"][0].choice
    agreement = compare(found).agreement("a", "b")
    assert agreement is not None
    assert agreement.value == 100


def test_afarms_own_rows_tell_order_and_completion(tmp_path: Path) -> None:
    pair = Pair(Instruction("i"), "one", "two")
    rows = [
        JudgedPair(pair, Preference(pair.id, 1.0, order="21", completion="k"), "pool").to_row(),
        JudgedPair(pair, Preference(pair.id, None, outcome="unparsed"), "pool").to_row(),
        JudgedPair(pair, Preference(pair.id, None, outcome="draw"), "pool").to_row(),
    ]
    first, unread, draw = read_labels([write(tmp_path / "p.json", *rows)])["pool"]
    assert (first.shown_first, first.completion, first.choice) == (2, "k", "high")
    assert (unread.p2, unread.choice) == (None, None)
    assert (draw.p2, draw.choice) == (0.5, "draw")


def test_identical_outputs_are_no_judgement(tmp_path: Path) -> None:
    same = {"output_2": "one", "preference": 0}
    file = write(tmp_path / "a.json", same, same, {"preference": 1})
    assert len(read_labels([file])["a"]) == 1
    with pytest.raises(DataError, match="no labels of different outputs"):
        read_labels([write(tmp_path / "b.json", same)])


def test_a_wrong_row_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.json: row 1: field 'preference' is 3"):
        read_labels([write(tmp_path / "a.json", {}, {"preference": 3})])


def test_labels_of_one_completion_share_its_price(tmp_path: Path) -> None:
    file = write(
        tmp_path / "a.json",
        {"instruction": "1", "completion": "k"},
        {"instruction": "2", "completion": "k"},
        {"instruction": "3", "completion": "gone"},
        {"instruction": "4", "completion": "k", "price_per_example": 5.0},
    )
    known = {"k": Completion("", price=0.02, seconds=4.0, key="k")}
    asked: list[list[str]] = []

    def completions(keys: Any) -> dict[str, Completion]:
        asked.append(list(keys))
        return known

    labels = with_prices(read_labels([file]), completions)["a"]
    assert [(label.price, label.seconds) for label in labels] == [(0.01, 2.0), (0.01, 2.0), (None, None), (5.0, None)]
    assert asked == [["k", "gone"]]


def test_a_label_of_several_answers_costs_them_all(tmp_path: Path) -> None:
    file = write(
        tmp_path / "p.json",
        *({"annotator": "a", "completion": keys} for keys in ("k,l", "k", "l,unpriced", "l,gone")),
    )
    known = {
        "k": Completion("k", price=0.02, seconds=4.0),
        "l": Completion("l", price=0.03, seconds=3.0),
        "unpriced": Completion("u", price=None, seconds=1.0),
    }
    labels = with_prices(read_labels([file]), lambda keys: {key: known[key] for key in keys if key in known})["a"]
    assert [label.price for label in labels] == [pytest.approx(0.02), pytest.approx(0.01), None, None]
    assert [label.seconds for label in labels] == [pytest.approx(3.0), pytest.approx(2.0), pytest.approx(2.0), None]
