"""Claims of a row beside its label: whether that is final, how two answers were scored, and which won.

A row that says it is not final has no verdict, and one that says two things has none to trust.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any

from afarm.core.records import JudgedPair, Row
from afarm.storage.conversations import UnusableError
from afarm.storage.label_scales import number_of
from afarm.storage.rankings import ANSWERS, MARKS
from afarm.storage.record_fields import short_repr
from afarm.storage.row_shapes import SIGNED
from afarm.storage.votes import TIED, TIES

DONE = frozenset((
    "accepted", "annotated", "approved", "complete", "completed", "confirmed", "done", "final", "finished", "labeled",
    "labelled", "ok", "reviewed", "submitted", "success", "valid", "validated", "verified",
))  # fmt: skip
"""The words of a `status` that say the label is final. Another word says it is not; so does such a column, if false."""
UNDONE = frozenset((
    "canceled", "cancelled", "deleted", "discarded", "draft", "invalid", "pending", "skipped", "undecided",
))  # fmt: skip
"""The columns that say, if they are true, that the label is not final."""
NO_CHANGE = ("unchanged", "swapped")
"""distilabel's words in `status`: `chosen` and `rejected` were left as they were, or have been mended."""
CHOSEN_REJECTED = ("chosen", "rejected")
SIDES = {
    word: words
    for words in (CHOSEN_REJECTED, ("a", "b"), ("first", "second"), ("left", "right"), ("0", "1", "2"))
    for word in words
}
"""The words that tell two answers apart, each with all of its kind, in the order of the answers."""
NOUNS = frozenset(("answer", "completion", "generation", "model", "option", "output", "response", "winner"))
"""What may stand beside them."""
DIFFERENCES = ("margin", "diff", "difference", "delta", "gap")
"""What a score of the chosen answer less the rejected one's is called, perhaps behind the name of the score."""


