"""Verdicts parsed from a judge's text: strict about whose verdict it is, lenient about the rest.

A verdict counts only where the answer format puts one: on a line of its own ("single"), on a line that opens with the
comparison's number ("list"), or under its key in the object with that index ("json"). A label inside an explanation or
a quotation is not a verdict, two verdicts for one comparison are none, and one unreadable verdict costs no other. All
of it is linear in the length of the text.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from afarm_plugins.annotators.json_objects import INDEX, VERDICT, comparison_objects
from afarm_plugins.annotators.own_words import MARKUP, answer_lines, own_lines, own_part, without_quotations
from afarm_plugins.annotators.verdict_grammar import (
    Statement,
    heading_of,
    shape_of,
    statements_in,
    statements_of,
    takes_back,
    verdict_of,
)

FORMATS = ("single", "list", "json")
"""Answer formats of comparisons."""
RATING = "rating"
"""The answer format of a single output: a mark."""
CRITERIA = "criteria"
"""The answer format of an instruction: the qualities of a good answer to it."""
MOST_CRITERIA = 10
WORST, BEST = 1, 7
"""The ends of the scale of ratings."""

_NUMBER = re.compile(r"[(\[]?(?:comparison |example |no\. ?)?([0-9]{1,6}) ?[.):\]–-]", re.IGNORECASE)
_NUMBER_INSIDE = re.compile(
    r"[(\[]?(?:(?<!\w)(?:comparison |example |no\. ?))?(?P<index>(?<![0-9])[0-9]++|(?<!\w)(?-i:[IVX]{1,5})(?=[.):]))"
    r"[\s*_`\\]{0,4}(?:[.):\];!…](?![0-9])|[–-](?!\w\w))",
    re.IGNORECASE,
)
_LABEL_ALONE = re.compile(r"\W*(?:output\W{1,3})?[ab]", re.IGNORECASE)
_BETWEEN_ITEMS = f"{MARKUP},;|/→•·–—"
_ENDS_ITEM = frozenset(".!?,;|/)]→•·–—")
_INDEX = re.compile(r"(?<![\w.])[0-9]{1,6}(?!\w|\.[0-9])")
_TAG = re.compile(r"<(?:/[a-z_]{1,30}|([a-z_]{1,30}))>", re.IGNORECASE)

_MARK_LEAD = re.compile(
    r"(?:(?:my |the |final |overall )*(?:mark|rating|score|grade|answer|verdict)(?: from 1 to 7)?(?: is| of)?"
    r"|i(?:'d| would)? (?:give|rate) (?:it|this)(?: an?)?)[\s*_`\"':=]*",
    re.IGNORECASE,
)
_MARK = re.compile(
    r"(?P<mark>[0-9]{1,3}(?:\.[0-9]{1,3})?)(?:\s?(?:/|out of)\s?(?P<of>[0-9]{1,3}))?(?![\w/%]|[-–.,:][0-9])",
    re.IGNORECASE,
)


_AFTER_A_NUMBER = re.compile(r"[\s.!,;]*(?:\Z|(?:because|since|as it|due to)\b)", re.IGNORECASE)
_REMARK_ON_A_MARK = re.compile(
    r"[.!]\s|(?!\W*(?:no|not|or|maybe|perhaps|wait|corrected|correction|revised|rather|actually)\b)"
    r"(?:;\s|\s*\(|\s*[,:–—-]\s*[^\W\d])",
    re.IGNORECASE,
)
_SCALE = re.compile(
    r"\W*(?:[io]n an? )?(?:out of|of|max(?:imum)?|scale(?: of| from)?|total)\W*"
    r"(?:(?:an? )?(?:maximum|possible)(?: of)? )?(?:[01]\W+(?:to\W+)?)?(?P<top>[0-9]{1,4})",
    re.IGNORECASE,
)


def parse(text: str, answer_format: str, size: int) -> list[float | None]:
    """Parse the verdict about each of `size` comparisons: 1.0 for the first output, 0.0 for the second.

    None if unreadable. For the format "rating" it is the mark instead, from 0.0 (the worst) to 1.0 (the best), and for
    "criteria" 1.0 if there are any. Raises `ValueError` for an unknown `answer_format`; no text, however odd, raises.
    """
    if answer_format == "json":
        return parse_json(without_quotations(text), size)
    if answer_format == CRITERIA:
        return [1.0 if parse_criteria(text) else None] + [None] * (size - 1)
    lines = own_lines(text)
    if answer_format == "list":
        return parse_list(lines, size)
    if answer_format == RATING:
        return [parse_rating(lines)] + [None] * (size - 1)
    if answer_format == "single":
        return [parse_single(lines)] + [None] * (size - 1)
    raise ValueError(f"unknown answer format {answer_format!r}; known: {', '.join([*FORMATS, RATING, CRITERIA])}")


def parse_single(lines: Sequence[str]) -> float | None:
    """Parse the one verdict of `lines`: None if there is none or two, or if it is taken back."""
    return verdict_of(statements_in(_fields(lines) or lines))


def parse_rating(lines: Sequence[str]) -> float | None:
    """Parse the one mark of `lines`, as a share of the way from the worst to the best.

    None if no line is a mark of the scale, if lines contradict each other, or if the mark is taken back.
    """
    marks: set[float] = set()
    for line in _fields(lines) or map(own_part, lines):
        marks |= {mark for mark in (_mark(line),) if mark is not None}
        if marks and any(statement.kind == "doubt" for statement in statements_of(shape_of(line))):
            return None
    only = marks.pop() if len(marks) == 1 else math.inf
    return (only - WORST) / (BEST - WORST) if WORST <= only <= BEST else None


def parse_criteria(text: str) -> list[str]:
    """Parse the numbered lines of `text` that count up from 1, without numbers; at most `MOST_CRITERIA`."""
    criteria: list[str] = []
    for line in answer_lines(text):
        line = line.strip(MARKUP)
        number = _NUMBER.match(line)
        if number and int(number[1]) == len(criteria) + 1 and (quality := line[number.end() :].strip(MARKUP)):
            criteria.append(quality)
    return criteria[:MOST_CRITERIA]


def parse_list(lines: Sequence[str], size: int) -> list[float | None]:
    """Verdicts from lines such as `2. Output (a)`. An index given twice or corrected is None.

    Items on one line are read apart if their numbers run on.
    """
    verdicts: dict[int, list[float | None]] = {}
    below_losers = False
    for raw in lines:
        line = own_part(raw).strip(MARKUP)
        number = _NUMBER.match(line)
        if number:
            for index, reading in _items(line, number):
                verdicts.setdefault(index, []).append(None if below_losers else reading)
            continue
        shape = shape_of(line)
        below_losers = statements_of("a", heading_of(shape)) == [Statement("against", 1.0)]
        named = {int(number) for number in _INDEX.findall(raw)}
        doubted = takes_back(raw)
        if verdicts and (doubted or re.search("[ab]", shape)):
            for index in named or (range(1, size + 1) if doubted else ()):
                verdicts.setdefault(index, []).append(None)
    readings = [verdicts.get(index, []) for index in range(1, size + 1)]
    return [reading[0] if len(reading) == 1 else None for reading in readings]


def parse_json(text: str, size: int) -> list[float | None]:
    """Verdicts from objects with an `index` and a boolean `first_is_better`, whatever stands around them.

    An index given twice is None, and so is one whose object is broken. So is the one before an object that should not
    be there: a quotation that is not escaped may have closed it. If there is one comparison, the index may be missing.
    """
    items = comparison_objects(text)
    indices = [_index(item, size) for item in items]
    times = Counter(indices)
    verdicts: list[float | None] = [None] * size
    for place, (item, index) in enumerate(zip(items, indices, strict=True)):
        after = indices[place + 1] if place + 1 < len(items) else None
        follows_well = place + 1 == len(items) or (after is not None and times[after] == 1)
        if index is not None and times[index] == 1 and follows_well and isinstance(item.get(VERDICT), bool):
            verdicts[index - 1] = float(item[VERDICT])
    return verdicts


def _items(line: str, number: re.Match[str]) -> list[tuple[int, float | None]]:
    """Indices and verdicts of the items of a line that opens with `number`, where an item has one.

    An item goes on to the next number that follows the one before it and is written like the first. Behind any other
    number a label may be another comparison's, so the verdict must be clear in front of it.
    """
    first, start, clear_end = int(number[1]), number.end(), len(line)
    texts: list[str] = []
    for mark in _NUMBER_INSIDE.finditer(line, start):
        text = line[start : mark.start()].rstrip(MARKUP)
        runs_on = mark["index"].lstrip("0") == str(first + len(texts) + 1) and mark[0][-1] == number[0][-1]
        ends = (text[-1:] in _ENDS_ITEM and line[mark.start() - 1] != ".") or _LABEL_ALONE.fullmatch(text)
        if not (runs_on and ends and text.strip(_BETWEEN_ITEMS)):
            clear_end = mark.start()
            break
        texts.append(text)
        start = mark.end()
    stated = [statements_of(shape_of(text.strip(_BETWEEN_ITEMS))) for text in [*texts, line[start:]]]
    verdicts = [verdict_of(statements) for statements in stated]
    if verdicts[-1] != verdict_of(statements_of(shape_of(line[start:clear_end].strip(_BETWEEN_ITEMS)))):
        verdicts[-1] = None
    kinds = {statement.kind for statement in stated[-1]}
    if texts and kinds & {"doubt", "aside"} and "none" not in kinds:
        verdicts = [None] * len(verdicts)  # an afterthought behind the last item may be about any of them
    return [
        (first + place, verdict)
        for place, (statements, verdict) in enumerate(zip(stated, verdicts, strict=True))
        if any(statement.kind == "for" for statement in statements)
    ]


def _index(item: Mapping[str, object], size: int) -> int | None:
    """The number of the comparison that `item` is about; None if there is no such comparison."""
    index = item.get(INDEX, 1 if size == 1 else None)
    if isinstance(index, str) and re.fullmatch("[0-9]{1,6}", index):
        index = int(index)
    # A boolean is an int to isinstance.
    return index if type(index) is int and 1 <= index <= size else None


def _fields(lines: Sequence[str]) -> list[str]:
    """The fields of an answer as lines "key: value", if `lines` are one object of JSON and nothing else.

    A key given twice makes two lines.
    """
    text = "\n".join(lines).strip()
    if not (text.startswith("{") and text.endswith("}")):
        return []
    try:
        fields = json.loads(text, strict=False, object_pairs_hook=list)
    except (ValueError, RecursionError):
        return []
    return [f"{key.replace('_', ' ')}: {value}" for key, value in fields if type(value) in (str, int, float)]


def mark(share: float) -> float:
    """The mark that lies at `share` of the way from the worst to the best: what `parse_rating` read."""
    return round(WORST + share * (BEST - WORST), 9)


def _mark(line: str) -> float | None:
    """Parse the mark of a line: a number of its own, or after "Rating:" or before "/7".

    A remark may follow those. A number on another scale (8/10), below 0 or in a range (4 to 5) is returned as infinite:
    it is no mark, and contradicts any other.
    """
    line = _TAG.sub(lambda tag: f"{tag[1]}: " if tag[1] else "", line)
    if re.match(r"[\s*_`]*[-−][0-9]", line):
        return math.inf
    line = line.strip(MARKUP)
    if _names_another_scale(line):
        return math.inf
    lead = _MARK_LEAD.match(line)
    number = _MARK.match(line, lead.end() if lead else 0)
    if not number:
        return None
    rest = line[number.end() :].lstrip("*_` ")
    if _names_another_scale(rest):
        return math.inf
    if not (lead or number["of"]):
        # A bare number before other text is an item of a list, or a count of something.
        return float(number["mark"]) if _AFTER_A_NUMBER.match(rest) else None
    on_scale = number["of"] in (None, str(BEST)) and (_AFTER_A_NUMBER.match(rest) or _REMARK_ON_A_MARK.match(rest))
    return float(number["mark"]) if on_scale else math.inf


def _names_another_scale(text: str) -> bool:
    """Tell if `text` opens with a scale, such as "out of 10", that does not end at the best mark."""
    scale = _SCALE.match(text)
    return scale is not None and scale["top"] != str(BEST)
