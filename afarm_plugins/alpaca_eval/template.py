"""AlpacaEval's prompt templates: ChatML turns or plain text, with placeholders repeated per pair.

The text is split into turns before it is filled, and filled in one pass. So an output that holds `{output_1}` or
`<|im_start|>` stays what it is: text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from afarm import Instruction, Message, ShownPair, did_you_mean

START, END = "<|im_start|>", "<|im_end|>"
ROLES = ("system", "user", "assistant")
PLACEHOLDER = re.compile(r"{([^ \s]+?)}")

COLUMNS: dict[str, Callable[[ShownPair], str]] = {
    "instruction": lambda comparison: comparison.instruction.instruction,
    "input": lambda comparison: comparison.instruction.input,
    "output_1": lambda comparison: comparison.first,
    "output_2": lambda comparison: comparison.second,
}
"""Columns that placeholders can name. `output_1` is the output shown first."""


@dataclass(frozen=True, slots=True)
class Template:
    """A template as it is filled: its `turns`, or none where the `text` is to be completed."""

    text: str
    turns: tuple[Message, ...]

    def fill(self, comparisons: Sequence[ShownPair]) -> tuple[Message, ...]:
        """The turns, or the text as one turn of nobody (""): the n-th placeholder takes the n-th comparison."""
        rows = [{name: column(c) for name, column in COLUMNS.items()} for c in comparisons]
        if "{input}" not in self.text:
            for row, comparison in zip(rows, comparisons, strict=True):
                row["instruction"] = whole_instruction(comparison.instruction)
        seen: Counter[str] = Counter()

        def value(match: re.Match[str]) -> str:
            seen[match[1]] += 1
            return rows[seen[match[1]] - 1][match[1]]

        turns = self.turns or (Message("", self.text),)
        return tuple(Message(t.role, PLACEHOLDER.sub(value, t.content).strip(), t.name) for t in turns)


def whole_instruction(instruction: Instruction) -> str:
    """An instruction as one text: AlpacaEval has no column for earlier turns or an input."""
    turns = [f"[{turn.role}] {turn.content}" for turn in instruction.messages]
    return "\n\n".join([*turns, instruction.instruction, *filter(None, [instruction.input])])


def read_template(text: str, batch_size: int) -> tuple[Template, list[str]]:
    """The template in `text`, and what is wrong with it."""
    text = text.strip()
    turns, problems = _turns(text) if text.startswith(START) else ((), [])
    counts = Counter(PLACEHOLDER.findall(text))
    if not counts:
        problems.append("has no placeholder, such as {instruction}")
    for name, count in counts.items():
        if name not in COLUMNS:
            problems.append(f"names {{{name}}}, which a pair does not have.{did_you_mean(name, COLUMNS)}")
        elif count != batch_size:
            problems.append(f"has {{{name}}} {count} times; with batch_size {batch_size} it must be there as often")
    return Template(text, tuple(turns)), problems


def _turns(text: str) -> tuple[list[Message], list[str]]:
    turns: list[Message] = []
    problems: list[str] = []
    for number, part in enumerate(text.split(START)[1:], start=1):
        header, _, rest = part.partition("\n")
        role, *tags = header.split()[:3] or [""]
        content, end, after = rest.partition(END)
        named = dict(tag.split("=", 1) for tag in tags if "=" in tag)
        if role not in ROLES:
            problems.append(f"turn {number} is by {role!r}; known: {', '.join(ROLES)}")
        if not end or after.strip():
            problems.append(f"turn {number} must end with {END}, with nothing after it")
        turns.append(Message(role, content, named.get("name", "")))
    return turns, problems
