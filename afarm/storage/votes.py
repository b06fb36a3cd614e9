"""Votes of people on two models, as in Chatbot Arena, with or without the chats, as labels."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import chain
from typing import Any

from afarm.core.errors import DataError
from afarm.core.records import Instruction, JudgedPair, LabelOutcome, Message, Pair, Preference, Row
from afarm.storage.conversations import Turns, UnusableError, as_instruction, parse_turns, require_answer, unpacked
from afarm.storage.label_scales import LabelReader
from afarm.storage.record_fields import short_repr
from afarm.storage.row_shapes import LABELS

TIES = ("tie", "tied", "draw", "equal", "tie (bothbad)", "both_bad", "bothbad")
"""The words for a draw."""
TIED = ("status", "winner", "outcome", *LABELS)
"""The columns that may say so beside `chosen` and `rejected`."""
WINNERS = {"model_a": 0.0, "model_b": 1.0} | dict.fromkeys(TIES, 0.5)
"""The words of a vote's `winner`, and the win of model b."""
OUTCOMES = {"winner_model_a": 0.0, "winner_model_b": 1.0, "winner_tie": 0.5}
"""The columns of a vote's outcomes, likewise."""


def label_by_people(pair: Pair, win: float | None, order: str = "") -> Preference:
    """Return people's label: the win of output 2, one half for a draw, None without an answer."""
    return draw_by_rule(pair) if pair.identical else _label(pair, win, order)


def _label(pair: Pair, win: float | None, order: str = "") -> Preference:
    outcome: LabelOutcome = "unparsed" if win is None else "draw" if win == 0.5 else "decided"
    return Preference(pair.id, win if outcome == "decided" else None, outcome, "human", order=order)


def draw_by_rule(pair: Pair) -> Preference:
    return Preference(pair.id, None, "draw", "rule")


def read_vote(row: Row, where: str, reading: LabelReader) -> Sequence[JudgedPair]:
    """Parse a vote on two whole chats: of more than one turn they differ earlier, and share no prompt."""
    chats = [_voted_chat(row, side, where) for side in "ab"]
    if chats[0][:-1] != chats[1][:-1]:
        turns = sum(turn.role == "assistant" for turn in chats[0])
        raise UnusableError(f"{where}: is a vote on two chats of {turns} answers each, which share no prompt: drop it")
    models = (model if isinstance(model := row.get(name), str) else "" for name in ("model_a", "model_b"))
    first, second = (chat[-1].content for chat in chats)
    pair = Pair(as_instruction(chats[0][:-1], {}, where), first, second, 0, *models)
    win = None if pair.identical else _win_of_b(row, where)
    return [JudgedPair(pair, label_by_people(pair, win), reading.annotator)]


def _voted_chat(row: Row, side: str, where: str) -> Turns:
    name = f"conversation_{side}"
    if name in row:
        return require_answer(parse_turns(unpacked(row[name]), f"{where}: field {name!r}"), f"{where}: field {name!r}")
    name = f"response_{side}"
    place = f"{where}: field {name!r}"
    asked, answered = _texts(row["prompt"], f"{where}: field 'prompt'"), _texts(row[name], place)
    if len(asked) != len(answered):
        raise UnusableError(f"{place} has {len(answered)} answers to {len(asked)} prompts; take the row out")
    turns = [
        (Message("user", q.strip()), Message("assistant", a.strip())) for q, a in zip(asked, answered, strict=True)
    ]
    return require_answer(tuple(chain.from_iterable(turns)), place)


def _texts(value: Any, where: str) -> list[str]:
    """Return the texts of a JSON list, or of one text by itself."""
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.lstrip().startswith("[") else [value]
        except ValueError:
            value = [value]
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise UnusableError(f"{where} must be a list of texts, not {short_repr(value)}; take the row out")
    return value


def _win_of_b(row: Row, where: str) -> float:
    if "winner" in row:
        if row["winner"] not in WINNERS:
            known = ", ".join(WINNERS)
            raise DataError(f"{where}: field 'winner' is {short_repr(row['winner'])}; it must be one of {known}")
        return WINNERS[row["winner"]]
    marked = [name for name in OUTCOMES if str(row.get(name)) in ("1", "1.0", "True", "true")]
    if len(marked) != 1:
        raise UnusableError(f"{where}: one of {', '.join(OUTCOMES)} must be 1, and {len(marked)} are")
    return OUTCOMES[marked[0]]


def read_battle(row: Row, where: str, reading: LabelReader) -> Sequence[JudgedPair]:
    """Parse a vote of which only the models and the winner count: each is about a task of its own."""
    for name in ("model_a", "model_b"):
        if not isinstance(row[name], str) or not row[name].strip():
            raise DataError(f"{where}: field {name!r} is {short_repr(row[name])}; it must be the name of a model")
    pair = Pair(Instruction(where), "", "", 0, row["model_a"], row["model_b"])
    return [JudgedPair(pair, _label(pair, _win_of_b(row, where)), reading.annotator)]
