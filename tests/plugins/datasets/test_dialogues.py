"""Conversations as prompts: every turn so far, whole conversations in one split, and clear errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from places import SHARED_DATA

from afarm.core.errors import ConfigError, DataError
from afarm.core.records import Instruction, Message
from afarm_plugins.datasets import DialoguesConfig
from afarm_plugins.datasets.dialogues import Dialogues, opening
from afarm_plugins.datasets.files import SPLITS

HH = SHARED_DATA / "hh_rlhf" / "harmless_base_test.jsonl.gz"


def dialogues(path: Path, rows: list[dict[str, Any]], **settings: Any) -> Dialogues:
    path.write_text("\n".join(map(json.dumps, rows)))
    return Dialogues(DialoguesConfig(path=str(path), **{"shares": {"sft": 1.0}, **settings}))


CHAT = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "Hello."},
    {"role": "assistant", "content": "Hello to you."},
    {"role": "user", "content": "A fish?"},
    {"role": "assistant", "content": "Carp."},
]
SO_FAR = (Message("system", "Be kind."), Message("user", "Hello."), Message("assistant", "Hello to you."))


@pytest.mark.parametrize(
    "row",
    [
        {"messages": CHAT},
        {"prompt": CHAT[:4], "completion": "Carp."},
        {"chosen": CHAT, "rejected": [*CHAT[:4], {"role": "assistant", "content": "Oak."}]},
    ],
)
def test_what_was_said_so_far_is_the_prompt_and_the_last_turn_the_output(row: dict[str, Any], tmp_path: Path) -> None:
    [found] = dialogues(tmp_path / "chats.jsonl", [row]).load("sft")
    assert found.instruction == Instruction("A fish?", messages=SO_FAR)
    assert found.output == "Carp."


def test_each_turn_can_be_a_prompt(tmp_path: Path) -> None:
    transcript = "\n\nHuman: One?\n\nAssistant: Two.\n\nHuman: Three?\n\nAssistant: Four."
    found = dialogues(tmp_path / "chats.jsonl", [{"prompt": transcript}], turns="all").load("sft")
    assert [(row.instruction.instruction, len(row.instruction.messages), row.output) for row in found] == [
        ("One?", 0, "Two."),
        ("Three?", 2, "Four."),
    ]


def test_conversations_that_open_alike_are_in_one_split(tmp_path: Path) -> None:
    rows = []
    for n in range(60):
        for answer in ("Yes.", "No."):
            turns = [f"Question {n}?", answer, "Why?", "So."]
            rows.append(
                {"messages": [{"role": ("user", "assistant")[i % 2], "content": t} for i, t in enumerate(turns)]}
            )
    dataset = dialogues(tmp_path / "chats.jsonl", rows, turns="all", shares=dict.fromkeys(SPLITS, 0.2))
    found = {split: {opening(row.instruction) for row in dataset.load(split)} for split in SPLITS}
    assert sum(map(len, found.values())) == len(set().union(*found.values())) == 60
    assert sum(len(dataset.load(split)) for split in SPLITS) == 60 * 3, "an opening, and two ways on from it"


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([{"messages": [{"role": "assistant", "content": "Hi."}]}], "no turn of the user"),
        ([{"messages": CHAT}, {"text": "x"}], "row 1"),
        ([], "holds no conversation"),
    ],
)
def test_a_file_without_conversations_says_so(rows: list[dict[str, Any]], reason: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=reason):
        dialogues(tmp_path / "chats.jsonl", rows).load("sft")


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        Dialogues(DialoguesConfig(shares={"sft": 2.0}))
    assert "--set dialogues.path=FILE" in "\n".join(caught.value.problems)
    assert "not exceed 1" in "\n".join(caught.value.problems)


@pytest.mark.skipif(not HH.is_file(), reason=f"needs {HH}")
def test_real_dialogues_become_prompts_of_one_to_many_turns() -> None:
    dataset = Dialogues(DialoguesConfig(path=str(HH)))
    splits = {split: dataset.load(split) for split in SPLITS}
    rows = [row for split in splits.values() for row in split]
    turns = {1 + sum(turn.role == "user" for turn in row.instruction.messages) for row in rows}
    assert len({row.instruction.id for row in rows}) == len(rows) > 2000
    assert min(turns) == 1
    assert max(turns) >= 5
    openings = [{opening(row.instruction) for row in split} for split in splits.values()]
    assert sum(map(len, openings)) == len(set().union(*openings))
    assert all(row.output for row in splits["sft"])
    assert not any(row.output for row in splits["unlabeled"])
