"""A stated utility of real text, for the offline judge where no gold reward is known.

    U = 3 * length + 6 * overlap - 8 * repetition - 3 * unfinished - 4 * empty

It rewards what judges are known to like on the surface (length up to a point, the instruction's own words) and punishes
loops and broken ends. It reads no meaning: a gain under U is a gain in U and says nothing about quality. The weights
make a typical difference between two samples about as large as the toy world's gold reward makes it, so that one
calibration of the judge's noise serves both.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from afarm import Instruction, RewardModel, Score

WEIGHTS = {"length": 3.0, "overlap": 6.0, "repetition": -8.0, "unfinished": -3.0, "empty": -4.0}
SATURATION = 400.0
"""Characters at which the length term has reached 63% of its limit."""
TOO_LONG = 2000.0
"""Characters from which more text lowers the length term, by 1 for each doubling."""
SHORTEST_WORD = 4
ENDINGS = tuple(".!?…。！？؟।)]}\"'”’»」`*|")


class TextUtility(RewardModel):
    """U of any text, empty, huge or in any script: finite and in time linear in its length."""

    def score(self, instructions: Sequence[Instruction], outputs: Sequence[str]) -> list[Score]:
        return [Score(utility(i, output)) for i, output in zip(instructions, outputs, strict=True)]


def utility(instruction: Instruction, output: str) -> float:
    """U(instruction, output); higher is better."""
    return sum(WEIGHTS[name] * value for name, value in terms(instruction, output).items())


def terms(instruction: Instruction, output: str) -> dict[str, float]:
    """The terms of U before weighting; all but `length` lie in [0, 1].

    `length` rises as 1 - exp(-characters / SATURATION) and falls beyond TOO_LONG; `overlap` is the share of the
    instruction's distinct words of four letters or more that the output uses; `repetition` the share of word triples
    seen before; `unfinished` and `empty` are 0 or 1.
    """
    text = output.strip()
    words = _words(text)
    instruction_words = {
        word for word in _words(f"{instruction.instruction} {instruction.input}") if len(word) >= SHORTEST_WORD
    }
    triples = list(zip(words, words[1:], words[2:], strict=False))
    excess = math.log2(max(len(text), TOO_LONG) / TOO_LONG)
    return {
        "length": 1 - math.exp(-len(text) / SATURATION) - excess,
        "overlap": len(instruction_words & set(words)) / len(instruction_words) if instruction_words else 0.0,
        "repetition": 1 - len(set(triples)) / len(triples) if triples else 0.0,
        "unfinished": float(not text.endswith(ENDINGS)),
        "empty": float(not text),
    }


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())
