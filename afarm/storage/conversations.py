"""Chats in the forms that files have: lists of messages, and transcripts of "Human:" and "Assistant:".

A message has `role` and `content` (OpenAI, TRL) or `from` and `value` (ShareGPT). A list of them may also be written
into a text, as JSON or as Python does: tables have no other way. A transcript is HH-RLHF's: turns that begin with
"Human:" or "Assistant:" behind a blank line, whatever ends lines.
"""

from __future__ import annotations

import ast
import json
import re
import unicodedata
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any

from afarm.core.errors import DataError, did_you_mean
from afarm.core.records import Instruction, Message, Row

ROLES = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human", "prompter"), "user"),
    **dict.fromkeys(("assistant", "gpt", "bot", "chatbot", "model"), "assistant"),
}
"""afarm's role by those that files have."""
TOOLS = frozenset({"tool", "function", "ipython", "observation", "environment"})
"""Roles of turns that no person wrote and no policy of afarm answers."""
NOT_TEXT = ("tools", "images", "image")
"""Columns, TRL's among them, of what a prompt has beside its text."""

SPEAKERS = {"Human": "user", "Assistant": "assistant"}
_BLANK_LINE = r"(?>\r\n|[\n\v\f\r\x85\u2028\u2029]){2}"
_TURN = re.compile(rf"(?:\A|{_BLANK_LINE})\s*(Human|Assistant):")
_TRANSCRIPT = re.compile(rf"{_BLANK_LINE}Human:|\s*Human:(?s:.*){_BLANK_LINE}Assistant:")
_LIST = re.compile(r"\s*\[\s*\{")
_MESSAGES = re.compile(r"""\s*\[\s*\{\s*["'](?:role|content|from)["']\s*:""")

Turns = tuple[Message, ...]


class UnusableError(DataError):
    """A row that is of the right shape, and cannot be learned from."""


@dataclass(slots=True)
class Unusable:
    """The rows of a file that cannot be learned from: how many, and the first of each kind.

    Among them are rows with one of the `special_tokens` of the model that is to learn. Feedback that is `unlabelled` is
    counted apart.
    """

    special_tokens: Collection[str] = ()
    rows: int = 0
    unlabelled: int = 0
    examples: list[str] = field(default_factory=list)
    _kinds: set[str] = field(default_factory=set)

    def add(self, error: UnusableError, where: str) -> None:
        """Count a row and keep what is wrong with it, if it is the first of its kind."""
        self.rows += 1
        kind = re.sub(r"\d+", "", str(error).removeprefix(where))
        if kind not in self._kinds:
            self._kinds.add(kind)
            self.examples.append(str(error))


def is_transcript(text: str) -> bool:
    """Tell a transcript, which begins with a person's turn, from other text."""
    return bool(_TRANSCRIPT.match(text))


def split_transcript(text: str) -> Turns:
    """Split a transcript into turns, each stripped; the last may be empty, as that of a prompt is."""
    starts = [*_TURN.finditer(text)]
    ends = [*(match.start() for match in starts[1:]), len(text)]
    return tuple(
        Message(SPEAKERS[match[1]], text[match.end() : end].strip()) for match, end in zip(starts, ends, strict=True)
    )


def unpacked(value: Any) -> Any:
    """Return the messages that a text holds, as JSON or Python writes them; another value as it is."""
    if not isinstance(value, str) or not _LIST.match(value):
        return value
    for parse in (json.loads, ast.literal_eval):
        try:
            turns = parse(value)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        if isinstance(turns, list) and all(isinstance(turn, Mapping) and _role(turn) for turn in turns):
            return turns
    return value


def require_text(text: str, where: str) -> str:
    """Return a text that is no chat. Raises `UnusableError` if it begins like a list of messages."""
    if _MESSAGES.match(text):
        raise UnusableError(
            f"{where}: begins like a list of messages and is none that can be read; write it with json.dumps(messages)"
        )
    return text


def task_text(instruction: Instruction) -> str:
    """Merge the input into the instruction, behind a blank line, as AlpacaEval's data have it."""
    return "\n\n".join(part for part in (instruction.instruction, instruction.input) if part)


