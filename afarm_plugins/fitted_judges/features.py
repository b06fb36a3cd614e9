"""Stated features of one output to an instruction. They read the surface and no meaning.

A fitted judge prefers the output with the higher weighted sum of them, so that swapping two outputs mirrors its label.
All are finite for any text, empty, huge or in any script, and cost time linear in its length.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from afarm import Instruction

ENDINGS = tuple(".!?…。！？؟।)]}\"'”’»」`*|")
SHORTEST_WORD = 4
"""Letters that a word of the instruction must have to be looked for in an output."""
LIST_ITEM = re.compile(r"^[ \t]*(?:[-*•]|\d{1,3}[.)])[ \t]+\S", re.MULTILINE)
REFUSALS = re.compile(
    r"\b(?:i(?:'m| am)? (?:sorry|unable|cannot|can't|apologi[sz]e)|as an ai|as a language model|not able to)\b"
)


def request_text(instruction: Instruction) -> str:
    """Return the instruction with its input, without earlier turns."""
    return f"{instruction.instruction}\n{instruction.input}".strip()


@dataclass(frozen=True)
class Surface:
    """One output beside its instruction, as the features see them."""

    instruction: Instruction
    output: str

    @cached_property
    def text(self) -> str:
        return self.output.strip()

    @cached_property
    def words(self) -> list[str]:
        return re.findall(r"\w+", self.text.lower())

    @cached_property
    def request(self) -> str:
        return request_text(self.instruction)

    @cached_property
    def request_words(self) -> set[str]:
        return {word for word in re.findall(r"\w+", self.request.lower()) if len(word) >= SHORTEST_WORD}

    @cached_property
    def triples(self) -> list[tuple[str, str, str]]:
        return list(zip(self.words, self.words[1:], self.words[2:], strict=False))


def _echo(s: Surface) -> float:
    long = [word for word in s.words if len(word) >= SHORTEST_WORD]
    return sum(word in s.request_words for word in long) / len(long) if long else 0.0


@dataclass(frozen=True)
class Feature:
    """A feature: its formula in words, and as a function of the surface."""

    formula: str
    value: Callable[[Surface], float]


FEATURES: Mapping[str, Feature] = {
    "length": Feature("ln(1 + characters)", lambda s: math.log1p(len(s.text))),
    "beyond_the_task": Feature(
        "ln(characters over those of instruction and input), at least 0",
        lambda s: max(0.0, math.log1p(len(s.text)) - math.log1p(len(s.request))),
    ),
    "lines": Feature("ln(1 + line breaks)", lambda s: math.log1p(s.text.count("\n"))),
    "list_items": Feature(
        "ln(1 + lines that begin as list items)", lambda s: math.log1p(len(LIST_ITEM.findall(s.text)))
    ),
    "repetition": Feature(
        "share of word triples seen before", lambda s: 1 - len(set(s.triples)) / len(s.triples) if s.triples else 0.0
    ),
    "finished": Feature("1 if it ends as sentences or blocks do", lambda s: float(s.text.endswith(ENDINGS))),
    "empty": Feature("1 if there is no text", lambda s: float(not s.text)),
    "overlap": Feature(
        "share of the instruction's words of four letters or more that it uses",
        lambda s: len(s.request_words & set(s.words)) / len(s.request_words) if s.request_words else 0.0,
    ),
    "echo": Feature("share of its own words of four letters or more that the instruction has", _echo),
    "question": Feature("1 if it ends with a question mark", lambda s: float(s.text.endswith(("?", "？", "؟")))),
    "refusal": Feature(
        "1 if it opens with an apology, or as what an AI cannot do",
        lambda s: float(bool(REFUSALS.search(s.text[:200].lower().replace("’", "'")))),
    ),
    "word_length": Feature(
        "ln(1 + mean letters of a word)",
        lambda s: math.log1p(sum(map(len, s.words)) / len(s.words)) if s.words else 0.0,
    ),
    "digits": Feature(
        "share of digits among its characters",
        lambda s: sum(map(str.isdigit, s.text)) / len(s.text) if s.text else 0.0,
    ),
}
"""All features by name, in the order of the weights."""


def feature_values(instruction: Instruction, output: str) -> dict[str, float]:
    """Compute every feature of `output` as an answer to `instruction`."""
    surface = Surface(instruction, output)
    return {name: feature.value(surface) for name, feature in FEATURES.items()}