@lru_cache(maxsize=1024)
def _split(name: str) -> tuple[list[str], str]:
    """Split a name into words: those in neither `SIDES` nor `NOUNS`, and the only one of a side."""
    words = re.findall(r"[a-z]+|\d+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())
    sides = [word for word in words if word in SIDES]
    return [word for word in words if word not in SIDES and word not in NOUNS], sides[0] if len(sides) == 1 else ""


def require_final(row: Row, where: str) -> None:
    """Raise `UnusableError` if a row says that its label is undecided, thrown away or not finished."""
    for name, value in row.items():
        kind = (_split(name)[0] or [""])[-1]
        said = {str(one).strip().casefold() for one in (value if isinstance(value, list) else [value])}
        if kind == "status":
            words = {one for one in said if number_of(one) is None} - {"", "none"}
            undone = bool(words) and words.isdisjoint({*DONE, *TIES, *NO_CHANGE})
        else:
            undone = said == {"true"} if kind in UNDONE else kind in DONE and said == {"false"}
        if undone:
            raise UnusableError(
                f"{where}: {name!r} is {short_repr(value)}, so the label is not final; take the row out, or the column "
                f"{name!r} if it is about something else"
            )


def require_agreement(row: Row, where: str, win: float | None, label: str = "") -> bool:
    """Tell if a row calls its answers equal, which the columns `chosen` and `rejected` cannot say.

    `win` is that of the second by the column of the `label`, or by `chosen` and `rejected`; None if nobody knows which
    of these is first. Raises `UnusableError` if another column says otherwise.
    """
    is_equal, by_label = False, None if win is None else _win(1 - win, win)
    for said, sides, claimed in _claims(row, label):
        held = 0.0 if sides == CHOSEN_REJECTED and win != 0.5 else by_label
        if claimed == 0.5 and not label:
            is_equal = True
        elif held not in (None, claimed):
            against = f"{label!r} ({short_repr(row[label])})" if label else "'chosen' and 'rejected'"
            raise UnusableError(f"{where}: {said}, which contradicts {against}; leave out what is wrong")
    return is_equal


def _claims(row: Row, label: str) -> Iterator[tuple[str, Sequence[str], float]]:
    """Yield a row's claims on its two answers: columns and values, the kind of `SIDES`, the second's win."""
    for name, value, better in _differences(row):
        yield f"{name!r} is {value:g}", CHOSEN_REJECTED, _win(better, 0)
    for mark, sides, (one, first), (other, second) in _numbers_of_both(row):
        if mark in MARKS:
            win = _win(MARKS[mark] * first, MARKS[mark] * second)
            yield f"{one!r} is {first:g} and {other!r} {second:g}", sides, win
    for name in [name for name in TIED if name != label]:
        words, side = _split(said := str(row.get(name)))
        if said.strip().casefold() in TIES:
            yield f"{name!r} is {said!r}", (), 0.5
        elif name != "status" and side and not words and not side.isdigit():
            yield f"{name!r} is {said!r}", SIDES[side], float(side != SIDES[side][0])


def with_numbers(judged: JudgedPair, row: Row) -> JudgedPair:
    """Return the label with what a row says in numbers: of both outputs, and of how far apart they are.

    Columns that are called by `chosen` and `rejected` belong to these, others to the first output and the second.
    """
    preference, turned, attributes = judged.preference, judged.p2 == 1, []
    scores = preference.scores
    for mark, sides, (_, first), (_, second) in _numbers_of_both(row):
        if (sides == CHOSEN_REJECTED) == ("chosen" in row) and mark != "annotator":
            both = (second, first) if turned and sides == CHOSEN_REJECTED else (first, second)
            if mark not in MARKS:
                attributes.append((mark, *both))
            elif MARKS[mark] > 0:
                scores = scores or both
    said = [preference.strength, *(number_of(str(row.get(name))) for name in SIGNED)]
    said += [better for _, _, better in _differences(row)]
    strength = next((abs(number) for number in said if number is not None), None)
    numbers = replace(preference, strength=strength, scores=scores, attributes=(*preference.attributes, *attributes))
    return judged if numbers == preference else replace(judged, preference=numbers)


def _differences(row: Row) -> Iterator[tuple[str, float, float]]:
    """Yield the columns that are a difference: name, value, and by how much the chosen answer is better."""
    for name, value in _numbers(row) if "chosen" in row else ():
        words, side = _split(name)
        parted = "_".join(words[:-1]) or "score"
        if words and words[-1] in DIFFERENCES and parted in MARKS and not side:
            yield name, value, MARKS[parted] * value


def _numbers_of_both(row: Row) -> Iterator[tuple[str, Sequence[str], tuple[str, float], tuple[str, float]]]:
    """Yield the numbers that a row has of both answers: name, kind of `SIDES`, each column with its value."""
    found: dict[tuple[Sequence[str], str], list[tuple[str, str, float]]] = {}
    for name, value in _numbers(row):
        words, side = _split(name)
        if side and words:
            found.setdefault((SIDES[side], "_".join(words)), []).append((side, name, value))
    for (sides, mark), columns in found.items():
        if len(columns) == 2:
            (_, *first), (_, *second) = sorted(columns)
            yield mark, sides, (first[0], first[1]), (second[0], second[1])


def _numbers(row: Row) -> Iterator[tuple[str, float]]:
    """Yield the columns that are numbers; of two in one column each, as `scores[0]` and `scores[1]`."""
    for name, value in row.items():
        several: Any = {name: value}
        if "_".join(_split(name)[0]) in MARKS and isinstance(value, str | list | Mapping):
            with suppress(ValueError, RecursionError):  # in a table, a list is a text
                value = json.loads(value) if isinstance(value, str) else value
            order = None if any(isinstance(row.get(answers), list) for answers in ANSWERS) else row.get("order")
            if isinstance(value, list) and len(value) == 2:
                value = dict(zip(map(str, order if isinstance(order, list) else (0, 1)), value, strict=False))
            if isinstance(value, Mapping):
                several = {f"{name}[{key}]": one for key, one in value.items()}
        for place, one in several.items():
            if (number := number_of(str(one))) is not None:
                yield place, number


def _win(first: float, second: float) -> float:
    """Return the win of the second by the scores of two, one half if they are equal."""
    return 0.5 if first == second else float(second > first)
