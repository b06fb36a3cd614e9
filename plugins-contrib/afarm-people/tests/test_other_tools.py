"""Pairs go to other tools, and their people's labels come back as what people saw and said."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from afarm_people.other_tools import ANSWERS, as_vote, read_answers, shown_order, write_csv, write_tasks
from afarm_people.rules import Project, Rules
from afarm_people.store import ProjectStore

from afarm import DataError, Instruction, Message, Pair, read_labelled_pairs

PAIRS = [
    Pair(Instruction(f"Task {n}", "Its input" * (n % 2)), f"first {n}", f"second {n}", 0, "ref", "sys")
    for n in range(6)
]
SAID = {"ann@x.org": list(ANSWERS), "bo": ["A is better"]}
"""Answers of two people to the first tasks, one each."""
Rows = list[dict[str, Any]]


@pytest.fixture
def store(tmp_path: Path) -> ProjectStore:
    opened = ProjectStore(tmp_path / "pairs.people.sqlite", seed=3)
    opened.add_pairs([(pair, {"probability": 0.5}) for pair in PAIRS], ordered=True)
    return opened


def label_studio(tasks: Rows) -> Rows:
    def result(answer: str) -> Rows:
        choice = {
            "from_name": "preference",
            "to_name": "instruction",
            "type": "choices",
            "value": {"choices": [answer]},
        }
        why = {"from_name": "reason", "to_name": "instruction", "type": "textarea", "value": {"text": ["so", "there"]}}
        return [choice, why]

    given: Rows = [{**task, "annotations": [], "predictions": [{"result": result("Tie")}]} for task in tasks]
    for person, answers in SAID.items():
        for task, answer in zip(given, answers, strict=False):
            by = {"id": 1, "email": person} if "@" in person else person
            done = {"completed_by": by, "lead_time": 2.5, "result": result(answer)}
            task["annotations"] += [{**done, "was_cancelled": True, "result": result("Tie")}, done]
    return given


def argilla(records: Rows) -> Rows:
    for person, answers in SAID.items():
        for record, answer in zip(records, answers, strict=False):
            record["responses"].setdefault("preference", []).append({"value": answer, "user_id": person})
            record["responses"].setdefault("reason", []).append({"value": "so there", "user_id": person})
    return records


def potato(items: Rows) -> Rows:
    return [
        {
            "user_id": person,
            "instance_id_to_label_to_value": {
                item["id"]: [
                    [{"schema": "preference", "name": answer}, "1"],
                    [{"schema": "reason", "name": "text_box"}, "so there"],
                ]
                for item, answer in zip(items, answers, strict=False)
            },
        }
        for person, answers in SAID.items()
    ]


@pytest.mark.parametrize(
    ("tool", "people_label"),
    [
        ("label_studio", label_studio),
        ("argilla", argilla),
        ("potato", potato),
    ],
)
def test_labels_come_back_from_a_tool(
    store: ProjectStore, tmp_path: Path, tool: Any, people_label: Callable[[Rows], Rows]
) -> None:
    place = tmp_path / "tasks.json"
    write_tasks(store, tool, place, tie=True)
    text = place.read_text()
    tasks = json.loads(text) if text.startswith("[") else [json.loads(line) for line in text.splitlines()]
    file, rows = tmp_path / "labels.json", people_label(tasks)
    file.write_text(json.dumps(rows))
    if people_label is potato:
        file = tmp_path / "annotation_output"
        for row in rows:
            (file / row["user_id"]).mkdir(parents=True)
            (file / row["user_id"] / "user_state.json").write_text(json.dumps(row, indent=2))

    answers, others = read_answers(store, str(file), None)

    assert others == 0
    ids = [id for id, _, _ in store.pairs_in_order("pair")]
    assert {shown_order(store, id) for id in ids} == {"12", "21"}  # else the test could not tell them apart
    expected = {
        (id, person): ANSWERS[answer] * (1 if shown_order(store, id) == "12" else -1)
        for person, answers in SAID.items()
        for id, answer in zip(ids, answers, strict=False)
    }
    assert {(one.pair, one.person): one.choice for one in answers} == expected
    assert all(one.shown == shown_order(store, one.pair) for one in answers)


def test_labels_are_read_by_the_order_of_their_task_whatever_the_seed(store: ProjectStore, tmp_path: Path) -> None:
    """They may come back into a new file of labels, which has another seed."""
    write_tasks(store, "label_studio", tmp_path / "tasks.json", tie=True)
    file = tmp_path / "labels.json"
    file.write_text(json.dumps(label_studio(json.loads((tmp_path / "tasks.json").read_text()))))
    other = ProjectStore(tmp_path / "other.sqlite", seed=4)
    other.add_pairs([(pair, {}) for pair in PAIRS], ordered=True)
    assert any(shown_order(store, pair.id) != shown_order(other, pair.id) for pair in PAIRS)
    assert read_answers(other, str(file), None) == read_answers(store, str(file), None)


def test_tasks_are_written_whole_and_beside_their_configuration(store: ProjectStore, tmp_path: Path) -> None:
    store.add_pairs([*((pair, {}) for pair in PAIRS), (Pair(Instruction("half \ud83d"), "a", "b"), {})])
    write_tasks(store, "argilla", tmp_path / "tasks.json", tie=True)
    texts = {record["fields"]["instruction"] for record in json.loads((tmp_path / "tasks.json").read_text())}
    assert "half \ud83d" in texts
    for tool, name in (("potato", "tasks.yaml"), ("label_studio", "tasks.xml")):
        with pytest.raises(DataError, match=rf"{name}: that is where the configuration of {tool} goes"):
            write_tasks(store, tool, tmp_path / name, tie=True)  # type: ignore[arg-type]


def test_what_a_tool_did_not_write_is_named(store: ProjectStore, tmp_path: Path) -> None:
    mixed = tmp_path / "labels.json"
    mixed.write_text(json.dumps([{"data": {"pair": "x"}, "annotations": []}, {"data": {"pair": "y"}}]))
    with pytest.raises(DataError, match=r"labels\.json: row 0"):
        read_answers(store, str(mixed), None)
    (tmp_path / "out" / "ann").mkdir(parents=True)
    (tmp_path / "out" / "ann" / "user_state.json").write_text('{"broken')
    with pytest.raises(DataError, match=r"user_state\.json"):
        read_answers(store, str(tmp_path / "out"), None)


def test_what_people_see_is_the_pair_in_the_order_drawn(store: ProjectStore, tmp_path: Path) -> None:
    write_tasks(store, "label_studio", tmp_path / "tasks.json", tie=False)
    for task, pair in zip(json.loads((tmp_path / "tasks.json").read_text()), PAIRS, strict=True):
        seen = task["data"]["response_a"], task["data"]["response_b"]
        assert seen == (pair.output_1, pair.output_2)[:: 1 if shown_order(store, pair.id) == "12" else -1]
        assert task["data"]["instruction"] == "\n\n".join(
            filter(None, [pair.instruction.instruction, pair.instruction.input])
        )
    assert "Tie" not in (tmp_path / "tasks.xml").read_text()


def test_labels_of_a_tool_count_as_peoples_and_once(store: ProjectStore, tmp_path: Path) -> None:
    write_tasks(store, "argilla", tmp_path / "tasks.json", tie=True)
    file = tmp_path / "labels.json"
    file.write_text(json.dumps(argilla(json.loads((tmp_path / "tasks.json").read_text()))))
    answers, _ = read_answers(store, str(file), None)
    rows = [(one.pair, one.person, one.choice, one.shown, one.reason, one.seconds) for one in answers]

    assert store.take_labels(rows) == (6, 0)
    assert store.take_labels(rows) == (0, 0)
    assert store.take_labels([(*rows[0][:2], 0, *rows[0][3:])]) == (0, 1)
    twice = [(*rows[0][:2], choice, *rows[0][3:]) for choice in (2, 0)]  # Label Studio lets a person answer again
    assert store.take_labels(twice) == (0, 0)
    exported = list(Project(store, Rules()).export())
    assert len(exported) == 6
    assert {row["annotator"] for row in exported}.isdisjoint(SAID)  # pseudonyms
    assert {row["reason"] for row in exported} == {"so there"}


@pytest.mark.parametrize("form", ["alpaca_eval", "csv", "arena"])
def test_the_export_is_read_back(store: ProjectStore, tmp_path: Path, form: str) -> None:
    chat = Pair(Instruction("And now?", messages=(Message("user", "Hi"), Message("assistant", "Ho"))), "x", "y")
    store.add_pairs([*((pair, {}) for pair in PAIRS), (chat, {})])
    choices = [-2, -1, 0, 1, 2, 2, -2]
    ids = [pair.id for pair in (*PAIRS, chat)]
    store.take_labels([(id, "ann", choice, "21", "", 3.0) for id, choice in zip(ids, choices, strict=True)])
    rows = list(Project(store, Rules()).export())
    file = tmp_path / f"labels.{'csv' if form == 'csv' else 'json'}"
    file.write_text(
        write_csv(rows) if form == "csv" else json.dumps(list(map(as_vote, rows)) if form == "arena" else rows)
    )

    again = ProjectStore(tmp_path / "again.sqlite")
    turned = [Pair(pair.instruction, pair.output_2, pair.output_1) for pair in (*PAIRS, chat)]
    again.add_pairs([(pair, {}) for pair in turned])  # the same pairs, the other way round
    answers, others = read_answers(again, str(file), None)

    assert others == 0
    assert len({one.person for one in answers}) == 1
    found = {one.pair: one.choice for one in answers}
    as_said = [2 * ((c > 0) - (c < 0)) for c in choices] if form == "arena" else choices  # a vote knows no "slightly"
    assert [found[id] for id in ids] == [-choice for choice in as_said]
    assert len(list(read_labelled_pairs(file))) == len(choices)


def test_votes_that_name_nobody_are_of_several_people(store: ProjectStore, tmp_path: Path) -> None:
    file = tmp_path / "votes.csv"
    with file.open("w", newline="") as opened:
        writer = csv.writer(opened)
        writer.writerow(["instruction", "output_1", "output_2", "preference"])
        writer.writerows([["Task 0", "first 0", "second 0", 1], ["Task 0", "first 0", "second 0", 2]])
    answers, _ = read_answers(store, str(file), None)
    assert [(one.person, one.choice) for one in answers] == [("votes-1", -2), ("votes-2", 2)]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"data": {"pair": "nothing"}, "annotations": []}, "none of its 0 labels"),
        (
            {"id": "other", "fields": {}, "responses": {"preference": [{"value": "Tie", "user_id": "a"}]}},
            "of its 1 lab",
        ),
        ({"id": "other", "fields": {}, "responses": {"preference": [{"value": "C", "user_id": "a"}]}}, "'C'; it must"),
        ({"instruction": "New", "output_1": "a", "output_2": "b", "preference": 1}, "they are of other pairs"),
        ({"a": 1}, "is no "),
    ],
)
def test_what_are_no_labels_of_these_pairs_is_named(
    store: ProjectStore, tmp_path: Path, row: dict[str, Any], said: str
) -> None:
    (tmp_path / "labels.json").write_text(json.dumps([row]))
    with pytest.raises(DataError, match=said):
        read_answers(store, str(tmp_path / "labels.json"), None)
