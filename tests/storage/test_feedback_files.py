"""Unpaired feedback in the forms that files have it: what is read, and what is said about the rest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from afarm import Feedback, Instruction, Message, Unusable, holds_feedback, own_feedback
from afarm.core.errors import DataError

ASK, ANSWER = "What is warm?", "Red."
CHAT = [{"role": "user", "content": ASK}, {"role": "assistant", "content": ANSWER}]

FORMS: dict[str, Mapping[str, Any]] = {
    "TRL": {"prompt": ASK, "completion": ANSWER, "label": True},
    "TRL, chats": {"prompt": CHAT[:1], "completion": CHAT[1:], "label": True},
    "TRL, written into a cell": {"prompt": json.dumps(CHAT[:1]), "completion": json.dumps(CHAT[1:]), "label": "True"},
    "afarm": Feedback(Instruction(ASK), ANSWER, True, "f").to_row(),
    "LLaMA-Factory": {"instruction": ASK, "input": "", "output": ANSWER, "kto_tag": True},
    "LLaMA-Factory, chats": {
        "conversations": [{"from": "human", "value": ASK}, {"from": "gpt", "value": ANSWER}],
        "kto_tag": 1,
    },
    "OpenAI's messages": {"messages": CHAT, "label": "thumbs_up"},
}


def write(directory: Path, *rows: Mapping[str, Any]) -> Path:
    path = directory / "f.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_read_alike(form: str, tmp_path: Path) -> None:
    path = write(tmp_path, FORMS[form])
    assert holds_feedback(path)
    assert list(own_feedback(path)) == [Feedback(Instruction(ASK), ANSWER, True, "f")]


def test_a_system_text_and_earlier_turns_belong_to_the_prompt_and_ends_are_kept(tmp_path: Path) -> None:
    turns = [{"role": "system", "content": "Be short."}, *CHAT, {"role": "user", "content": "Why?"}]
    row = {"prompt": turns, "completion": "So.", "label": False, "annotator": "ann", "finish_reason": "length"}
    [read] = own_feedback(write(tmp_path, row))
    before = (Message("system", "Be short."), Message("user", ASK), Message("assistant", ANSWER))
    assert read == Feedback(Instruction("Why?", "", "", before), "So.", False, "ann", "length")
    assert Feedback.from_row(read.to_row()) == read


LABELS: list[tuple[Any, str, bool | None]] = [
    *((up, "", True) for up in (True, 1, 1.0, "1", "TRUE", "up", "👍", "Thumbs up", "desirable")),
    *((down, "", False) for down in (False, 0, "0.0", "false", "down", "👎", "thumbs_down", "bad")),
    *((none, "", None) for none in (None, "", float("nan"))),
    *(("5", "5,1,3", True), (1, "5,1,3", False), (3, "5,1,3", None)),
    *((-1, "1,-1", False), ("harmless", "harmless,harmful", True)),
]


@pytest.mark.parametrize(("label", "scale", "meant"), LABELS)
def test_labels_are_read(label: Any, scale: str, meant: bool | None, tmp_path: Path) -> None:
    read = own_feedback(write(tmp_path, {"prompt": ASK, "completion": ANSWER, "label": label}), scale=scale)
    assert [one.label for one in read] == ([] if meant is None else [meant])


GOOD: dict[str, Any] = {"prompt": ASK, "completion": ANSWER, "label": True}
WRONG: dict[str, tuple[Mapping[str, Any], str]] = {
    "a number between": ({"label": 0.5}, "field 'label' is 0.5; a label is true or false, 1 or 0, or a word such as"),
    "less than nothing": ({"label": -1}, "say what others mean with --labels GOOD,BAD"),
    "another word": ({"label": "meh"}, "field 'label' is 'meh'; a label is true or false"),
    "a pair's scale": ({"label": 2}, "field 'label' is 2; a label is true or false"),
    "no answer": ({"completion": None}, "field 'completion' is null; write it"),
    "an empty answer": ({"completion": " "}, "is empty; write its text, or take the row out"),
    "no prompt": ({"prompt": None}, "field 'prompt' is null; write it, or take the row out"),
    "the user's turn": ({"completion": CHAT[:1]}, "field 'completion': must end with the assistant's turn"),
    "a label that is not final": ({"status": "pending"}, "so the label is not final"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_row_that_is_wrong_is_named(case: str, tmp_path: Path) -> None:
    change, said = WRONG[case]
    path = write(tmp_path, GOOD, {**GOOD, **change})
    with pytest.raises(DataError) as error:
        list(own_feedback(path))
    assert f"{path}: row 1" in str(error.value)
    assert said in str(error.value)


def test_a_label_between_two_of_a_scale_and_rows_of_another_shape_are_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is 4; by --labels 5 is a good output, 1 a bad one"):
        list(own_feedback(write(tmp_path, {**GOOD, "label": 4}), scale="5,1"))
    pair = {"prompt": ASK, "chosen": ANSWER, "rejected": "Loud."}
    with pytest.raises(DataError, match=r"row 1.*is no unpaired feedback.*These look like preferences to train on"):
        list(own_feedback(write(tmp_path, GOOD, pair)))
    assert not holds_feedback(write(tmp_path, {**pair, "label": 1, "completion": "x"}))
    assert not holds_feedback(write(tmp_path))


def test_unusable_rows_are_counted_and_rendered_texts_are_among_them(tmp_path: Path) -> None:
    unusable = Unusable(special_tokens=["</s>"])
    rows = [GOOD, {**GOOD, "completion": "Red.</s>"}, {**GOOD, "completion": ""}]
    assert len(list(own_feedback(write(tmp_path, *rows), unusable))) == 1
    assert unusable.rows == 2
    assert "holds '</s>', a special token of the model" in unusable.examples[0]


def test_what_is_odd_about_the_labels_is_told(tmp_path: Path) -> None:
    down, notes = {**GOOD, "label": False}, list[str]()
    list(own_feedback(write(tmp_path, GOOD, down, down, {**GOOD, "prompt": "other"}), notes=notes))
    assert notes == [f"{tmp_path / 'f.jsonl'}: 1 output has thumbs of both kinds (3 rows): each counts"]
