"""Shapes of rows, told by their fields: for errors about files that are read as something else.

A preference file that is read as annotations would give a system a win rate that nobody measured: a wrong shape is an
error that names it, and the command for such a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from afarm.storage.arena_votes import is_vote
from afarm.storage.people_rows import PAIRS, people_columns

ANNOTATION = ("output_1", "output_2", "preference")
"""The fields without which a row is no annotation."""
LABELS = ("preference", "label")
"""The names that a label has."""
BETTER_AND_WORSE = "put a better and a worse answer to each into 'chosen' and 'rejected'"
MOST_LISTED = 12
"""Fields that a message lists."""


def training_pairs(file: Path | str) -> str:
    """Name the command that trains on a file of preferences."""
    return f"afarm fit-reward --preferences {file}"


def what_it_holds(row: Mapping[str, Any], file: str, to_train: bool = False) -> str:
    """List the fields of a row of `file`, and say what they look like, if that is known.

    The command is one that trains, if the file was read `to_train` on.
    """
    fields = ", ".join(map(repr, list(row)[:MOST_LISTED])) or "none"
    meaning = _other_shape(row, file, to_train)
    return f"its fields are {fields}" + (f". These look like {meaning}" if meaning else "")


def no_output(row: Mapping[str, Any], file: str) -> str:
    """Say what a row of `file` looks like that was read as an output and is none; empty if it is unknown."""
    meaning = "" if "output" in row else _other_than_output(row, file)
    return f". These look like {meaning}" if meaning else ""


def _other_than_output(row: Mapping[str, Any], file: str) -> str:
    """Name the shape of a row that holds no single output, with its command; empty if unknown."""
    fields = row.keys()
    if fields >= {*ANNOTATION}:
        return f"annotations: afarm evaluate --annotations {file}"
    if {"chosen", "rejected"} <= fields:
        return f"preferences to train on, in TRL's form: {training_pairs(file)}"
    if {"request", "text"} <= fields:
        return f"an export of the ledger, to answer for a judge: --judge replay:{file}"
    if "win_rate" in fields:
        return f"a leaderboard: afarm leaderboard {file}"
    if is_vote(row):
        return f"votes of Chatbot Arena (LMSYS), preferences to train on: {training_pairs(file)}"
    if any({*pair} <= fields for pair in PAIRS):
        if people_columns(row):
            return f"preferences to train on, labelled by people: {training_pairs(file)}"
        if {*LABELS} & fields:
            return f"preferences to train on: {training_pairs(file)}"
        return "pairs without labels: 'preference' must say which output is better, 1 or 2"
    return ""


def _other_shape(row: Mapping[str, Any], file: str, to_train: bool = False) -> str:
    """Name the shape of a row and the command for such a file; empty if it is unknown."""
    fields = row.keys()
    if shape := _other_than_output(row, file):
        return shape
    if {"prompt", "completion", "label"} <= fields:
        return "unpaired feedback (TRL's KTO): put a better and a worse answer to each prompt into one row"
    if "output" in fields and to_train:
        return f"one system's outputs: {BETTER_AND_WORSE}; as demonstrations they train by afarm sft --data {file}"
    if "output" in fields:
        return f"one system's outputs; have them judged: afarm evaluate {file} --reference FILE"
    if "instruction" in fields and to_train:
        return f"instructions without outputs: {BETTER_AND_WORSE}"
    if "instruction" in fields:
        return f"instructions without outputs; have a policy answer them: afarm evaluate --eval-set {file}"
    if {"messages", "conversations", "completion"} & fields:
        return "demonstrations, one answer to each prompt: put a better and a worse one into 'chosen' and 'rejected'"
    lower = {field.lower(): value for field, value in row.items()}
    if lower.keys() != fields and (shape := _other_shape(lower, file, to_train)):
        return f"{shape}, if its names were in lower case: rename them"
    return ""
