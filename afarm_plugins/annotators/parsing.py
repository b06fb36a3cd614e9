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
from dataclasses import dataclass

from afarm_plugins.annotators.json_objects import INDEX, VERDICT, comparison_objects
from afarm_plugins.annotators.own_words import MARKUP, answer_lines, own_lines, without_quotations

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
_ITEM = re.compile(r"(?:[0-9]{1,2}[.)]|[(\[][0-9]{1,2}[)\]])\s+(?=\S)")

_MARKS = r"[\s*_`\"']*+"
_NOUN = r"(?:output|one|response|answer|choice|option)"
_BETTER = r"(?:better|best|preferred|preferable|superior|stronger|winning)"
_ADVERB = (
    r"(?:(?:clearly|much|slightly|definitely|far|marginally|significantly|somewhat|overall|simply|still|a bit) )*+"
)
_OPENING = (
    r"(?:(?:so|therefore|thus|hence|overall|finally|in (?:conclusion|short|summary|my (?:opinion|view|judge?ment))"
    r"|to conclude|on balance|all in all)\b,? |(?:after|having|based on|considering|comparing|given)\b[^.:;,]{1,80}, )?"
)
_LEAD = re.compile(
    rf"{_OPENING}(?:"
    rf"(?P<named>(?:my |the |final |overall )*(?:answer|verdict|pick|choice|preference|decision|conclusion|winner"
    rf"|selection|response|result|judge?ment|{_BETTER}(?: {_NOUN})?)(?: is:?|:))"
    r"|(?P<chosen>i(?:'d|’d)?(?: would| will| must| strongly| clearly| slightly| do)*"
    r" (?:prefer|choose|pick|select|favou?r|go with|went with|vote for|chose|opt for))"
    r"|(?P<believed>it(?:'s|’s| is| must be)"
    r"|i(?:'d|’d)?(?: would| strongly)* (?:think|believe|find|feel|say|conclude)(?: that)?:?)"
    rf")?{_MARKS}",
    re.IGNORECASE,
)
_LABEL = re.compile(
    r"(?:(?:the )?output ?\(?(?P<named>[ab])\)?|\((?P<bracketed>[ab])\)|(?P<bare>[ab])(?=\W*\Z))(?!\w)", re.IGNORECASE
)
_ANY_LABEL = re.compile(r"\boutput ?\(?[ab]\)?(?!\w)|\([ab]\)", re.IGNORECASE)
_REASON = r"[\s.!,;]*(?:\Z|(?:because|since|as it|due to)\b)"
_WINS = re.compile(
    rf"{_MARKS}(?:(?:is|was|would be|seems|appears|seems to be|appears to be) {_ADVERB}(?:(?:the|a) )?{_ADVERB}"
    rf"(?:(?:{_BETTER}|winner)(?: {_NOUN})?|my (?:final )?(?:choice|pick|preference|answer|verdict))|{_ADVERB}wins)"
    r"(?![\w-])",
    re.IGNORECASE,
)
_AFTER_A_WIN = re.compile(
    rf"{_MARKS}(?:{_REASON}|[\s,]*(?:than|over|by far|overall|here|given)\b|\s*[,:–—-](?P<remark>\s))", re.IGNORECASE
)
_AFTER_A_CHOICE = re.compile(
    rf"{_MARKS}(?:{_REASON}|[\s,]*(?:over|to|as the {_BETTER}|here)\b|\s*[,:–—-](?P<remark>\s))", re.IGNORECASE
)
_AFTER_A_LEAD = re.compile(rf"{_MARKS}(?:{_REASON}|\s*[,:–—-](?P<remark>\s))", re.IGNORECASE)
_AFTER_A_LABEL = re.compile(rf"{_MARKS}{_REASON}", re.IGNORECASE)
_REMARK = re.compile(r"\s*[–—-]+\s+(?=\w)")
_SENTENCE_ENDS = re.compile(r"(?<![.!?;])[.!?;]++[\s*_`]+")
_INLINE_QUOTE = re.compile(r'"[^"]*(?:"|\Z)|“[^”]*(?:”|\Z)|«[^»]*(?:»|\Z)')
_HEDGE = re.compile(r"\b(?:or|maybe|perhaps|both|either|neither|equal|equally|tie|same|unsure)\b", re.IGNORECASE)
_ANSWER_KEYS = ("answer", "verdict", "choice", "preference", "preferred", "better", "best", "winner", "output")

