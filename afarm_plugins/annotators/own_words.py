"""The lines of a judge's answer that are its own: neither its thoughts nor what it quotes.

A judge that meets a forged verdict in an output tends to show it: "it ends with this line:" and then the line. So what
stands behind a colon is the judge's only if the colon's clause announces a judgement ("My verdict:", "Analysis:"); it
decides nothing behind any other.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

MARKUP = " \t*_`\"'>#-"
"""Characters around a line that carry no meaning."""
CLAUSE = 200
"""Characters at the end of a line that tell what it introduces."""

_THOUGHTS = re.compile(
    r"^[ \t]*<(think|thinking|thoughts?|reasoning|reflection|scratchpad|analysis)>.*?(?P<end></\1>|\Z)",
    re.DOTALL | re.MULTILINE | re.IGNORECASE,
)
_BLOCK_QUOTE = re.compile(r"^[ \t]*>.*$", re.MULTILINE)
# A completion model that is done may go on with a comparison of its own making, whose verdicts are not ours.
_RUN_ON = re.compile(r"^[ \t#*]*Instruction[ \t]*:", re.MULTILINE)
_STYLE_TAG = re.compile(r"</?(?:b|strong|i|em|u|span)>", re.IGNORECASE)
_LINE_TAG = re.compile(r"</?(?:p|div|br) ?/?>", re.IGNORECASE)
_FENCE = re.compile(r"[ \t]*(?:`{3,}|~{3,})(?P<rest>[^`~]*)\Z")
_GOES_ON = re.compile(r"[ \t]*(?:[;,]|(?:which|is|was|at (?:the|its) end|in order to)\b(?!:))")
_GOES_ON_AFTER = re.compile(r"(?:\s*`{3,}[ \t]*\n?)?[ \t]*[,;]?[ \t]*[a-z]")
_COLON = re.compile(
    r"(?P<rejected>(?:\A|[,.;]\s)(?:rejected|worse|worst)(?: (?:output|response|answer))?):(?=\s(?:output )?\([ab]\))"
    r"|:(?P<goes_on>\s+(?-i:[a-z(]))?",
    re.IGNORECASE,
)
_INLINE_QUOTE = re.compile(r"\"[^\"]*(?:\"|\Z)|“[^”]*(?:”|\Z)|«[^»]*(?:»|\Z)|„[^“”]*[“”]|`[^`]+`|(?<!\w)'[^']*'(?!\w)")
_QUOTED_LABEL = re.compile(r".(?:output ?)?\(?[ab]\)?\.?.\Z", re.IGNORECASE)
_BETWEEN_CLAUSES = re.compile(r"[.!?;,]\s+")

_DECISION = (
    r"(?:answer|verdict|pick|choice|preference|decision|conclusion|result|judge?ment|rating|mark|score|grade|ranking|vote"
    r"|selection|evaluation|assessment|analysis|reason|reasoning|explanation|justification|summary|note|json|winner|loser"
    r"|(?:(?:better|best|preferred|superior|winning|chosen)(?: output| one| response| answer)?))s?"
)
_BEFORE = "(?:so|therefore|thus|hence|overall|and|sure|these are|here(?: is|'s| are)?|that|the|final|clear)"
_OWN = re.compile(
    rf"\bmy (?:final |own |overall )*{_DECISION}\b"
    rf"|\A(?:{_BEFORE} )*(?:{_DECISION}|overall|final|so|sure|okay|kept|no doubt|here you are)"
    r"(?: (?:for|from|in|on|about)\b.*| \(.*)?(?: is| are| was)?\W*\Z"
    r"|\bis (?:\w+ )?(?:better|best|superior|stronger|preferred)\W*\Z"
    r"|\A\W*(?:(?:output\W{1,3})?[ab]\W{1,3})?(?:(?:comparison|example|no\.) ?)?[0-9]+\W*\Z"
    r"|\A(?:so |therefore )?i(?: would|'d| will| must)? (?:\w+\W*\Z|(?:looked at|compared|considered|weighed)\b)",
    re.IGNORECASE,
)
_UNFINISHED = re.compile(
    r"\b(?:(?:plead|beg|demand|tell|order|ask|instruct|urge|command)s(?: me)?"
    r"|says|reads|states|writes|wrote|claims|contains|includes|adds|ends|asks for|wants|line|words|with|this"
    r"|following|is|e\.g\.)[\s*_`\"'“]*\Z",
    re.IGNORECASE,
)


def without_quotations(text: str) -> str:
    """An answer without its thoughts and without lines quoted with ">", unless there is nothing else.

    Of an answer that ends in the middle of a thought nothing is left: the verdict would have come after it.
    """
    if any(not thought["end"] for thought in _THOUGHTS.finditer(text)):
        return ""
    text = _THOUGHTS.sub("", text)
    own = _BLOCK_QUOTE.sub("…", text)
    return own if own.strip(" \t\r\n…") else text


def answer_lines(text: str) -> list[str]:
    """The lines of `text` without quotations and HTML tags, up to the next made-up comparison."""
    text = without_quotations(text)
    run_on = _RUN_ON.search(text)
    own = text[: run_on.start()] if run_on else text
    return _STYLE_TAG.sub("", _LINE_TAG.sub("\n", own)).splitlines()


def own_lines(text: str) -> list[str]:
    """The lines of `text` that the judge says itself, in order. Linear in the length of the text.

    Left out, beside what `answer_lines` leaves out, are passages that are introduced as another's words, and
    passages in the middle of a sentence.
    """
    lines = answer_lines(text)
    closed_by = _fences(lines)
    kept: list[str] = []
    introduced, i = False, 0
    while i < len(lines):
        if not lines[i].strip():
            i += 1
            continue
        passage, rest, end = [lines[i]], "", i + 1
        if i in closed_by:
            end = closed_by[i] + 1
            passage, rest = lines[i + 1 : end - 1], _after_fence(lines[end - 1])
        elif introduced:
            while end < len(lines) and lines[end].strip():
                end += 1
        after = rest or (lines[end] if end < len(lines) else "")
        quoted = introduced or bool(_GOES_ON.match(after))
        kept += [] if quoted else passage
        kept += [rest.lstrip(" \t;,.:")] if rest else []
        introduced = not quoted and i not in closed_by and introduces(lines[i])
        i = end
    return kept


def own_part(line: str) -> str:
    """A line up to the words that it introduces as another's, its quotations as the one word "quotation".

    A quoted label, as in `My answer: "Output (a)"`, stands for itself.
    """
    line = _INLINE_QUOTE.sub(lambda quote: quote[0][1:-1] if _QUOTED_LABEL.match(quote[0]) else " quotation ", line)
    start = 0
    for colon in _COLON.finditer(line):
        end = colon.start() + len(colon["rejected"] or "")
        if not colon["rejected"] and introduces(line[start:end] + ":" * (not colon["goes_on"])):
            return line[: end + 1]
        start = end + 1
    return line


def is_embedded(text: str, start: int, end: int) -> bool:
    """Tell if `text[start:end]` stands in the middle of a sentence, or is introduced as another's words."""
    before = text[max(0, start - 2 * CLAUSE) : start].rstrip(" \t")
    line = before.rpartition("\n")[2].strip()
    if not line:
        above = before.rstrip().removesuffix("```json").removesuffix("```").rstrip()
        return introduces(above.rpartition("\n")[2]) or bool(_GOES_ON_AFTER.match(text, end))
    mentioned = (line[-1].isalnum() or line[-1] == ",") and not _OWN.search(_BETWEEN_CLAUSES.split(line)[-1])
    return mentioned or introduces(line) or bool(_GOES_ON_AFTER.match(text, end))


def introduces(line: str) -> bool:
    """Tell if `line` announces words that may be another's: "It ends so:", not "My verdict:"."""
    line = line.rstrip(f"{MARKUP}“")
    clause = _BETWEEN_CLAUSES.split(line[-CLAUSE:].strip(MARKUP))[-1]
    return not _OWN.search(clause) and (clause.endswith(":") or bool(_UNFINISHED.search(clause)))


def _fences(lines: Sequence[str]) -> dict[int, int]:
    """The line that closes each code fence, by the line that opens it."""
    fences = [i for i, line in enumerate(lines) if _FENCE.match(line)]
    return dict(zip(fences[::2], fences[1::2], strict=False))


def _after_fence(line: str) -> str:
    """The text behind the fence in a line that closes it."""
    fence = _FENCE.match(line)
    return fence["rest"].strip() if fence else ""
