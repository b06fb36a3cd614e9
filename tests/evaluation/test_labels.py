"""Reading labels: whose they are, which pairs are the same, and what they cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from afarm.core.errors import DataError
from afarm.core.judge import Completion
from afarm.core.records import Instruction, JudgedPair, Pair, Preference
from afarm.evaluation.agreement import compare_annotators
from afarm.evaluation.labels import HUMANS, Label, member_family, read_labels, with_prices

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
    found = read_labels([judges], humans=[str(crowd)])
    assert {n: len(labels) for n, labels in found.items()} == {HUMANS: 2, "b": 1, "expert": 1, "human": 1}
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
    agreement = compare_annotators(found).agreement("a", "b")
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


def asked(judge: str, *members: str, **more: Any) -> list[dict[str, Any]]:
    """A row each for `members` of a pool, all of which asked `judge`."""
    return [{"annotator": "pool", "member": member, "judge": judge, **more} for member in members]


def counts(found: dict[str, list[Label]]) -> dict[str, int]:
    return {name: len(labels) for name, labels in found.items()}


def test_one_annotator_under_two_judges_is_two(tmp_path: Path) -> None:
    noise: dict[str, Any] = {"annotator": "pool", "source": "noise"}
    one = write(tmp_path / "one.json", *asked("openai:gpt-4.1", "m"), noise)
    two = write(tmp_path / "two.json", *asked("anthropic:opus", "m", "m"), {**noise, "preference": 1})
    found = read_labels([one, two])
    assert counts(found) == {"pool (anthropic:opus)": 3, "pool (openai:gpt-4.1)": 2}
    assert {label.annotator for labels in found.values() for label in labels} == {"pool"}
    assert compare_annotators(found).agreement(*found) is not None
    assert counts(read_labels([one])) == {"pool": 2}
    assert counts(read_labels([one, two], by_member=True)) == {
        "(noise)": 2,
        "m (anthropic:opus)": 2,
        "m (openai:gpt-4.1)": 1,
    }


def test_rows_that_name_no_judge_are_not_taken_for_those_of_one_that_is_named(tmp_path: Path) -> None:
    old = write(tmp_path / "old.json", {"annotator": "pool"}, {"annotator": "pool", "judge": {"not": "ours"}})
    new = write(tmp_path / "new.json", *asked("j", ""))
    assert counts(read_labels([old, new])) == {"pool": 2, "pool (j)": 1}
    assert counts(read_labels([old, old])) == {"pool": 4}


def test_a_pool_that_asks_a_judge_for_each_role_is_one_until_a_role_changes_hands(tmp_path: Path) -> None:
    first = write(tmp_path / "first.json", *asked("a", "light"), *asked("b", "strong"))
    part = write(tmp_path / "part.json", *asked("b", "strong"))
    other = write(tmp_path / "other.json", *asked("a", "light"), *asked("c", "strong"))
    swapped = write(tmp_path / "swapped.json", *asked("b", "light"), *asked("a", "strong"))
    assert counts(read_labels([first, part])) == {"pool": 3}
    assert counts(read_labels([first, other])) == {"pool (a, b)": 2, "pool (a, c)": 2}
    assert counts(read_labels([first, swapped])) == {"pool (a, b)": 2, "pool (b, a)": 2}
    one = write(tmp_path / "1.json", *asked("a", "x", "y"), *asked("b", "z"))
    two = write(tmp_path / "2.json", *asked("a", "x"), *asked("b", "y", "z"))
    assert counts(read_labels([one, two])) == {"pool (a, b) (1)": 3, "pool (a, b) (2)": 3}


def test_a_file_with_the_labels_of_two_judges_goes_by_its_rows(tmp_path: Path) -> None:
    noise = {"annotator": "pool", "source": "noise"}
    file = write(tmp_path / "all.json", *asked("a", "m", "m"), *asked("b", "m"), noise)
    assert counts(read_labels([file])) == {"pool (a)": 2, "pool (b)": 1, "pool (noise)": 1}


def test_labels_over_both_orders_are_another_annotators(tmp_path: Path) -> None:
    plain = write(tmp_path / "plain.json", *asked("a", "m", order="12"), *asked("a", "m", order="21"))
    both = write(tmp_path / "both.json", *asked("a", "m", order="both"))
    assert counts(read_labels([plain, both])) == {"pool": 2, "pool (both orders)": 1}
    b = write(tmp_path / "b.json", *asked("b", "m", order="both"))
    assert set(read_labels([plain, both, b])) == {"pool (a)", "pool (a, both orders)", "pool (b, both orders)"}


def test_files_are_told_apart_on_request(tmp_path: Path) -> None:
    one, two = (write(tmp_path / f"{name}.json", *asked("a", "m")) for name in ("one", "two"))
    assert counts(read_labels([one, two])) == {"pool": 2}
    assert counts(read_labels([one, two], by_file=True)) == {"pool (one)": 1, "pool (two)": 1}
    people = write(tmp_path / "people.json", {"annotator": "human"}, {})
    assert counts(read_labels([two, people], by_file=True)) == {HUMANS: 1, "people": 1, "pool (two)": 1}


def test_files_of_one_name_go_by_their_directories_too(tmp_path: Path) -> None:
    files = []
    for directory in ("a", "b", "deep/a"):
        (tmp_path / directory).mkdir(parents=True)
        files.append(write(tmp_path / directory / "p.json", *asked("j", "m")))
    assert set(read_labels(files[:2], by_file=True)) == {"pool (a/p)", "pool (b/p)"}
    assert set(read_labels(files, by_file=True)) == {f"pool ({file})" for file in files}


def test_own_family_is_the_judges_whatever_the_annotator_is_called(tmp_path: Path) -> None:
    by = {"generator_1": "claude-2", "generator_2": "gpt-4", "preference": 1, "annotator": "gpt4_4"}

    def share(judges: list[str], families: dict[str, str] | None = None) -> float | None:
        file = write(tmp_path / "p.json", *({**by, "member": judge, "judge": judge} for judge in judges))
        [profile] = compare_annotators(read_labels([file]), families).profiles
        return profile.prefers_own_family.value if profile.prefers_own_family else None

    assert share([""]) == 0
    assert share(["anthropic:claude-opus-5-5"]) == 1
    assert share(["offline:text_utility@0"]) is None
    assert share(["anthropic:claude-opus-5-5", "openai:gpt-4.1"]) is None
    assert share(["local:mine@0"], {"mine": "anthropic"}) == 1
    assert share(["offline:text_utility@0"], {"gpt4_4": "openai"}) == 0


@pytest.mark.parametrize(("member", "family"), [("gpt4_1", "gpt4"), ("gpt4", "gpt4"), ("davinci-003", "davinci")])
def test_the_number_of_a_member_is_no_part_of_its_family(member: str, family: str) -> None:
    assert member_family(member) == family