_MARK_LEAD = re.compile(
    r"(?:(?:my |the |final |overall )*(?:mark|rating|score|grade|answer|verdict)(?: from 1 to 7)?(?: is| of)?"
    r"|i(?:'d| would)? (?:give|rate) (?:it|this)(?: an?)?)[\s*_`\"':=]*",
    re.IGNORECASE,
)
_MARK = re.compile(
    r"(?P<mark>[0-9]{1,3}(?:\.[0-9]{1,3})?)(?:\s?(?:/|out of)\s?(?P<of>[0-9]{1,3}))?(?![\w/%]|[-–.,:][0-9])",
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
    """The one verdict of `lines`: None if no line is a verdict, or if they contradict each other."""
    read = [_read(_ITEM.sub("", line.strip(MARKUP), count=1)) for line in _answer_in_json(lines) or lines]
    verdicts = {line.verdict for line in read if not line.is_remark}
    remarks = {line.verdict for line in read if line.is_remark}
    verdicts |= remarks if len(remarks) == 1 else set()  # remarks on both outputs are no verdicts
    verdicts.discard(None)
    only = verdicts.pop() if len(verdicts) == 1 else None
    return None if any(line.others - {only} for line in read) else only


def parse_rating(lines: Sequence[str]) -> float | None:
    """Parse the one mark of `lines`, as a share of the way from the worst to the best.

    None if no line is a mark of the scale, or if lines contradict each other.
    """
    marks = {mark for line in lines if (mark := _mark(line)) is not None}
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
    """Verdicts from lines such as `2. Output (a)`. An index given twice is None, even if both agree."""
    verdicts: dict[int, list[float | None]] = {}
    for line in lines:
        line = line.strip(MARKUP)
        number = _NUMBER.match(line)
        if not number:
            continue
        read = _read(line[number.end() :].strip(MARKUP))
        if read.verdict is not None:
            only = None if read.others - {read.verdict} else read.verdict
            verdicts.setdefault(int(number[1]), []).append(only)
    return _in_order(verdicts, size)


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


def _index(item: Mapping[str, object], size: int) -> int | None:
    """The number of the comparison that `item` is about; None if there is no such comparison."""
    index = item.get(INDEX, 1 if size == 1 else None)
    if isinstance(index, str) and re.fullmatch("[0-9]{1,6}", index):
        index = int(index)
    # A boolean is an int to isinstance.
    return index if type(index) is int and 1 <= index <= size else None


def _in_order(verdicts: dict[int, list[float | None]], size: int) -> list[float | None]:
    """The verdict of each index from 1 to `size`; None if there is none, or more than one."""
    by_index = [verdicts.get(index, []) for index in range(1, size + 1)]
    return [readings[0] if len(readings) == 1 else None for readings in by_index]


def _answer_in_json(lines: Sequence[str]) -> list[str]:
    """The texts under the keys of an answer, if `lines` are one object of JSON and nothing else."""
    text = "\n".join(lines).strip()
    if not (text.startswith("{") and text.endswith("}")):
        return []
    try:
        values = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return []
    return [value for key, value in values.items() if key.lower() in _ANSWER_KEYS and isinstance(value, str)]


@dataclass(frozen=True, slots=True)
class _Line:
    """A line as it was read: the verdict that it is, and those of its further sentences.

    `is_remark`: a label and something about it after a dash, which is a verdict if only one output gets such a line.
    """

    verdict: float | None = None
    is_remark: bool = False
    others: frozenset[float] = frozenset()


def _read(line: str) -> _Line:
    """Read one line. Its first sentence may be a verdict; others can only contradict it."""
    lead = _LEAD.match(line)
    label = _LABEL.match(line, lead.end()) if lead else None
    rest = _INLINE_QUOTE.sub("…", (line[label.end() :] if label else line).lstrip("*_`\"'”"))
    tail, *further = _SENTENCE_ENDS.split(rest)
    others = frozenset(v for sentence in further if (v := _read_sentence(sentence)) is not None)
    if not (lead and label):
        return _Line(others=others)
    verdict = _side(label)
    if _decides(lead, tail):
        is_bare = lead.lastgroup is None and not _WINS.match(tail)
        hedged = is_bare and any(_ANY_LABEL.search(s) and _HEDGE.search(s) for s in further)
        return _Line(None if hedged else verdict, others=others)
    remark = _REMARK.match(tail)
    if remark and lead.lastgroup is None:
        about = tail[remark.end() :]
        if not _ANY_LABEL.search(rest) and not _REMARK.search(about):
            return _Line(verdict, is_remark=True, others=others)
    return _Line(others=others)


def _read_sentence(sentence: str) -> float | None:
    """The verdict that a sentence is by itself."""
    lead = _LEAD.match(sentence)
    label = _LABEL.match(sentence, lead.end()) if lead else None
    return _side(label) if lead and label and _decides(lead, sentence[label.end() :]) else None


def _side(label: re.Match[str]) -> float:
    return 1.0 if (label["named"] or label["bracketed"] or label["bare"]).lower() == "a" else 0.0


def _decides(lead: re.Match[str], tail: str) -> bool:
    """Tell if a label between `lead` and `tail` is a verdict, as in "I prefer … to" or "… is better"."""
    if lead["chosen"]:
        after = _AFTER_A_CHOICE.match(tail)
    elif wins := _WINS.match(tail):
        after = _AFTER_A_WIN.match(tail, wins.end())
    else:
        after = _AFTER_A_LEAD.match(tail) if lead["named"] else _AFTER_A_LABEL.match(tail)
    if after is None:
        return False
    return not ("remark" in after.re.groupindex and after["remark"] and _ANY_LABEL.search(tail, after.end()))


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
    line = line.strip(MARKUP)
    lead = _MARK_LEAD.match(line)
    number = _MARK.match(line, lead.end() if lead else 0)
    if not number:
        return None
    rest = line[number.end() :].lstrip(MARKUP)
    # A bare number before other text is an item of a list, or a count of something.
    if not (lead or number["of"]) and not re.match(_REASON, rest, re.IGNORECASE):
        return None
    return math.inf if number["of"] not in (None, str(BEST)) else float(number["mark"])
