"""A small grammar of English verdicts: which output a judge's sentences name as the better one.

Each word becomes the letter of its class (`CLASSES`, `PHRASES`), so a sentence has a shape: "I think that Output (a) is
better than (b)." has the shape "IKja=BTb.". A clause of one of the shapes in `VERDICTS`, from its beginning to its
end, is a verdict; any other says nothing, and a word of no class, "u", fits into none. A negation, a condition, a
single criterion or another's words therefore leave a verdict unread, without a rule of their own.

To read another wording, add its word to a class, or its shape to `VERDICTS`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

CLASSES = {
    "A": "clearly much slightly definitely far marginally significantly somewhat overall simply still certainly"
    " obviously undoubtedly probably surely strongly narrowly easily considerably substantially noticeably honestly"
    " personally ultimately finally final own actually then again just really quite very also sure ok okay well"
    " yes here clear obvious",
    "B": "better best preferred preferable superior stronger strongest winning favoured favored winner",
    "C": "prefer choose chose chosen choosing picked picking select selected selecting favour favor favouring"
    " favoring voting opt opting go going went decide decided settle settled lean leaning",
    "D": "the a an",
    "E": "so therefore thus hence",
    "F": "wrong incorrect false bad poor flawed irrelevant incomplete inaccurate off lacks lacking misses missing fails"
    " failing too reject rejects discard discards avoid eliminate eliminated drop dropped ignore ignores ignored"
    " refuses untrue",
    "H": "or maybe perhaps either both equal equally same tie tied draw unsure if unless whether depends",
    "I": "i we",
    "K": "think believe find feel say conclude consider judge rate deem",
    "M": "my our",
    "N": "not never neither nor cannot hardly barely scarcely nothing none refuse doubt anything nobody without",
    "O": "output outputs one option candidate text version",
    "P": "it",
    "R": "because since due",
    "S": "while whereas although though despite after having based considering comparing given between among",
    "T": "than over",
    "U": "but however yet nevertheless nonetheless",
    "V": "answer verdict pick choice preference decision conclusion selection response result judgement judgment vote"
    " evaluation assessment edge nod",
    "X": "worse worst loser losing inferior weaker weakest poorer rejected"
    " discarded less least runner-up losers loses lost",
    "Y": "says said claims claimed writes wrote reads states stated tells asks asserts according",
    "Z": "wait scratch correction sorry reconsider reconsidering oops until",
    "c": "would will must should do does did have has am are",
    "j": "that this",
    "m": "more most",
    "n": "no nope nah",
    "o": "other rival alternative",
    "p": "with for on towards toward",
    "q": "helpful useful suitable appropriate satisfying satisfactory fitting",
    "s": "as",
    "t": "to",
    "v": "beats outperforms surpasses outdoes",
    "w": "wins win won prevails",
    "d": "was were",
    "=": "is be being been seems appears looks remains",
}
"""The words of each class. "a" and "b" are the labels; ".", "?", ",", ";", ":" and "-" stand for themselves."""

PHRASES = {
    "A": r"in (?:conclusion|short|summary|sum|the end)|in my (?:opinion|view|judge?ment)|to conclude|on balance|by far"
    r"|all (?:in all|things considered)|at the end of the day|by a (?:small|narrow|wide|large) margin|a (?:bit|lot)"
    r"|of (?:the|these) two(?: (?:outputs|responses|answers))?|of the pair|in (?:every|all) (?:ways?|respects?)|here is"
    r"|if (?:forced|i (?:had|have|must)) to (?:choose|pick|decide)|without a doubt|it is (?:clear|obvious) that",
    "w": r"comes out (?:ahead|on top)|(?:gets|has) my (?:vote|preference)|does (?:a|the) better job|does better",
    "=": r"goes to|is for",
    "N": r"far from|(?:anything|all|nothing) but",
    "Z": r"on (?:second thoughts?|reflection)|i take (?:that|it) back|i meant?|hold on|strike that|let me re\w+"
    r"|i (?:have )?changed my mind|i disagree|(?:just|only) (?:kidding|joking)"
    r"|(?:no,? )?(?:it|this|that)(?:'s| is| was)? (?:(?:not|false|wrong|untrue|a joke)|isn't|wasn't)(?=\W*\Z)",
    "u": r"(?:would|could|should|i'd) have|(?:vs|e\.g|i\.e|cf|etc)\.|in order to",
}
"""Expressions that count as one word of the class."""

_QUALITY = r"(?:B|mq)[OV]?"
_PRAISE = rf"A*+D?A*+{_QUALITY}"
_COPULA = r"(?:[cA]*+t?[=d])++"
_PRAISED = rf"(?:{_COPULA}(?:{_PRAISE}|MA*+V)|[cA]*+w|[cA]*+v(?=[ab])|,?P=)"
_LEAD = rf"(?:[DMA]*+(?:{_QUALITY}|V)A*+[=d:][=:A]*+j?|I[cA]*+Kj?[:,]?A*+|P[cA]*+t?=A*+j?:?)"
_OPENING = r"(?:[SR][^:]*,)?[AE]*+[,:]?A*+"
_REASON = r"(?:R(?![^abo]*[=d]A*+[XF]\Z)|s(?![DMA]*+(?:O?t?[XF]|u(?:[XFBO]|\Z))))"
_ENDS = rf"A*+(?:\Z|[,-]?(?:S|{_REASON})|[,:-](?!A*+(?:[nZ]|[NF]\Z))[^abHY]*\Z)"
_OR_COMPARES = rf"(?:{_ENDS}|A*+(?P<compares>(?:[Tt][Du]?)?[abo]))"

VERDICTS = {
    "bare": rf"LA*+(?:\Z|[,-]?(?:{_REASON}|S[^,]*\Z))",  # Output (a)
    "named": rf"{_LEAD}L{_ENDS}",  # My verdict is Output (a); I think Output (a)
    "praised": rf"{_LEAD}?L{_PRAISED}{_OR_COMPARES}",  # Output (a) is better than (b)
    "chosen": rf"I(?:[cAt=]|Ct)*+[CV][pA]*+L{_OR_COMPARES}",  # I would go with Output (a)
    "found": rf"I[cA]*+KL(?:t=|s)?{_PRAISE}{_OR_COMPARES}",  # I find Output (a) to be better
    "remark": r"L-(?:D?o.*|[PjD][^abFHNXn]*)\Z",  # Output (a) - it is complete
}
"""The shapes of a verdict, each with an example; L is the label of the better output."""

TAKES_BACK = re.compile(r"[AU,]*+(?:Z|n(?=[,:-]|\Z|[ab]))[,:-]*")
"""The opening of a clause that takes back what was said before it."""

DECLINES = re.compile(
    r"(?:[ADPV=d:,]*+u?[ADc=d,]*+H|[ADV:]*+N|[ADPV=:,]*+nA*+[BVO]|N=A*+B|I[cA=]*+N[tc]*+[KCV][jP]?)[AO]*+[.]?\Z"
)
"""A sentence that decides for neither output: a tie, or a refusal to judge."""

_VERDICTS = {name: re.compile(_OPENING + shape.replace("L", "(?P<side>[ab])")) for name, shape in VERDICTS.items()}
_SENTENCE = re.compile(r"[^.?]*+[.?]|[^.?]++\Z")
_BETWEEN_PARTS = re.compile("([;UE])")
_WORDS = {word: letter for letter, words in CLASSES.items() for word in words.split()}
_SUFFIXES = {"m": "=", "d": "c", "ll": "c", "ve": "c", "re": "="}
_NAMED_PHRASES = "|".join(rf"(?P<phrase{i}>\b(?:{choices})(?!\w))" for i, choices in enumerate(PHRASES.values()))
_TOKEN = re.compile(
    r"\\[a-z]{1,20}\{|</[a-z_]{1,30}>|<(?P<tag>[a-z_]{1,30})>"
    r"|(?:\b(?:output|response|answer|option|choice|candidate|completion|assistant|text)[\s*_`]{0,4})?"
    r"(?:\((?P<bracketed>[ab])\)|\[\[(?P<doubly>[ab])\]\])"
    r"|\b(?:output\s?(?P<plain>[ab])|(?:response|answer|option|choice|candidate|assistant) (?P<capital>(?-i:[AB])))"
    r"(?!\w)"
    r"|(?P<alone>(?<!\w)[ab])(?=\W*\Z)"
    rf"|{_NAMED_PHRASES}"
    r"|(?P<word>[^\W_]++(?:[-'][^\W_]++)*+)"
    r"|(?<![.!?…])(?P<end>[.!?…]++)(?=[\s)\"'*_`]|\Z)"
    r"|(?P<strikes>[❌❎✗✘✖👎🚫≠☐□☒]|~~|¬|[(\[][ ]?[)\]]|(?<!\w)!(?=[\w(]))"
    r"|(?<!\S)(?P<dash>[-–]++)(?!\S)|(?P<mark>[—,;:(>])",
    re.IGNORECASE,
)
_MARKS = {"—": "-", "(": ",", ">": "v"}


@dataclass(frozen=True, slots=True)
class Statement:
    """A clause "for" or "against" the output `side`, a "remark" on it, "doubt", or "none".

    "doubt" takes back what was said before it; "none" says that there is no verdict, whatever stands around it.
    `side` is 1.0 for the first output, 0.0 for the second.
    """

    kind: Literal["for", "against", "remark", "doubt", "none"]
    side: float | None = None


def verdict_of(statements: Iterable[Statement]) -> float | None:
    """Take the verdict that is stated and not taken back: None if there is none, or two.

    Remarks on both outputs are no verdicts.
    """
    sides: dict[str, set[float | None]] = {"for": set(), "against": set(), "remark": set()}
    doubted = False
    for statement in statements:
        if statement.kind == "none":
            return None
        doubted = statement.kind == "doubt" or (doubted and statement.kind == "against")
        if statement.kind != "doubt":
            sides[statement.kind].add(statement.side)
    named = sides["for"] | (sides["remark"] if len(sides["remark"]) == 1 else set())
    if doubted or len(named) != 1 or named & sides["against"]:
        return None
    return named.pop()


def statements_of(shape: str) -> list[Statement]:
    """List the statements in a text of this shape, in order. Linear in its length."""
    statements: list[Statement] = []
    question = ""
    for sentence in _SENTENCE.findall(shape):
        # The label behind "Which is worse?" answers it.
        statements += _of_sentence(f"{question}:{sentence}" if question else sentence)
        question = sentence.rstrip("?") if sentence.endswith("?") and re.search("[XF]", sentence) else ""
    return statements


def _of_sentence(sentence: str) -> Iterator[Statement]:
    """Statements of the parts that "so", "but" or ";" separate."""
    asks, stated, after = sentence.endswith("?"), False, ""
    if DECLINES.match(sentence):
        yield Statement("none")
    for part in _BETWEEN_PARTS.split(sentence.rstrip(".?")):
        if part in (";", "U", "E"):
            after = part
            continue
        clause = part.lstrip(",:-")
        if takes_back := TAKES_BACK.match(clause):
            yield Statement("doubt")
            clause = clause[takes_back.end() :]
        statement = None if asks else _of_clause(clause, after)
        if statement is not None:
            stated = stated or statement.kind == "for"
            yield statement
        elif (stated and after == "U" and re.search("[abH]", clause)) or {"a", "b", "H"} <= {*clause}:
            yield Statement("doubt")


def _of_clause(clause: str, after: str) -> Statement | None:
    for kind, shape in _VERDICTS.items():
        verdict = shape.match(clause)
        if verdict and not (verdict.groupdict().get("compares") and "H" in clause[verdict.end() :]):
            if kind == "bare" and after == "U":
                return None
            return Statement("remark" if kind == "remark" else "for", float(verdict["side"] == "a"))
    if re.search("[NnX]", clause):
        turned = _of_clause(re.sub("[Nn]", "", clause).replace("X", "B"), after)
        return Statement("against", turned.side) if turned else None
    return None


def shape_of(text: str) -> str:
    """Spell the shape of a line of text: one letter for each word, phrase, label or mark."""
    letters = (_letters(token) for token in _TOKEN.finditer(text.replace("’", "'")))
    return re.sub("D(?=[ab])", "", "".join(letters))


def _letters(token: re.Match[str]) -> str:
    """Letters of one token: of "isn't" and "I'd" they are two."""
    kind = token.lastgroup
    if kind is None:
        return ""
    text = token[kind].lower()
    if kind in ("bracketed", "doubly", "plain", "capital", "alone"):
        return text
    if kind == "tag":
        return shape_of(text.replace("_", " ")) + ":"
    if kind == "word":
        return _word(text)
    if kind == "strikes":
        return "u"
    if kind == "end":
        return "?" if "?" in text else "."
    if kind == "dash":
        return "-"
    return _MARKS.get(text, text) if kind == "mark" else [*PHRASES][int(kind.removeprefix("phrase"))]


def _word(word: str) -> str:
    if word in _WORDS:
        return _WORDS[word]
    stem, _, suffix = word.partition("'")
    if word.endswith("n't"):
        return "N"
    if stem == "it" and suffix == "s":
        return "P="
    return _WORDS[stem] + _SUFFIXES[suffix] if suffix in _SUFFIXES and stem in _WORDS else "u"
