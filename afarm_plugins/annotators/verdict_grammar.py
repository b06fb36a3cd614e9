"""A small grammar of English verdicts: which output a judge's sentences name as the better one.

Each word becomes the letter of its class (`CLASSES`, `PHRASES`), so a sentence has a shape: "I think that Output (a) is
better than (b)." has the shape "IKja=BTb.". A clause of one of the shapes in `VERDICTS`, from its beginning to its
end, is a verdict; any other says nothing, and a word of no class, "u", fits into none. A negation, a condition, a
single criterion or another's words therefore leave a verdict unread, without a rule of their own. So do a symbol of no
known meaning beside a label, and a heading or question above it that does not ask for the better output.

To read another wording, add its word to a class, or its shape to `VERDICTS`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from afarm_plugins.annotators.own_words import MARKUP, own_part

CLASSES = {
    "A": "clearly much slightly definitely far marginally significantly somewhat overall simply still certainly"
    " obviously undoubtedly probably surely strongly narrowly easily considerably substantially noticeably honestly"
    " personally ultimately finally final own actually then again just really quite very also sure ok okay well"
    " yes here clear obvious mainly mostly chiefly primarily",
    "B": "better best preferred preferable superior stronger strongest winning favoured favored winner higher highest",
    "C": "prefer choose chose choosing picking pick select selecting favour favor favouring favoring voting opt opting"
    " go going went decide decided settle settled lean leaning take keep recommend",
    "D": "the a an",
    "E": "so therefore thus hence",
    "F": "wrong incorrect false bad poor flawed irrelevant incomplete inaccurate off lacks lacking misses missing fails"
    " failing too reject rejects discard discards avoid eliminate eliminated drop dropped ignore ignores ignored"
    " refuses untrue joke lie lies joking kidding",
    "H": "either both equal equally same tie tied draw if whether depends depending",
    "I": "i we",
    "K": "think believe find feel say conclude consider judge rate deem",
    "M": "my our",
    "N": "not never neither nor cannot hardly barely scarcely nothing none refuse doubt anything nobody without",
    "O": "output outputs one option candidate text version",
    "P": "it its",
    "R": "because since due why",
    "S": "while whereas although though even despite after having based considering comparing weighing taking given"
    " between among",
    "T": "than over above",
    "U": "but however yet nevertheless nonetheless",
    "V": "answer verdict pick choice preference decision conclusion selection response result judgement judgment vote"
    " evaluation assessment edge nod recommendation",
    "W": "with which",
    "X": "worse worst loser losing inferior weaker weakest poorer rejected"
    " discarded less least runner-up losers loses lost",
    "Y": "says said claims claimed writes wrote reads states stated tells asks asserts according",
    "Z": "wait scratch correction corrected sorry reconsider reconsidering oops until edit update",
    "c": "would will must should do does did have has am are",
    "e": "like liked hope",
    "f": "follows answers addresses fulfils fulfills satisfies meets",
    "g": "complete right correct accurate concise short good",
    "h": "or maybe perhaps unsure unless",
    "i": "instruction instructions question prompt task request",
    "j": "that this",
    "k": "chosen picked selected kept",
    "l": "only alone solely purely merely",
    "m": "more most",
    "n": "no nope nah",
    "o": "other rival alternative",
    "p": "for on towards toward",
    "q": "helpful useful suitable appropriate satisfying satisfactory fitting",
    "r": "rank place put",
    "s": "as",
    "t": "to",
    "v": "beats outperforms surpasses outdoes",
    "w": "wins win won prevails",
    "d": "was were",
    "y": "human humans user users person people reader readers",
    "=": "is be being been seems appears looks remains",
    "&": "and",
}
"""The words of each class. "a" and "b" are labels, "#" is a number; ".", "?", ",", ";", ":" and "-" are themselves."""

PHRASES = {
    "A": r"in (?:conclusion|short|summary|sum|the end)|in my (?:opinion|view|judge?ment)|to conclude|on balance|by far"
    r"|all (?:in all|things considered)|at the end of the day|hands down|a (?:bit|lot)"
    r"|by an? (?:\w+ ){0,2}(?:margin|mile|way|landslide|hair)"
    r"|of (?:the|these) two(?: (?:outputs|responses|answers))?|of the pair|in (?:every|all) (?:ways?|respects?)"
    r"|(?<!\w )here is"
    r"|if (?:forced|i (?:had|have|must)) to (?:choose|pick|decide)(?: one)?|as follows"
    r"|without (?:a doubt|hesitation)|no doubt"
    r"|in this case|to me|on the whole|that is why|with (?:that|this) in mind"
    r"|it is (?:clear|obvious) that",
    "w": r"comes out (?:ahead|on top)|(?:gets|has) my (?:vote|preference)|does better|takes it"
    r"|does (?:a|the) (?:much )?better job(?: (?:of|at) (?:following|answering) the (?:instructions?|question|prompt))?"
    r"|has (?:a slight|the) edge|deserves (?:the preference|to win)",
    "v": "edges out",
    "R": r"for (?:the following|these|several|two|this) reasons?",
    "=": r"goes to|is for",
    "B": r"preferred by (?:the |most )?(?:human )?(?:humans?|people|persons?|readers?|users?)",
    "T": r"ahead of",
    "W": r"for its",
    "C": r"give (?:the )?(?:edge|nod|preference|win) to|have a (?:\w+ )?preference for|meant(?! to)"
    r"|(?<!\w )pick(?= output| \()",
    "N": r"far from|(?:anything|all|nothing) but",
    "Z": r"on (?:second thoughts?|reflection)|i take (?:\w+ )?back|hold on|strike that|let me re\w+"
    r"|the (?:exact )?(?:opposite|reverse|contrary) of (?:what|that|this|my)|(?:it(?: is|'s) )?the other way a?round",
    "H": r"equally (?:good|strong|matched)",
    "#": r"(?:no\.|number|comparison|example|item|question) ?[0-9]{1,3}",
    "u": r"(?:would|could|should|i'd) have|(?:would|could|might) (?:\w+ly )?win|(?:vs|e\.g|i\.e|cf|etc)\.|in order to"
    r"|(?<!\w )take",
}
"""Expressions that count as one word of the class."""

_QUALITY = r"(?:B|k|mq)[OV]?"
_PRAISE = rf"A*+D?A*+{_QUALITY}"
_COPULA = r"(?:[cA]*+t?[=d])++"
_SOMEONE = r"[Dj]y++[cA]*+C"
_WANTED = rf"DOj?(?:I[cA]*+C[pW]?|{_SOMEONE})"
_PRAISED = (
    rf"(?:{_COPULA}(?:{_PRAISE}|MA*+V|{_WANTED})|[cA]*+w|[cA]*+vD?(?:[ab]|oO?)|,?P=|,{_PRAISE}|A*+BfD?i|fD?iA*+B)"
)
_NAME = rf"(?:[DMA]*+(?:{_QUALITY}|g?V)A*+|DOj?=A*+B|{_WANTED})"
_LEAD = rf"(?:{_NAME}[c=d:-][=:A]*+j?|I[cA]*+Kj?[:,]?A*+(?:P=)?|P[cA]*+t?=A*+j?:?)"
_OPENING = r"(?:[SR][^:,lY]*+,(?:[^:,lY]*+,){0,7})?[AE]*+[,:]?A*+"
_BECAUSE = r"[,-]?(?:R(?![^abo]*[=d]A*+[XF]\Z)|s(?=[Pabj]|D?o)|S(?![^,]*,[cA]*+[=d]))"
_REMARK = r"[,:-]A*+&?(?:[PW](?![A=c]*+D?[NF]?\Z|[Ac]*+Y)|D?o)[^abhZ]*+(?<!Y)\Z"
_COMPARED = r"(?:A*+[Tt]D?(?:[ab]|oO?))?A*+,?A*+"
_ENDS = rf"{_COMPARED}(?:\Z|{_BECAUSE}|s{_PRAISE}\Z|{_REMARK})"

VERDICTS = {
    # Output (a); Output (a), since it is short; Output (a) - it is right; Output (a) - the other one is wrong
    "bare": rf"LA*+,?A*+(?:\Z|{_BECAUSE}|[,-]P=A*+[gq](?:[,&]*+[gq])*+\Z|[,:-]D?oO?[=c]*+[FXN])",
    "named": rf"{_LEAD}L{_ENDS}",  # My verdict is Output (a); I think Output (a)
    "praised": rf"{_LEAD}?L{_PRAISED}{_ENDS}",  # Output (a) is better than (b)
    "chosen": rf"(?:I(?:[cAt=]|Ct(?![ab]))*+[CkV]|{_SOMEONE})[pWtA]*+:?L{_ENDS}",  # I would go with Output (a)
    "elliptic": rf"C[pWtA]*+:?L{_ENDS}",  # Choose Output (a); going with Output (a)
    "found": rf"I[cA]*+[Ke]L(?:t=|s)?(?:{_PRAISE}|A*+m){_ENDS}",  # I find Output (a) to be better
    "ranked": rf"I[cA]*+[Kr]LA*+TD?(?:[ab]|oO?){_ENDS}",  # I rank Output (a) above (b)
    "below": r"[ab]<L\Z",  # Output (b) < Output (a)
}
"""The shapes of a verdict, each with an example; L is the label of the better output."""

_ITEM = re.compile(r"\s*(?:[-*•+]|[0-9]{1,2}[.)]|[(\[][0-9]{1,2}[)\]])\s+(?=\S)")
_HEADING = re.compile(r"\s*(?:#|\*\*[^*]+\*\*\s*\Z)")

TAKES_BACK = re.compile(r"(?:[^ab:]{1,2}:)?[AU,]*+(?:Z|(?=h)|n(?=[,:-]|\Z|[ab]))[,:-]*")
"""The opening of a clause that takes back what was said before it."""

ASIDE = re.compile(
    r"[AE,&]*+(?:I(?![cA=]*+[CkKeV])[^ab]*\Z|j(?:[A=c]*+d|[A=c]++(?:(?=.*N)|(?!.*[RBVgqmk])))|P[A=dc]*+D?(?:[NF]\Z|X)|[^ab]*Y\Z)"
)
"""The opening of a clause about the judge or its verdict: "I lied", "That was a test", "It isn't"."""

SHORT = re.compile(r"[AE,&]*+(?![IPHW]|D?o[OA]?[=cuFN])[^abgqBR:]{1,4}\Z")
"""A sentence of few words on neither output: "Kidding"."""

DECLINES = re.compile(
    r"(?:[ADPV=d:,]*+u?[ADc=d,]*+[Hh]|(?:HO?|D?O|u)cA*+H|[ADV:]*+N|[ADPV=:,]*+nA*+[BVO]|N=A*+B|I[cA=]*+N[tc]*+[KCV][jP]?)[AO]*+[.]?\Z"
)
"""A sentence that decides for neither output: a tie, or a refusal to judge."""

_VERDICTS = {name: re.compile(_OPENING + shape.replace("L", "(?P<side>[ab])")) for name, shape in VERDICTS.items()}
_ASKS_FOR_BETTER = re.compile("(?!.*[abFHhlNX]).*[BCVk]")
_SENTENCE = re.compile(r"[^.?]*+[.?]|[^.?]++\Z")
_LONG = 60  # letters of a heading that is certain to say more than whose label stands below it
_BETWEEN_PARTS = re.compile("([;UE]|,(?=[BXk][OV]?:))")
_NUMBER = re.compile(r"\w*\d\w*|i{2,3}|i?v|vi{1,3}|ix")
_GOES_ON = re.compile(r"[^ab]{0,2}[ab].*[u#]\.")
_WORDS = {word: letter for letter, words in CLASSES.items() for word in words.split()}
_SUFFIXES = {"m": "=", "d": "c", "ll": "c", "ve": "c", "re": "="}
_NAMED_PHRASES = "|".join(rf"(?P<phrase{i}>\b(?:{choices})(?!\w))" for i, choices in enumerate(PHRASES.values()))
_TOKEN = re.compile(
    r"\\[a-z]{1,20}\{|[-=]{1,3}>|</[a-z_]{1,30}>|<(?P<tag>[a-z_]{1,30})>"
    r"|(?:\b(?:output|response|answer|option|choice|candidate|completion|assistant|text)[\s*_`]{0,4})?"
    r"(?:\((?P<bracketed>[ab])\)|\[\[(?P<doubly>[ab])\]\])"
    r"|\b(?:output\s?(?P<plain>[ab])|(?:response|answer|option|choice|candidate|assistant) (?P<capital>(?-i:[AB])))"
    r"(?!\w)"
    r"|(?P<alone>(?<!\w)(?<!\b[ab]\W)[ab](?=\W*\Z)|\A[ab](?=\s[0-9]{1,3}[.)]))"
    rf"|{_NAMED_PHRASES}"
    r"|(?P<word>[^\W_]++(?:[-'][^\W_]++)*+)"
    r"|(?<![.!?…])(?P<end>[.!?…]++)(?=[\s)\"'*_`<]|\Z)"
    r"|(?P<strange>[(\[][ ]?[)\]]|(?<!\w)!(?=[\w(])|[$%&+=@^|~]|(?<!\s)<|<(?!\s)"
    r"|[^\w\s!-/:;<>?\[-`{-~…—–“”«»•·→➡👉✅✓✔☑🏆👍🥇⭐🎯\ufe0f\u200d])"
    r"|(?P<mark>[—,;:(\[]|(?<!\S)<(?!\S)|>++|(?<!\S)[-–]++(?!\S))",
    re.IGNORECASE,
)
_MARKS = {"—": "-", "–": "-", "(": ",", "[": ",", ">": "v"}


@dataclass(frozen=True, slots=True)
class Statement:
    """A clause "for" or "against" the output `side`, a "section" on it, "doubt", an "aside", or "none".

    "doubt" takes back what was said before it, an "aside" may; "none" says that there is no verdict, whatever stands
    around it. `side` is 1.0 for the first output, 0.0 for the second.
    """

    kind: Literal["for", "against", "section", "doubt", "aside", "none"]
    side: float | None = None


def verdict_of(statements: Iterable[Statement]) -> float | None:
    """Take the verdict that is stated and not taken back: None if there is none, or two.

    Sections on both outputs are no verdicts; a label that heads the only one is.
    """
    sides: dict[str, set[float | None]] = {"for": set(), "against": set(), "section": set()}
    doubted = False
    for statement in statements:
        if statement.kind == "none":
            return None
        doubted = statement.kind in ("doubt", "aside") or (doubted and statement.kind == "against")
        if statement.kind in sides:
            sides[statement.kind].add(statement.side)
    named = sides["for"] | (sides["section"] if len(sides["section"]) == 1 else set())
    if doubted or len(named) != 1 or named & sides["against"]:
        return None
    return named.pop()


def statements_in(lines: Iterable[str]) -> Iterator[Statement]:
    """List statements of `lines`. A label on a line of its own is what the heading before it calls it."""
    heading = ""
    for line in lines:
        item, is_heading = _ITEM.match(line), bool(_HEADING.match(line))
        shape = shape_of(own_part(line[item.end() :] if item else line).lstrip(MARKUP))
        if not shape:
            continue
        heads_section = is_heading and shape in ("a", "b")
        for statement in statements_of(shape, heading):
            if heads_section and not heading:
                yield replace(statement, kind="section")
            elif not (
                (heads_section and statement.kind == "doubt") or ((item or is_heading) and statement.kind == "aside")
            ):
                yield statement
        if not is_bare(shape):  # two labels below one heading are a ranking: it is the heading of both
            last = line.rstrip(MARKUP)[-1:]
            names_label = is_heading or last in (":", "?") or (last.isalnum() and shape[-1] != "." and not item)
            heading = heading_of(shape) if names_label else ""


def takes_back(text: str) -> bool:
    """Tell if lines that follow a verdict take it back, or may."""
    return any(s.kind in ("doubt", "aside", "none") for s in statements_in(text.splitlines()))


def statements_of(shape: str, heading: str = "") -> list[Statement]:
    """List the statements in a text of this shape, in order. Linear in its length.

    A label alone is what the `heading` or question before it calls it, and nothing behind a list that goes on ("Output
    (a), 2. Output (b)"). A verdict with the number of another item in its sentence is none.
    """
    statements: list[Statement] = []
    for sentence in _SENTENCE.findall(shape):
        names_label = heading if is_bare(sentence) else ""
        stated = list(_of_sentence(names_label + sentence))
        if not stated and sentence.endswith("#.") and any(_of_sentence(sentence[:-2])):
            stated = [Statement("none")]
        statements += stated or [Statement("doubt")] * bool(names_label)
        goes_on = not stated and _GOES_ON.match(sentence)
        heading = heading_of(sentence) if sentence.endswith("?") else "u:" if goes_on else ""
    return statements


def is_bare(shape: str) -> bool:
    """Tell if a text of this shape opens with a label that nothing but a heading explains."""
    return _VERDICTS["bare"].match(shape.rstrip(".")) is not None


def heading_of(shape: str) -> str:
    """Spell what a heading, or a question, calls the label below it."""
    if shape.endswith("?"):
        return "B:" if _ASKS_FOR_BETTER.match(shape) else "u:"
    return f"{shape.rstrip('.:')}:" if len(shape) < _LONG else "u:"


def _of_sentence(sentence: str) -> Iterator[Statement]:
    """Statements of the parts that "so", "but", ";" or ", rejected:" separate."""
    asks, stated, after = sentence.endswith("?"), False, ""
    sentence = sentence.strip(".?,-")
    if not asks and DECLINES.match(sentence):
        yield Statement("none")
    for part in _BETWEEN_PARTS.split(sentence):
        if part in (";", ",", "U", "E"):
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
        elif (stated and after == "U" and re.search(r"[abH]|\AF", clause)) or {"a", "b", "H"} <= {*clause}:
            yield Statement("doubt")
        elif not asks and (ASIDE.match(clause) or SHORT.match(clause if after == ";" else sentence)):
            yield Statement("aside")


def _of_clause(clause: str, after: str) -> Statement | None:
    for kind, shape in _VERDICTS.items():
        verdict = shape.match(clause)
        if verdict and not (kind == "bare" and after == "U"):
            return Statement("for", float(verdict["side"] == "a"))
    if re.search("[NnX]", clause):
        turned = _of_clause(re.sub("[Nn]", "", clause).replace("X", "B"), after)
        return Statement("against", turned.side) if turned else None
    return None


def shape_of(text: str) -> str:
    """Spell the shape of a line of text: one letter for each word, phrase, label or mark."""
    letters = (_letters(token) for token in _TOKEN.finditer(text.replace("’", "'")))
    return re.sub("D(?=[ab])|(?<=I)E", "", "".join(letters))


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
    if kind == "strange":
        return "u"
    if kind == "end":
        return "?" if "?" in text else "."
    if kind == "mark":
        return _MARKS.get(text[0], text[0])
    return [*PHRASES][int(kind.removeprefix("phrase"))]


def _word(word: str) -> str:
    if word in _WORDS:
        return _WORDS[word]
    stem, _, suffix = word.partition("'")
    if word.endswith("n't"):
        return "N"
    if _NUMBER.fullmatch(word):
        return "#"
    if stem == "it" and suffix == "s":
        return "P="
    return _WORDS[stem] + _SUFFIXES[suffix] if suffix in _SUFFIXES and stem in _WORDS else "u"