def task_key(instruction: Instruction) -> tuple[str, tuple[object, ...]]:
    """Return the system text of an instruction and the rest of it, equal however the same task is written.

    The input is merged; spaces at an end, line ends and Unicode's composed and decomposed letters do not count.
    """
    turns = [(turn.role, same_form(turn.content)) for turn in instruction.messages]
    system = turns.pop(0)[1] if turns and turns[0][0] == "system" else ""
    asked = "\n\n".join(filter(None, map(same_form, (instruction.instruction, instruction.input))))
    return system, (*turns, asked)


def same_form(text: str) -> str:
    """Return what counts of a text where texts are compared: no spaces at an end, one line end, NFC."""
    return unicodedata.normalize("NFC", "\n".join(text.splitlines())).strip()


class Tasks:
    """A set of tasks: `instruction in tasks` holds however the two are written (`task_key`).

    Earlier turns make another task, and so do two different system texts; a system text on one side alone does not.
    """

    def __init__(self, instructions: Iterable[Instruction] = ()):
        self._by_system = defaultdict[Hashable, dict[str, list[Instruction]]](dict)
        for instruction in instructions:
            self.add(instruction)

    def add(self, instruction: Instruction) -> None:
        system, asked = task_key(instruction)
        self._by_system[asked].setdefault(system, []).append(instruction)

    def alike(self, instruction: Instruction) -> list[Instruction]:
        """Return the instructions that ask the same, those with the same system text if there are some."""
        system, asked = task_key(instruction)
        systems = self._by_system.get(asked, {})
        return systems.get(system) or systems.get("") or ([] if system else [*chain.from_iterable(systems.values())])

    def __contains__(self, instruction: Instruction) -> bool:
        return bool(self.alike(instruction))


def chat_messages(instruction: Instruction) -> list[Row]:
    """Write an instruction as chat messages, its input below it: what a chat template renders."""
    turns = [{"role": message.role, "content": message.content} for message in instruction.messages]
    return [*turns, {"role": "user", "content": task_text(instruction)}]


def without_system_turn(turns: Sequence[Row]) -> list[Row]:
    """Move the system's text to the front of the first other turn: some templates take no system."""
    system = "\n\n".join(turn["content"] for turn in turns if turn["role"] == "system")
    others = [dict(turn) for turn in turns if turn["role"] != "system"]
    if system and others:
        others[0]["content"] = f"{system}\n\n{others[0]['content']}"
    return others


def read_messages(turns: Sequence[Any], where: str) -> Turns:
    """Read a list of messages, each stripped. Raises `DataError` naming the turn that is none."""
    return tuple(_message(turn, f"{where}: turn {number}") for number, turn in enumerate(turns))


def _role(turn: Mapping[str, Any]) -> str:
    """Return afarm's role of a message, or that of a tool; empty for no role."""
    role = turn.get("role", turn.get("from"))
    name = role.lower() if isinstance(role, str) else ""
    return ROLES.get(name, name if name in TOOLS else "")


def _message(turn: object, where: str) -> Message:
    if not isinstance(turn, Mapping):
        raise DataError(f"{where}: must be an object with 'role' and 'content', not {type(turn).__name__}")
    role, content = _role(turn), turn.get("content", turn.get("value"))
    if role in TOOLS or turn.get("tool_calls") or turn.get("function_call"):
        raise UnusableError(f"{where}: is a tool's or calls one; take the row out: policies learn from texts alone")
    if not role:
        name = turn.get("role", turn.get("from"))
        near = did_you_mean(name, ROLES) if isinstance(name, str) else ""
        raise DataError(f"{where}: 'role' is {name!r}; it must be system, user or assistant.{near}")
    if isinstance(content, list | tuple) and all(isinstance(p, Mapping) and p.get("type") == "text" for p in content):
        content = "\n".join(str(part.get("text", "")) for part in content)
    if content is None:
        raise UnusableError(f"{where}: 'content' is null; write its text, or take the row out")
    if isinstance(content, list | tuple) and any(isinstance(p, Mapping) and p.get("type") for p in content):
        raise UnusableError(f"{where}: has parts that are no text; take the row out: policies learn from texts alone")
    if not isinstance(content, str):
        raise DataError(f"{where}: 'content' must be text, not {type(content).__name__}")
    return Message(role, content.strip())


