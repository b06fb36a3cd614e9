"""Verdicts read from a judge's reply by a contract.

A reply in no known form is no verdict, and is asked for again. docs/guides/annotators.md ("Answers") states the
contract. A wrong verdict counts, silently; a reply that is not read costs one more question. So the rules ask whose
words a verdict is, and read no sentences: a verdict is the last line, nothing before it names the other output, and
nothing suggests that the line is quoted. All of it is linear in the length of the reply.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from afarm.judging import ParsedVerdict, cut_thoughts

READING = 4
"""The number of these rules, raised with every change of what they read.

Judgements are stored under it: answers that were bought before are then read anew, at no cost."""

FORMATS = ("single", "list", "json")
"""Answer formats of comparisons."""
RATING = "rating"
"""The answer format of a single output: a mark."""
CRITERIA = "criteria"
"""The answer format of an instruction: the qualities of a good answer to it."""
MOST_CRITERIA = 10
KEYS = {"index", "explanation", "first_is_better"}
"""Keys of an object about a comparison."""
WORST, BEST = 1, 7
"""The ends of the scale of ratings."""


def parse(text: str, answer_format: str, size: int) -> list[ParsedVerdict]:
    """Parse the verdict about each of `size` comparisons.

    1.0 is for the first output, 0.0 for the second, None unreadable; a mark may say "draw". For the format "rating" it
    is the mark, from 0.0 (the worst) to 1.0 (the best); for "criteria" 1.0 if there are any. Raises `ValueError` for an
    unknown `answer_format`; no text, however odd, raises.
    """
    if answer_format == "json":
        return parse_json(text, size)
    reply = strip_quotations(cut_thoughts(text))
    if answer_format == "list":
        return parse_list(reply, size)
    if answer_format == "single":
        verdict: ParsedVerdict = parse_single(reply)
    elif answer_format == RATING:
        verdict = parse_rating(reply)
    elif answer_format == CRITERIA:
        verdict = 1.0 if parse_criteria(text) else None
    else:
        raise ValueError(f"unknown answer format {answer_format!r}; known: {', '.join([*FORMATS, RATING, CRITERIA])}")
    return [verdict] + [None] * (size - 1)


# ------------------------------------------------------------------------------------------------ whose words they are

_PAIRS = (("“", "”"), ("«", "»"), ("(", ")"), ("[", "]"))
_BETTER = r"(?:better|best|preferred|preferable|superior|stronger|more helpful|winning|winner)"
_ANNOUNCES = re.compile(
    r"(?:(?:so|sure|okay|therefore|thus|here|you|go|are|is|my|the|final|overall|kept|sent|verdicts?|answers?|picks?"
    rf"|choices?|decisions?|conclusions?|preferences?|marks?|ratings?|in batch \d+|\(\d+ lines\)|{_BETTER}"
    r"(?: outputs?| answers?| one)?)(?:[ ,.!:]+|\Z))++",
    re.IGNORECASE,
)
_ENDED = re.compile(r".*[.!)…。！]", re.DOTALL)
_RUN_ON = re.compile(r"={3,}|# Sheet |## Comparison |Instruction ?:|Conversation:|Text:|\[user\]")
_WORDS_OF_A_VERDICT = 5
_LETTERS_OF_A_REASON = 25
_MARKUP = " \t*_`\"'>#-"
_EMPHASIS = re.compile(r"[*_#]+|(?<!`)`{1,2}(?!`)")
_FENCED = re.compile(r"(?s)```\w*\n(?P<inside>.*)\n```")
_TAGGED = re.compile(r"(?is)<(answer|final_answer|verdict|choice|response|solution)>(?P<inside>.*)</\1>")
_QUOTED = re.compile(r"[\"“`](.*)[\"”`]")
_TAG = re.compile(r"<(/?)[a-z]\w{0,30}>", re.IGNORECASE)


def strip_quotations(reply: str) -> str:
    """A reply without block quotes and without lines that announce it, out of the fence or tag around it.

    A block quote goes on to the next empty line, as in Markdown, and takes a line that introduces it along.
    """
    own: list[str] = []
    quoted = False
    for line in reply.splitlines():
        starts_quote = line.lstrip().startswith(">")
        if starts_quote and not quoted and own and own[-1].rstrip().endswith(":"):
            own.pop()
        quoted = starts_quote or (quoted and bool(line.strip()))
        own += [line] if line.strip() and not quoted else []
    start = next((i for i, line in enumerate(own) if not _ANNOUNCES.fullmatch(line.strip(_MARKUP))), len(own))
    reply = "\n".join(own[start:]).strip()
    wrapped = _FENCED.fullmatch(reply) or _TAGGED.fullmatch(reply)
    return reply if wrapped is None or "\n```" in wrapped["inside"] else wrapped["inside"].strip()


def _split_lines(reply: str) -> list[str]:
    """The lines of a reply without emphasis and empty lines.

    A completion model that is done may go on with a comparison of its own making: that is cut off behind short lines.
    """
    lines: list[str] = []
    short = True
    for line in reply.splitlines():
        shown = " ".join(_EMPHASIS.sub("", line).split())
        if lines and short and _RUN_ON.match(line.strip()):
            break
        lines += [shown] if shown else []
        short = short and len(shown.split()) <= _WORDS_OF_A_VERDICT
    return lines


def _may_be_quoted(before: Sequence[str]) -> bool:
    """Tell if a line behind the lines `before` may be another's words.

    It may if one of them ends in a colon, if the last is no whole sentence (and announces no verdict), or if a
    quotation, a bracket or a tag is still open.
    """
    announced = [_ANNOUNCES.fullmatch(line) is not None for line in before]
    if any(line.endswith((":", "：")) and not own for line, own in zip(before, announced, strict=True)):
        return True
    if before and not announced[-1] and not _ENDED.fullmatch(before[-1]):
        return True
    text = "\n".join(before)
    tags = [tag[1] for tag in _TAG.finditer(text)]
    return (
        text.count('"') % 2 == 1
        or sum(line.startswith(("```", "~~~")) for line in before) % 2 == 1
        or any(text.count(opens) > text.count(closes) for opens, closes in _PAIRS)
        or tags.count("") > tags.count("/")
    )


def _may_take_back(line: str) -> bool:
    """Tell if a bare label below `line` may not be meant: a few words, such as "Neither.", are no reason."""
    return len(line) < _LETTERS_OF_A_REASON and not _ANNOUNCES.fullmatch(line)


def read_last_line(lines: Sequence[str], form: Callable[[str], float | None]) -> float | None:
    """Read the last line, or the first if reasons follow; None if another line says otherwise."""
    if not lines:
        return None
    if len(lines) > 1 and _REASON.match(lines[1]):
        line, others = lines[0], lines[1:]
    else:
        line, others = lines[-1], lines[:-1]
        is_bare = len(line.split()) <= 2 and ":" not in line
        if _may_be_quoted(others) or (is_bare and others and _may_take_back(others[-1])):
            return None
    value = form(line)
    return None if any(form(other) not in (None, value) for other in others) else value


# ------------------------------------------------------------------------------------------------------- the formats

_REASON = re.compile(r"(?:reason|explanation|justification|rationale)\w*:", re.IGNORECASE)
_LABEL = r"(?:(?:(?:output|response|answer|option) ?)?(?:\(@\)|\[\[@\]\])|output @(?!\w))"
_OPENING = r"(?:(?:so|therefore|thus|hence|overall|finally|clearly)[,:]? ?|(?:my|the|final|overall) ){0,4}"
_NAMES = (
    rf"(?:{_BETTER}|kept|sent|verdict|answer|pick|choice|decision|preference|conclusion)"
    r"(?: output| response| answer| one| choice)?(?:(?: is| would be)(?: clearly)?:? ?|: ?)"
)
_CHOOSES = r"i(?:'d| would|'ll| will)?(?: clearly| strongly| slightly)? (?:prefer|choose|pick|select|go with|say) "
_THINKS = r"i (?:think|believe|find)(?: that)? "
_PRAISED = (
    r"(?: (?:is|would be)(?: clearly| much| slightly)?(?: the| my)?(?: clear)?"
    rf" (?:{_BETTER}|choice|pick|kept|sent)(?: output| response| answer| one| choice)?(?: of the two)?| wins| it is)"
)
_COMPARED = rf"(?: (?:than|over|to) {_LABEL.replace('@', '~')})?(?: overall)?[.!]?"
_FORM = (
    rf"{_OPENING}(?:{_NAMES}|{_CHOOSES}|{_THINKS})?{_LABEL}{_PRAISED}?{_COMPARED}|(?:{_OPENING}{_NAMES}(?<=: ))?@\.?"
)
_STATED = rf"(?:{_NAMES}|{_CHOOSES})output ?\(?@\b|output ?\(?@\)?{_PRAISED}"


def _compile_per_side(pattern: str) -> dict[float, re.Pattern[str]]:
    """`pattern` for the first output and for the second: @ is its letter, ~ that of the other."""
    return {
        side: re.compile(pattern.replace("@", letter).replace("~", other), re.IGNORECASE)
        for side, letter, other in ((1.0, "a", "b"), (0.0, "b", "a"))
    }


_FORMS, _STATEMENTS = _compile_per_side(_FORM), _compile_per_side(_STATED)
_MARK = re.compile(r"\[\[(A>>?B|B>>?A|A=B)\]\](?P<ends>[*_.\"]*[ \t]*$)?", re.MULTILINE)
_DECIDES = re.compile(r"verdict|decision|conclusion|answer|better|tie\b", re.IGNORECASE)
_MARKS: Mapping[str, ParsedVerdict] = {"A>B": 1.0, "A>>B": 1.0, "B>A": 0.0, "B>>A": 0.0, "A=B": "draw"}
_RATING = re.compile(
    r"(?:(?:my |the |final |overall ){0,3}(?:mark|rating|score|grade)(?: is|:| =) ?|i(?:'d| would)? give it an? )?"
    r"([0-9](?:\.[0-9]{1,3})?)(?: ?/ ?7| out of 7)?\.?",
    re.IGNORECASE,
)
_ITEM = re.compile(r"(?:[-•] )?[(\[]?(?:comparison |example |no\. ?)?([0-9]{1,4}) ?[.:)\]–-] ?(.*)", re.IGNORECASE)
_DECLINES = re.compile(r"(?!.*\b(?:output|[ab])\b)[a-z']+(?: [a-z']+){0,3}\.?", re.IGNORECASE)


def _read_side(line: str) -> float | None:
    return next((side for side, form in _FORMS.items() if form.fullmatch(line)), None)


def parse_single(reply: str) -> ParsedVerdict:
    """Parse the verdict of a reply about one comparison. None if a sentence names the other output."""
    quoted = _QUOTED.fullmatch(reply)
    lines = _split_lines(quoted[1] if quoted else reply)
    verdict = _read_marks(reply) if _MARK.search(reply) else read_last_line(lines, _read_side)
    said = {side for side, pattern in _STATEMENTS.items() if any(map(pattern.search, lines))}
    return None if said - {verdict} else verdict


def _read_marks(reply: str) -> ParsedVerdict:
    """Read marks such as `[[A>B]]`, which must all agree.

    Each must stand at the end of a line that decides ("My verdict is: …"), or below one.
    """
    marks = list(_MARK.finditer(reply))
    for mark in marks:
        line = reply[max(0, mark.start() - 1000) : mark.start()].rstrip("\n *_`#").rpartition("\n")[2]
        before_quotation = line.rpartition('"')[0].strip(" *_#") if line.count('"') % 2 else ""
        decides = _DECIDES.search(line) or " " not in line
        if mark["ends"] is None or not decides or (before_quotation and not _ANNOUNCES.fullmatch(before_quotation)):
            return None
    agreed = {mark[1] for mark in marks}
    return _MARKS[agreed.pop()] if len(agreed) == 1 else None


def parse_rating(reply: str) -> float | None:
    """Parse the mark of a reply, as a share of the way from the worst to the best."""

    def read_mark(line: str) -> float | None:
        found = _RATING.fullmatch(line)
        return float(found[1]) if found else None

    value = read_last_line(_split_lines(reply), read_mark)
    return (value - WORST) / (BEST - WORST) if value is not None and WORST <= value <= BEST else None


def mark(share: float) -> float:
    """The mark that lies at `share` of the way from the worst to the best: what `parse_rating` read."""
    return round(WORST + share * (BEST - WORST), 9)


def parse_list(reply: str, size: int) -> list[ParsedVerdict]:
    """Parse lines such as `2. Output (a)`, which must be all that is written, numbered upward from 1.

    An item that declines in a few words is None; anything else that is no verdict leaves none at all.
    """
    verdicts: list[ParsedVerdict] = [None] * size
    last = 0
    for line in _split_lines(reply):
        item = _ITEM.fullmatch(line)
        index = int(item[1]) if item else 0
        side = _read_side(item[2]) if item else None
        follows = index == 1 if not last else last < index <= size
        if not (item and follows and (side is not None or _DECLINES.fullmatch(item[2]))):
            return [None] * size
        verdicts[index - 1], last = side, index
    return verdicts


def parse_json(text: str, size: int) -> list[ParsedVerdict]:
    """Parse objects with an `index` and a boolean `first_is_better`, which must be all that is written.

    A key or an index given twice, an index outside 1 to `size` or an unknown key leaves no verdict at all.
    """
    nothing: list[ParsedVerdict] = [None] * size
    # An explanation may quote the marks of thoughts: they are cut off only where the text is not JSON as it stands.
    value = _load_json(strip_quotations(text)) or _load_json(strip_quotations(cut_thoughts(text)))
    if isinstance(value, dict):
        value = value["verdicts"] if value.keys() == {"verdicts"} else [value]
    if not (isinstance(value, list) and all(isinstance(item, dict) for item in value)):
        return nothing
    verdicts: dict[int, ParsedVerdict] = {}
    for item in value:
        index, verdict = item.get("index", 1 if size == 1 else None), item.get("first_is_better")
        # A boolean is an int to isinstance.
        if type(index) is not int or not 1 <= index <= size or index in verdicts or item.keys() - KEYS:
            return nothing
        verdicts[index] = float(verdict) if isinstance(verdict, bool) else None
    return [verdicts.get(index) for index in range(1, size + 1)]


def _load_json(text: str) -> Any:
    """The value of `text`, None if it is not JSON and nothing else."""
    try:
        return json.loads(text, strict=False, object_pairs_hook=_reject_duplicates)
    except (ValueError, RecursionError):
        return None


def _reject_duplicates(fields: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object. Raises `ValueError` for a key given twice, of which Python would take the last."""
    if len({key for key, _ in fields}) < len(fields):
        raise ValueError("a key is given twice")
    return dict(fields)


def parse_criteria(text: str) -> list[str]:
    """Parse the numbered lines of `text` that count up from 1, without numbers; at most `MOST_CRITERIA`."""
    criteria: list[str] = []
    for line in strip_quotations(cut_thoughts(text)).splitlines():
        line = line.strip(_MARKUP)
        number = _ITEM.match(line)
        if number and int(number[1]) == len(criteria) + 1 and (quality := number[2].strip(_MARKUP)):
            criteria.append(quality)
    return criteria[:MOST_CRITERIA]
