"""Scales of labels: the values with which a file says that the first output is better, or the second.

afarm's scale is AlpacaEval's: 1 or 2 for the better output, a number between for a weighted label, 0 or 1.5 for a draw,
null or empty without an answer. A file with 0 and 1 and never 2 may well be on another one, on which 1 is the second
output, and so may one with 0 and 2 that is not of AlpacaEval's kind, on which 0 is the first: read by guess, its labels
would teach or count the opposite, so such a file is refused until somebody says which it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from afarm.core.errors import ConfigError, DataError
from afarm.storage.record_fields import short_repr
from afarm.storage.row_shapes import SIGNED

OPTION = "--labels FIRST,SECOND[,DRAW]"
COLUMN = "preference"
"""The column of a pair's label."""


@dataclass(frozen=True, slots=True)
class LabelScale:
    """The values of one scale, as text. Labels between two numbers are weighted."""

    first: str
    second: str
    draw: str | None = None

    @classmethod
    def parse(cls, text: str) -> LabelScale:
        """Parse "0,1" or "A,B,tie". Raises `ConfigError` unless it names two or three different values."""
        values = [as_text(value) for value in text.split(",")]
        if not 2 <= len(values) <= 3 or "" in values or len(set(values)) < len(values):
            raise ConfigError(
                f"labels: {text!r} must name the labels of the first output, of the second and perhaps of a draw, "
                "such as 0,1 or A,B,tie"
            )
        return cls(*values)

    def number(self, label: Any) -> float | None:
        """Return a label on afarm's scale, None for no answer. Raises `ValueError` for what is no label."""
        if label is None or label != label or label == "":
            return None
        text = as_text(label)
        if text in (self.first, self.second, self.draw):
            return (1, 2, 0)[(self.first, self.second, self.draw).index(text)]
        low, high, number = number_of(self.first), number_of(self.second), number_of(text)
        if low is None or high is None or number is None or not min(low, high) <= number <= max(low, high):
            raise ValueError(f"no label of this scale: {label!r}")
        return 1 + (number - low) / (high - low)


AFARMS = LabelScale("1", "2", "0")
HELPSTEERS = LabelScale("-3", "3", "0")


class LabelReader:
    """Labels of one source, read by the caller's choices: see `read_labelled_pairs`."""

    def __init__(
        self,
        source: Path | str,
        scale: str | None = None,
        annotator: str = "",
        average: bool = False,
        as_text: bool = False,
        unlabelled: bool = False,
    ):
        self.annotator, self.average, self.as_text, self.unlabelled = annotator, average, as_text, unlabelled
        self._source = source
        self._scale = LabelScale.parse(scale) if scale else None
        self._has_option = scale is not None
        self._seen: set[float] = set()
        self.is_foreign = False
        """True once a row was of a kind that need not have AlpacaEval's scale."""

    def number(self, label: Any, column: str, where: str, is_draw: bool = False) -> float | None:
        """Read a label on afarm's scale; `is_draw`: 0 is plain in this row. Raises `DataError`."""
        try:
            scale = self._scale or (HELPSTEERS if column in SIGNED else AFARMS)
            number = scale.number(label)
            if scale is HELPSTEERS:  # by how much it is better, is its strength
                return None if number is None else round(number)
        except ValueError as error:
            raise DataError(f"{where}: field {column!r} is {short_repr(label)}; {self._meaning(column)}") from error
        if number is not None and self._scale is None and not is_draw:
            self._seen.add(number)
        return number

    def require_one_reading(self) -> None:
        """Raise `DataError` after the last row if 0 can be a draw or the first output, and no scale was named."""
        if 0 not in self._seen or not self._seen <= {0, 1, 2} or (2 in self._seen and not self.is_foreign):
            return
        if 2 in self._seen:
            seen = "0, 1 and 2" if 1 in self._seen else "0 and 2"
            second, scale, edit = "2 the second, and 1 a draw", "0,2,1", "write 1, 1.5 and 2"
        else:
            seen = "0 and 1 and never 2" if 1 in self._seen else "0 and never 1 or 2"
            second, scale, edit = "1 the second", "0,1", "add 1 to each"
        indices, draws = f"say --labels {scale}", "say --labels 1,2,0"
        further = " (If 1 is the first output and 0 the second: --labels 1,0.)" if scale == "0,1" else ""
        if not self._has_option:
            indices, draws, further = edit, "write draws as 1.5", ""
        raise DataError(
            f"{self._source}: its labels are {seen}, which can mean two things. Either 0 says that the "
            f"first output is better and {second}: {indices}. Or 1 is the first output and 0 a draw, as AlpacaEval "
            f"writes them: {draws}.{further}"
        )

    def _meaning(self, column: str) -> str:
        if self._scale is None and column in SIGNED:
            return "it must lie between -3 (the first output is much better) and 3 (the second is)"
        if self._scale is not None:
            draw = "" if self._scale.draw is None else f", {self._scale.draw} a draw"
            return f"by --labels {self._scale.first} is the first output, {self._scale.second} the second{draw}"
        others = f"say what others mean with {OPTION}" if self._has_option else "write other labels so"
        return (
            "a label is 1 or 2 for the better output, a number between for a weighted one, 0 or 1.5 for a draw, or "
            f"empty; {others}"
        )


def as_text(label: Any) -> str:
    """Write a label in one way, whatever its type in the file: 1, 1.0 and "1" alike."""
    text = str(label).strip().casefold()
    number = None if isinstance(label, bool) else number_of(text)
    return text if number is None else f"{number:.15g}"


def number_of(text: str) -> float | None:
    """Return the finite number that a text is, None for another text."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