def require_turns(turns: Turns, where: str) -> Turns:
    """Check that turns alternate: system at most first, then user and assistant. Raises `UnusableError`."""
    for number, turn in enumerate(turns):
        if not turn.content:
            raise UnusableError(f"{where}: turn {number} ({turn.role}) is empty; write its text, or take the row out")
    for number, (before, turn) in enumerate(pairwise(turns), start=1):
        if turn.role in (before.role, "system"):
            raise UnusableError(
                f"{where}: turn {number} is the {turn.role}'s after the {before.role}'s; let user and assistant "
                "alternate (join neighbours of one role), after one system turn at most"
            )
    first = next((turn for turn in turns if turn.role != "system"), None)
    if first and first.role != "user":
        raise UnusableError(f"{where}: begins with the assistant's turn; put the user's before it")
    return turns


def require_answer(chat: Turns, place: str) -> Turns:
    """Return a chat that ends with the assistant's turn. Raises `UnusableError` for another."""
    if not chat or chat[-1].role != "assistant":
        raise UnusableError(f"{place}: must end with the assistant's turn, which is the answer")
    return require_turns(chat, place)


def as_instruction(turns: Turns, row: Row, where: str) -> Instruction:
    """Make the last turn, the user's, an instruction behind the others. Raises `UnusableError`."""
    turns = require_turns(turns, where)
    if held := [name for name in NOT_TEXT if row.get(name) not in (None, "", "[]", "null", [], {})]:
        what = f"comes with {held[0]!r}, which no policy would see: it learns from texts alone; take the row out, or"
        raise UnusableError(f"{where}: {what} the column {held[0]!r} if the answers do without")
    if not turns or turns[-1].role != "user":
        raise UnusableError(f"{where}: has no turn of the user to answer at its end; add one")
    task, material, dataset = turns[-1].content, row.get("input") or "", row.get("dataset")
    if material != material:  # NaN, as a data frame writes null
        material = ""
    if not isinstance(material, str):
        raise UnusableError(f"{where}: field 'input' must be text, not {type(material).__name__}")
    if f"\n{task}".endswith(f"\n{material.strip()}"):
        material = ""
    return Instruction(task, material, dataset if isinstance(dataset, str) else "", turns[:-1])


def prompt_turns(value: Any, row: Row, where: str) -> Turns:
    """Return the turns of a prompt, any `system` of its row before them. Raises `DataError`."""
    value = unpacked(value)
    if is_plain(value):
        turns: Turns = (Message("user", require_text(value, where).strip()),) if value.strip() else ()
    else:
        turns = parse_turns(value, where)
        turns = turns[:-1] if turns and turns[-1] == Message("assistant", "") else turns
    system = row.get("system")
    if turns and isinstance(system, str) and system.strip() and turns[0].role != "system":
        return (Message("system", system.strip()), *turns)
    return turns


def is_plain(value: Any) -> bool:
    """Tell a text without turns from a transcript and a list of messages."""
    return isinstance(value, str) and not is_transcript(value)


def parse_turns(value: Any, where: str) -> Turns:
    """Return the turns of a transcript or of a list of messages. Raises `DataError`."""
    if isinstance(value, str):
        return split_transcript(value)
    if isinstance(value, list | tuple):
        return read_messages(value, where)
    raise UnusableError(f"{where} must be text or a list of messages, not {type(value).__name__}")


def with_turns(row: Row, where: str) -> Row:
    """Return a row with afarm's fields in place of a transcript, a prompt or a chat, if it has one.

    A `completion` is the output, as is the assistant's turn that a chat ends with. Raises `DataError`.
    """
    text = row.get("instruction")
    if text is not None:
        column = "instruction" if isinstance(text, str) and not is_plain(unpacked(text)) else ""
    else:
        column = next((name for name in ("prompt", "messages", "conversations") if row.get(name)), "")
    if not column:
        return row
    place = f"{where}: field {column!r}"
    turns = prompt_turns(row[column], row, place)
    output: Any = row.get("completion")
    if isinstance(output, list):
        turns, output = (*turns, *read_messages(output, f"{where}: field 'completion'")), None
    if turns and turns[-1].role == "assistant":
        *before, last = turns
        turns, output = tuple(before), last.content
    answer = {} if output is None else {"output": output}
    return {**answer, **row, "messages": (), **as_instruction(turns, row, place).to_row()}
