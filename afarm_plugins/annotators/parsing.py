"""Verdicts parsed from a judge's text: strict about whose verdict it is, lenient about the rest.

A verdict counts only where the answer format puts one: on a line of its own ("single"), on a line that opens with the
comparison's number ("list"), or under its key in the object with that index ("json"). A label inside an explanation is
not a verdict, two verdicts for one comparison are none, and one unreadable verdict costs no other.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

FORMATS = ("single", "list", "json")
"""Answer formats of comparisons."""
RATING = "rating"
"""The answer format of a single output: a mark."""
CRITERIA = "criteria"
"""The answer format of an instruction: the qualities of a good answer to it."""
MOST_CRITERIA = 10
WORST, BEST = 1, 7
"""The ends of the scale of ratings."""

_THINKING = re.compile(r"\A\s*<think>.*?(?:</think>|\Z)", re.DOTALL)
# What a judge quotes is not what it says, unless it says nothing else.
_QUOTED = re.compile(r"^[ \t]*>.*$", re.MULTILINE)
# A completion model that is done may go on with a comparison of its own making, whose verdicts are not ours.
_RUN_ON = re.compile(r"^[ \t#*]*Instruction[ \t]*:", re.MULTILINE)

_MARKUP = " \t*_`\"'>#-"
_NUMBER = re.compile(r"[(\[]?(?:comparison |example |no\. ?)?([0-9]{1,6}) ?[.):\]–-]", re.IGNORECASE)
_LEAD = re.compile(
    r"(?:(?:my |the |final )*(?:answer|verdict|pick|choice|preference|(?:better|best|preferred)(?: output| one)?)"
    r"(?: is:?|:)[\s*_`\"']*)?",
    re.IGNORECASE,
)
_LABEL = re.compile(r"(?:output ?\(?(?P<named>[ab])\)?|\(?(?P<bare>[ab])\)?(?=\W*\Z))(?!\w)", re.IGNORECASE)
_REASON = r"[\s.!,;]*(?:\Z|(?:because|since|as it|due to)\b)"
_END = re.compile(
    rf"{_REASON}|\s*is (?:clearly |much |slightly )?(?:the )?(?:better|best|preferred)(?: one| output)?"
    rf"(?:{_REASON}| than\b)",
    re.IGNORECASE,
)
_MARK_LEAD = re.compile(
    r"(?:(?:my |the |final |overall )*(?:mark|rating|score|grade|answer|verdict)(?: from 1 to 7)?(?: is| of)?"
    r"|i(?:'d| would)? (?:give|rate) (?:it|this)(?: an?)?)[\s*_`\"':=]*",
    re.IGNORECASE,
)
_MARK = re.compile(
    r"(?P<mark>[0-9]{1,3}(?:\.[0-9]{1,3})?)(?:\s?(?:/|out of)\s?(?P<of>[0-9]{1,3}))?(?![\w/%]|[-–.,:][0-9])",
    re.IGNORECASE,
)
_NEXT_SENTENCE = re.compile(r"[.!]\s")
_ANY_LABEL = re.compile(r"\boutput ?\(?[ab]\)?(?!\w)|\([ab]\)", re.IGNORECASE)


def parse(text: str, answer_format: str, size: int) -> list[float | None]:
    """Parse the verdict about each of `size` comparisons: 1.0 for the first output, 0.0 for the second.

    None if unreadable. For the format "rating" it is the mark instead, from 0.0 (the worst) to 1.0 (the best), and for
    "criteria" 1.0 if there are any. Raises `ValueError` for an unknown `answer_format`; no text, however odd, raises.
    """
    text = _own(text)
    if answer_format == "json":
        return parse_json(text, size)
    text = _without_run_on(text)
    if answer_format == "list":
        return parse_list(text, size)
    if answer_format == RATING:
        return [parse_rating(text)] + [None] * (size - 1)
    if answer_format == CRITERIA:
        return [1.0 if parse_criteria(text) else None] + [None] * (size - 1)
    if answer_format == "single":
        return [parse_single(text)] + [None] * (size - 1)
    raise ValueError(f"unknown answer format {answer_format!r}; known: {', '.join([*FORMATS, RATING, CRITERIA])}")


def _own(text: str) -> str:
    """The judge's own words: its text without its thoughts and without quotations."""
    text = _THINKING.sub("", text)
    own = _QUOTED.sub("", text)
    return own if own.strip() else text


def _without_run_on(text: str) -> str:
    run_on = _RUN_ON.search(text)
    return text[: run_on.start()] if run_on else text


def parse_single(text: str) -> float | None:
    """The one verdict in `text`: None where no line is a verdict, or where lines contradict each other."""
    verdicts = {verdict for line in text.splitlines() if (verdict := _verdict(line)) is not None}
    return verdicts.pop() if len(verdicts) == 1 else None


