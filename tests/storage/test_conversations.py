"""Instructions that are chats: their earlier turns apart, and the answer that one ends with as output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from afarm.core.errors import DataError
from afarm.core.records import Instruction, Message, Output
from afarm.storage.conversations import is_transcript, split_transcript
from afarm.storage.rows import read_outputs
from afarm_plugins.datasets import FilesConfig
from afarm_plugins.datasets.files import Files

CHAT = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello."}]
ASK = {"role": "user", "content": "Name a colour."}
RED = {"role": "assistant", "content": "Red."}
TASK = Instruction("Name a colour.", messages=(Message("user", "Hi."), Message("assistant", "Hello.")))

ROWS: dict[str, dict[str, Any]] = {
    "a transcript": {
        "instruction": "\n\nHuman: Hi.\n\nAssistant: Hello.\n\nHuman: Name a colour.\n\nAssistant:",
        "output": "Red.",
    },
    "TRL's prompt and completion": {"prompt": [*CHAT, ASK], "completion": [RED]},
    "a completion that is text": {"prompt": [*CHAT, ASK], "completion": "Red."},
    "messages": {"messages": [*CHAT, ASK, RED]},
    "ShareGPT's": {
        "conversations": [
            {"from": {"user": "human", "assistant": "gpt"}[turn["role"]], "value": turn["content"]}
            for turn in (*CHAT, ASK, RED)
        ]
    },
    "afarm's own": {"instruction": "Name a colour.", "messages": CHAT, "output": "Red."},
}


@pytest.mark.parametrize("form", ROWS)
def test_a_chat_is_split_into_turns(form: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([ROWS[form]]))
    assert read_outputs(path) == [Output(TASK, "Red.", details=read_outputs(path)[0].details)]
    assert Files(FilesConfig(sft=str(path))).load("sft")[0].instruction == TASK


def test_text_that_mentions_a_human_is_no_transcript() -> None:
    for text in ("Human: is this one?", "A Human: x\n\nAssistant: y", "", "Human rights\n\nAssistant:"):
        assert not is_transcript(text)
    assert is_transcript("Human: Hi.\n\nAssistant: Hello.")
    assert [turn.content for turn in split_transcript("\n\nHuman: a Human: b\n\nAssistant: c\nHuman: d")] == [
        "a Human: b",
        "c\nHuman: d",
    ]


def test_a_chat_that_ends_with_nothing_to_answer_names_the_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([{"messages": [{"role": "system", "content": "Be brief."}]}]))
    with pytest.raises(DataError, match=r"row 0: field 'messages': has no turn of the user to answer at its end"):
        read_outputs(path)


def test_a_chat_of_one_turn_has_no_earlier_ones(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([{"messages": [ASK, RED]}, {"prompt": [ASK], "completion": "Red.", "messages": None}]))
    outputs = read_outputs(path)
    assert [(output.instruction, output.output) for output in outputs] == [(Instruction("Name a colour."), "Red.")] * 2


@pytest.mark.parametrize("row", [{"prompt": "Name a colour.", "completion": "Red."}, {"messages": [ASK, RED]}])
def test_an_input_beside_a_prompt_goes_below_it(row: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([{**row, "input": "warm"}]))
    assert read_outputs(path)[0].instruction == Instruction("Name a colour.", "warm")
    held = {**ASK, "content": "Name a colour.\nwarm"}
    path.write_text(json.dumps([{"messages": [held, RED], "input": "warm"}]))
    assert read_outputs(path)[0].instruction == Instruction("Name a colour.\nwarm")
    path.write_text(json.dumps([{**row, "input": 3}]))
    with pytest.raises(DataError, match=r"row 0: field '(prompt|messages)': field 'input' must be text, not int"):
        read_outputs(path)
