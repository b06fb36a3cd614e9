"""Votes of Chatbot Arena, in the two shapes that LMSYS has published them in.

`chatbot_arena_conversations` has a chat for each of two models and a `winner`; `lmsys-arena-human-preference` has the
user's turns in `prompt`, each model's in `response_a` and `response_b`, all as JSON lists, and a column for each of
three outcomes. A vote is about whole chats: of more than one turn they differ before their last answers, and no prompt
is shared.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import chain
from typing import Any

from afarm.core.errors import DataError
from afarm.core.records import JudgedPair, Message, Outcome, Pair, Preference, Row
from afarm.storage.conversations import Turns, UnusableError, as_instruction, require_turns, turns_of, unpacked
from afarm.storage.record_fields import short_repr

CHATS = ("conversation_a", "conversation_b")
ANSWERS = ("response_a", "response_b")
OUTCOMES = {"winner_model_a": 0.0, "winner_model_b": 1.0, "winner_tie": None}
"""The columns of the outcomes, and the win of model b; None for a draw."""
WINNERS = {"model_a": 0.0, "model_b": 1.0} | dict.fromkeys(("tie", "tie (bothbad)", "both_bad", "bothbad"))
"""The words of the column `winner`, likewise."""


def is_vote(row: Mapping[str, Any]) -> bool:
    """Tell a vote by its fields."""
    fields = row.keys()
    return {*CHATS, "winner"} <= fields or {"prompt", *ANSWERS, "winner_model_a"} <= fields


def read_vote(row: Row, where: str, name: str) -> JudgedPair:
    """Parse a vote; `name` is the annotator's.

    Raises `DataError`, and `UnusableError` for a row that cannot be learned from.
    """
    chats = [_chat(row, side, where) for side in (0, 1)]
    if chats[0][:-1] != chats[1][:-1]:
        turns = sum(turn.role == "assistant" for turn in chats[0])
        raise UnusableError(f"{where}: is a vote on two chats of {turns} answers each, which share no prompt: drop it")
    first, second = (chat[-1].content for chat in chats)
    models = (model if isinstance(model := row.get(name), str) else "" for name in ("model_a", "model_b"))
    pair = Pair(as_instruction(chats[0][:-1], {}, where), first, second, 0, *models)
    win = None if pair.identical else _win_of_b(row, where)
    outcome: Outcome = "draw" if win is None else "decided"
    return JudgedPair(pair, Preference(pair.id, win, outcome, "rule" if pair.identical else "human"), name)


def _chat(row: Row, side: int, where: str) -> Turns:
    """The chat with one of the models, whose answer is last."""
    name = CHATS[side] if CHATS[side] in row else ANSWERS[side]
    place = f"{where}: field {name!r}"
    if name in CHATS:
        chat = turns_of(unpacked(row[name]), place)
    else:
        asked, answered = _texts(row["prompt"], f"{where}: field 'prompt'"), _texts(row[name], place)
        if len(asked) != len(answered):
            raise UnusableError(f"{place} has {len(answered)} answers to {len(asked)} prompts; take the row out")
        speakers = (("user", asked), ("assistant", answered))
        said = [[Message(role, text.strip()) for text in texts] for role, texts in speakers]
        chat = tuple(chain.from_iterable(zip(*said, strict=True)))
    if not chat or chat[-1].role != "assistant":
        raise UnusableError(f"{place}: must end with the assistant's turn, which is the answer")
    return require_turns(chat, place)


def _texts(value: Any, where: str) -> list[str]:
    """The texts of a JSON list, or of one text by itself."""
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.lstrip().startswith("[") else [value]
        except ValueError:
            value = [value]
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise UnusableError(f"{where} must be a list of texts, not {short_repr(value)}; take the row out")
    return value


def _win_of_b(row: Row, where: str) -> float | None:
    """The win of model b, None for a draw."""
    if "winner" in row:
        if row["winner"] not in WINNERS:
            known = ", ".join(WINNERS)
            raise DataError(f"{where}: field 'winner' is {short_repr(row['winner'])}; it must be one of {known}")
        return WINNERS[row["winner"]]
    marked = [name for name in OUTCOMES if str(row.get(name)) in ("1", "1.0", "True", "true")]
    if len(marked) != 1:
        raise UnusableError(f"{where}: one of {', '.join(OUTCOMES)} must be 1, and {len(marked)} are")
    return OUTCOMES[marked[0]]