def parse_rating(text: str) -> float | None:
    """Parse the one mark in `text`, as a share of the way from the worst to the best.

    None if no line is a mark of the scale, or if lines contradict each other.
    """
    marks = {mark for line in text.splitlines() if (mark := _mark(line)) is not None}
    only = marks.pop() if len(marks) == 1 else math.inf
    return (only - WORST) / (BEST - WORST) if WORST <= only <= BEST else None


def parse_criteria(text: str) -> list[str]:
    """Parse the numbered lines of `text` that count up from 1, without numbers; at most `MOST_CRITERIA`."""
    criteria: list[str] = []
    for line in _without_run_on(_own(text)).splitlines():
        line = line.strip(_MARKUP)
        number = _NUMBER.match(line)
        if number and int(number[1]) == len(criteria) + 1 and (quality := line[number.end() :].strip(_MARKUP)):
            criteria.append(quality)
    return criteria[:MOST_CRITERIA]


def parse_list(text: str, size: int) -> list[float | None]:
    """Verdicts from lines such as `2. Output (a)`. An index given twice is None, even where both agree."""
    verdicts: dict[int, list[float | None]] = {}
    for line in text.splitlines():
        line = line.strip(_MARKUP)
        number = _NUMBER.match(line)
        if number and (verdict := _verdict(line[number.end() :])) is not None:
            verdicts.setdefault(int(number[1]), []).append(verdict)
    return _in_order(verdicts, size)


def parse_json(text: str, size: int) -> list[float | None]:
    """Verdicts from objects with an `index` and a boolean `first_is_better`, whatever stands around them.

    An index given twice is None. Objects that follow a cut-off one are still read. Where there is one comparison, the
    index may be missing.
    """
    verdicts: dict[int, list[float | None]] = {}
    for item in _verdict_objects(text):
        index = item.get("index", 1 if size == 1 else None)
        if isinstance(index, str) and re.fullmatch("[0-9]{1,6}", index):
            index = int(index)
        if type(index) is int:  # not a boolean, which is an int to isinstance
            first = item["first_is_better"]
            verdicts.setdefault(index, []).append(float(first) if isinstance(first, bool) else None)
    return _in_order(verdicts, size)


def _in_order(verdicts: dict[int, list[float | None]], size: int) -> list[float | None]:
    """The verdict of each index from 1 to `size`; None where there is none, or more than one."""
    by_index = [verdicts.get(index, []) for index in range(1, size + 1)]
    return [readings[0] if len(readings) == 1 else None for readings in by_index]


def _verdict(line: str) -> float | None:
    """1.0 if the line names Output (a) as its verdict, 0.0 for Output (b), None if it is something else.

    A reason may follow the label. Anything else that does, such as a colon or the other label, makes it a remark.
    """
    line = line.strip(_MARKUP)
    lead = _LEAD.match(line)
    label = _LABEL.match(line, lead.end() if lead else 0)
    if not label:
        return None
    rest = line[label.end() :].lstrip(_MARKUP)
    sentence = _NEXT_SENTENCE.match(rest)
    if not _END.match(rest) and not (sentence and not _ANY_LABEL.search(rest)):
        return None
    return 1.0 if (label["named"] or label["bare"]).lower() == "a" else 0.0


def mark(share: float) -> float:
    """The mark that lies at `share` of the way from the worst to the best: what `parse_rating` read."""
    return round(WORST + share * (BEST - WORST), 9)


def _mark(line: str) -> float | None:
    """Parse the mark of a line: a number of its own, or after "Rating:" or before "/7".

    A remark may follow those. A number on another scale (8/10) or below 0 is returned as infinite: it is out of range,
    and contradicts any other.
    """
    if re.match(r"[\s*_`]*[-−][0-9]", line):
        return math.inf
    line = line.strip(_MARKUP)
    lead = _MARK_LEAD.match(line)
    number = _MARK.match(line, lead.end() if lead else 0)
    if not number:
        return None
    rest = line[number.end() :].lstrip(_MARKUP)
    # A bare number before other text is an item of a list, or a count of something.
    if not (lead or number["of"]) and not re.match(_REASON, rest, re.IGNORECASE):
        return None
    return math.inf if number["of"] not in (None, str(BEST)) else float(number["mark"])


def _verdict_objects(text: str) -> Iterator[dict[str, Any]]:
    """The JSON objects in `text` that hold a verdict, in order, alone or inside lists and wrappers."""
    decoder = json.JSONDecoder(strict=False, object_pairs_hook=_without_contradictions)
    position = text.find("{")
    while position >= 0:
        try:
            value, end = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            end = position + 1
        else:
            yield from _with_verdict(value)
        position = text.find("{", end)


def _with_verdict(value: object, depth: int = 3) -> Iterator[dict[str, Any]]:
    """Find verdict objects: `value` itself, or those up to `depth` inside it, but none inside another."""
    if isinstance(value, dict) and "first_is_better" in value:
        yield value
    elif isinstance(value, dict | list) and depth:
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _with_verdict(inner, depth - 1)


def _without_contradictions(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A key given two values has none: Python would silently take the last."""
    values: dict[str, Any] = {}
    for key, value in pairs:
        values[key] = value if values.get(key, value) == value else None
    return values
