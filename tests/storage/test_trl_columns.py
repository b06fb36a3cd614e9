"""Data sets as TRL's page on formats describes them: each column is read, or refused by name with what to do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from afarm import DataError, Unusable, holds_feedback, own_feedback, own_preferences
from afarm.storage.rows import read_outputs

TOOLS = [{"type": "function", "function": {"name": "control_light", "parameters": {"type": "object"}}}]
CALL = {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "control_light"}}]}
RESULT = {"role": "tool", "name": "control_light", "content": "The light is on."}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


PAIR: Mapping[str, Any] = {"prompt": [user("Light?")], "chosen": [said("On.")], "rejected": [said("Off.")]}
THUMB: Mapping[str, Any] = {"prompt": [user("Light?")], "completion": [said("On.")], "label": True}


def write(directory: Path, *rows: Mapping[str, Any]) -> Path:
    path = directory / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_unpaired_rows_are_read_in_both_formats(tmp_path: Path) -> None:
    plain = {"prompt": "The sky is", "completion": " blue.", "label": False}
    path = write(tmp_path, plain, THUMB)
    assert holds_feedback(path)
    read = [(one.instruction.instruction, one.output, one.label) for one in own_feedback(path)]
    assert read == [("The sky is", "blue.", False), ("Light?", "On.", True)]


@pytest.mark.parametrize(
    "columns",
    [
        *(("score_chosen", "score_rejected"), ("chosen_rating", "rejected_rating"), ("chosen_score", "rejected_score")),
        *(("chosen-rating", "rejected-rating"), ("rating_chosen", "rating_rejected")),
    ],
)
def test_ratings_beside_a_pair_are_kept_and_one_that_contradicts_is_named(
    columns: tuple[str, str], tmp_path: Path
) -> None:
    [judged] = own_preferences(write(tmp_path, {**PAIR, columns[0]: 8.5, columns[1]: 4}))
    better, worse = sorted(judged.preference.scores or (), reverse=True)
    assert (better, worse) == (8.5, 4)
    assert (judged.preference.scores or ())[judged.win == 1] == 8.5  # the chosen output's, wherever it stands
    with pytest.raises(DataError, match=f"'{columns[0]}' is 1 and '{columns[1]}' 4, which contradicts"):
        list(own_preferences(write(tmp_path, {**PAIR, columns[0]: 1, columns[1]: 4})))


@pytest.mark.parametrize("column", ["tools", "images", "image"])
@pytest.mark.parametrize("row", [PAIR, THUMB])
@pytest.mark.parametrize("value", [TOOLS, json.dumps(TOOLS)])
def test_a_column_that_no_policy_would_see_is_named(
    column: str, row: Mapping[str, Any], value: Any, tmp_path: Path
) -> None:
    path = write(tmp_path, {**row, column: value}, row)
    read = own_feedback if row is THUMB else own_preferences
    with pytest.raises(DataError, match=f"line 1.: field 'prompt': comes with '{column}', .* or the column '{column}'"):
        list(read(path))
    unusable = Unusable()
    assert len(list(read(path, unusable))) == unusable.rows == 1


@pytest.mark.parametrize("empty", [None, [], "", "[]"])
def test_an_empty_column_of_tools_is_none(empty: Any, tmp_path: Path) -> None:
    assert len(list(own_preferences(write(tmp_path, {**PAIR, "tools": empty})))) == 1


@pytest.mark.parametrize("answer", [[CALL], [CALL, RESULT, said("Done.")]])
def test_calls_of_tools_are_named(answer: list[dict[str, Any]], tmp_path: Path) -> None:
    for row in ({**PAIR, "chosen": answer}, {**THUMB, "completion": answer}):
        read = own_feedback if "label" in row else own_preferences
        with pytest.raises(DataError, match="turn 0: is a tool's or calls one; take the row out"):
            list(read(write(tmp_path, row)))
    old = {"role": "assistant", "content": None, "function_call": {"name": "control_light"}}
    with pytest.raises(DataError, match="turn 0: is a tool's or calls one"):
        list(own_preferences(write(tmp_path, {**PAIR, "chosen": [old]})))


def test_pictures_within_a_turn_are_named(tmp_path: Path) -> None:
    prompt = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is it?"}]}]
    with pytest.raises(DataError, match="turn 0: has parts that are no text; take the row out"):
        list(own_preferences(write(tmp_path, {**PAIR, "prompt": prompt})))


def test_outputs_to_judge_and_demonstrations_say_so_too(tmp_path: Path) -> None:
    row = {"messages": [user("Light?"), said("On.")], "tools": TOOLS}
    with pytest.raises(DataError, match=r"line 1.*comes with 'tools'"):
        read_outputs(write(tmp_path, row))
    with pytest.raises(DataError, match="turn 1: is a tool's or calls one"):
        read_outputs(write(tmp_path, {"messages": [user("Light?"), CALL, RESULT, said("On.")]}))
