"""Red flags on a win rate: outputs that game the judge (constant, injected) and judge biases.

    found = inspect_outputs(judgements)
    found.flags, found.prefers_longer, found.prefers_lists

All of it is pure, over outputs and judgements. A flag names what is suspicious and quotes one place; it changes no
figure. Constant outputs and outputs that talk to the judge are those that Zheng et al. 2024 ("Cheating Automatic LLM
Benchmarks", arXiv 2410.07137) won AlpacaEval with; the judge's bias for length and lists is measured as
`afarm.evaluation.agreement` does.
"""

from __future__ import annotations

import random
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib import resources
from itertools import takewhile
from typing import Any

import yaml

from afarm.core.records import Instruction, JudgedPair, Row
from afarm.evaluation.biases import SIGNIFICANT_LENGTH
from afarm.evaluation.judge_flags import Flag, JudgeTally, family_flags
from afarm.evaluation.metrics import Estimate
from afarm.storage.text import one_line
from afarm.storage.thoughts import cut_thoughts, find_thoughts

FEWEST_OUTPUTS = 5
"""Outputs from which on they can be called all alike."""
MOST = 0.5
"""The share of a system's outputs above which what they have in common is the system's doing."""
ALIKE = 0.8
"""The share of an output that must be common to most outputs for it to be nearly the same as they are."""
SHINGLE = 5
"""Words in a row by which texts are compared."""
SAMPLED_OUTPUTS = 2_000
"""Outputs of a system that are inspected, if it has more."""
EXCERPT = 120
"""Characters of an output that a flag quotes."""
FEWEST_SHARE = 0.01
"""The share of outputs that must match for a flag: fewer could not move a win rate by more than that."""
FEW = 20
"""Outputs from which on a single match is an accident."""
SHORT_EDGE, LONG_EDGE = 10, 24
"""Characters that all outputs begin or end with alike, or more than `MOST` of them, for those to be a constant."""
NAMED_PATTERNS = 3
"""Patterns that a flag names."""

SENTENCE = 240
"""Characters of a sentence that are looked at, at most, on either side of a word."""

_WORD = re.compile(r"\w+")
_SENTENCE_END = re.compile(r"(?<=[.!?;])\s|\n|(?<=[。！？])")


@dataclass(frozen=True, slots=True)
class Pattern:
    """A way of gaming the judge: text that matches `regex`.

    Texts that lack a word of one of `words` are not searched, which spares most of them the search. With `features`
    instead, one sentence with a word of the first list must match all of them. Under `unopened` the match is a closing
    tag that nothing before it opens. `reading` is the attribute of `NormalForm` that is searched.
    """

    name: str
    words: tuple[frozenset[str], ...]
    regex: re.Pattern[str]
    features: tuple[re.Pattern[str], ...]
    unopened: bool
    reading: str

    def search(self, reading: NormalForm, *, unopened: bool = False) -> int | None:
        """Return the place of a match in a text that has the words, or None; of tags, of an `unopened` one."""
        if self.features:
            for word in self.words[0] & reading.words:
                for match in re.finditer(re.escape(word.removesuffix("*")), reading.plain):
                    start = match.start()
                    sentence = _SENTENCE_END.split(reading.plain[max(0, start - SENTENCE) : start])[-1]
                    sentence += _SENTENCE_END.split(reading.plain[start : start + SENTENCE], maxsplit=1)[0]
                    if all(feature.search(sentence) for feature in self.features):
                        return start
            return None
        text = getattr(reading, self.reading)
        for match in self.regex.finditer(text):
            if not unopened or not re.search(rf"<{match[1]}\b", text[: match.start()]):
                return int(match.start())
        return None


@dataclass(frozen=True, slots=True)
class Match:
    """One place of an output that matches `pattern`, a pattern of `flag`."""

    flag: str
    pattern: str
    quote: str


@cache
def patterns() -> Mapping[str, tuple[Pattern, ...]]:
    """The patterns of `patterns.yaml`, by the name of the flag that a match raises."""
    text = resources.files("afarm.evaluation").joinpath("patterns.yaml").read_text(encoding="utf-8")
    listed = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # libyaml's takes a seventh as long
    alternatives: Mapping[str, Sequence[str]] = listed["alternatives"]
    first_words = {name: [choice.split()[0] for choice in choices] for name, choices in alternatives.items()}

    def compiled(regex: str, flag: re.RegexFlag, *, folds: bool) -> re.Pattern[str]:
        for name, choices in alternatives.items():
            regex = regex.replace(f"<{name}>", f"(?:{'|'.join(choices)})")
        return re.compile(fold(regex) if folds else regex, flag)

    features = {name: compiled(regex, re.MULTILINE, folds=True) for name, regex in listed["features"].items()}

    def pattern(entry: Mapping[str, Any], flag: str) -> Pattern:
        reading = "raw" if flag == "disguised" else "folded" if entry.get("case_sensitive") else "plain"
        ignore_case = re.IGNORECASE if reading == "raw" else re.RegexFlag(0)
        multiline = re.MULTILINE if entry.get("multiline") else re.RegexFlag(0)
        regex = compiled(entry.get("pattern", ""), ignore_case | multiline, folds=reading == "plain")
        own_features = tuple(features[name] for name in entry.get("features", ()))
        words = (
            frozenset(fold(word) for listed in group for word in first_words.get(listed, [listed]))
            for group in entry.get("words", ())
        )
        return Pattern(entry["name"], tuple(words), regex, own_features, bool(entry.get("unopened")), reading)

    return {flag: tuple(pattern(entry, flag) for entry in entries) for flag, entries in listed["patterns"].items()}


@dataclass(frozen=True, slots=True)
class RedFlags:
    """The flags that a system's outputs and their judge raise, and the judge's biases.

    `prefers_longer` is the share for the longer of the judge's choices between outputs of different length,
    `prefers_lists` the share for the list of its choices between one with a list and one without,
    `prefers_first_shown` that for the output shown first, `turned_by_order` the share of the pairs judged in both
    orders that the other order turned.
    """

    flags: tuple[Flag, ...] = ()
    prefers_longer: Estimate | None = None
    prefers_lists: Estimate | None = None
    prefers_first_shown: Estimate | None = None
    turned_by_order: Estimate | None = None

    def to_row(self) -> Row:
        return {**asdict(self), "flags": [flag.to_row() for flag in self.flags]}


class Inspection:
    """An inspection of a system, whose outputs are output_2, and of its judge, a judgement at a time.

    Of more than `most` outputs a random sample of that size is held. An output counts once, however many labels it has,
    and not at all if it is lost for being absent.
    """

    def __init__(self, most: int) -> None:
        self.most, self.tally, self.draw = most, JudgeTally(), random.Random(0)
        self.texts: list[tuple[Instruction, str, str]] = []
        self.judges: set[tuple[str, str, str, str]] = set()
        self.met: set[int] = set()
        self.answered = self.empty = self.characters = 0

    def add(self, row: JudgedPair, shown: Mapping[str, float] | None = None) -> None:
        self.tally.add(row, shown)
        pair = row.pair
        if row.preference.source == "judge" and not pair.identical:
            self.judges.add((row.preference.judge, row.annotator, pair.generator_1, pair.generator_2))
        output = hash((pair.instruction, pair.output_2))
        if row.unanswered or output in self.met:
            return
        self.met.add(output)
        self.answered += 1
        self.characters += len(pair.output_2)
        self.empty += not pair.output_2.strip()
        if len(self.texts) < self.most:
            self.texts.append((pair.instruction, pair.output_2, pair.output_1))
        elif (place := self.draw.randrange(self.answered)) < self.most:  # each row is kept with the same chance
            self.texts[place] = (pair.instruction, pair.output_2, pair.output_1)

    def result(self) -> RedFlags:
        """A text that most outputs of the reference, output_1, share as well is the task's doing."""
        flags = self.tally.flags() + text_flags([text[:2] for text in self.texts], [text[2] for text in self.texts])
        flags += [Flag("empty", self.empty, self.answered)] if self.empty else []
        return RedFlags(tuple(flags), **self.tally.biases())


def inspect_outputs(
    judgements: Iterable[JudgedPair],
    shown: Mapping[str, Mapping[str, float]] | None = None,
    models: Mapping[str, str] | None = None,
) -> RedFlags:
    """Inspect all `judgements` of a system at once, read as they come.

    `shown` is as in `JudgeTally`, by pair; `models` are those behind systems.
    """
    inspection = Inspection(SAMPLED_OUTPUTS)
    for row in judgements:
        inspection.add(row, (shown or {}).get(row.preference.pair_id))
    found = inspection.result()
    return replace(found, flags=(*found.flags, *family_flags(sorted(inspection.judges), models or {})))


# ------------------------------------------------------------------------------------------------------- outputs


def text_flags(rows: Sequence[tuple[Instruction, str]], reference: Sequence[str] = ()) -> list[Flag]:
    """Flags that outputs, each with its instruction, raise by their text.

    A pattern counts from one output in a hundred on (`FEWEST_SHARE`), and two if there are `FEW` or more.
    """
    texts = [output for _, output in rows]
    fewest = max(FEWEST_SHARE * len(texts), 2 if len(texts) >= FEW else 1)
    flags = _constant(texts, reference)
    matches: dict[str, list[Match]] = {}
    for instruction, output in rows:
        for match in suspicious(output, instruction):
            matches.setdefault(match.flag, []).append(match)
    for name, listed in matches.items():
        if len(listed) >= fewest:
            counts = Counter(match.pattern for match in listed).most_common(NAMED_PATTERNS)
            detail = ", ".join(pattern if n == len(listed) else f"{n} {pattern}" for pattern, n in counts)
            flags.append(Flag(name, len(listed), len(texts), listed[0].quote, detail))
    return flags


def suspicious(output: str, instruction: Instruction) -> list[Match]:
    """The first match of each flag in one output, without phrases of its instruction or input."""
    reading = NormalForm.of(output)
    asked: list[NormalForm] = []
    matches = []
    for flag, listed in patterns().items():
        for pattern in listed:
            if any(group.isdisjoint(reading.words) for group in pattern.words):
                continue
            if (place := pattern.search(reading, unopened=pattern.unopened)) is not None:
                asked = asked or [NormalForm.of(text) for text in (instruction.instruction, instruction.input)]
                if all(pattern.search(text) is None for text in asked):
                    text = getattr(reading, pattern.reading)
                    quoted = output if len(output) == len(text) else text
                    matches.append(Match(flag, pattern.name, excerpt(quoted, place)))
                    break
    mark = find_thoughts(output)
    if mark and mark not in instruction.instruction + instruction.input:
        flag = "thoughts" if cut_thoughts(output) else "no_answer"
        matches.append(Match(flag, mark, excerpt(output, output.index(mark))))
    return matches


LOOK_ALIKES = str.maketrans(
    "аеорсухіјѕԁһкмтАВЕКМНОРСТХІЈЅУοανρτικΑΒΕΖΗΙΚΜΝΟΡΤΥΧɑɡıвнβεζημυ",
    "aeopcyxijsdhkmtABEKMHOPCTXIJSYoavptikABEZHIKMNOPTYXagibhbezhmy",
)
"""Cyrillic, Greek and other letters that look like Latin ones, and the small letters of those that do as capitals."""
INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\U000e0000-\U000e007f]"
)
"""Characters that take no room: joiners, marks of direction, variants, tags."""


_RARE = re.compile("[^\0-\u036f\u2010-\u2027\u2030-\u205e\u20a0-\u25ff\u3000-\u3002\U0001f000-\U0001faff]")
"""Letters of other scripts, invisible ones, stars: a text with one has the word RARE."""
_GAPS = re.compile(" [A-Za-z] [A-Za-z] ")
_APART = re.compile(r"\b(?:[A-Za-z] ){3,}[A-Za-z]\b")
_WITH_DIGITS = re.compile(r"\b(?=[0-9]*[A-Za-z])[A-Za-z]*[013457][A-Za-z013457]+\b")
_DIGITS_AS_LETTERS = str.maketrans("013457", "oieast")


@dataclass(frozen=True, slots=True)
class NormalForm:
    """The normal form of a text.

    It is the text as it stands, as a reader sees it, and that in lower case, with its words and their first letters. A
    reader sees no invisible characters or accents, and look-alikes, gaps between letters and digits as letters.
    """

    raw: str
    folded: str
    plain: str
    words: set[str]

    @classmethod
    def of(cls, text: str) -> NormalForm:
        folded = fold(text)
        words = set(_WORD.findall(folded.lower()))
        if _GAPS.search(folded) or not all(word.isalpha() or word.isdigit() for word in words):
            folded = _APART.sub(lambda letters: letters[0].replace(" ", ""), folded)
            folded = _WITH_DIGITS.sub(lambda word: word[0].translate(_DIGITS_AS_LETTERS), folded)
            words = set(_WORD.findall(folded.lower()))
        words |= {f"{word[:4]}*" for word in words}
        if not text.isascii() and _RARE.search(text):
            words.add("RARE")
        return cls(text, folded, folded.lower(), words)


def fold(text: str) -> str:
    """Undo look-alikes, and remove invisible characters and accents."""
    for quote, plain in (("’", "'"), ("‘", "'"), ("“", '"'), ("”", '"')):
        text = text.replace(quote, plain)
    if text.isascii():
        return text
    letters = unicodedata.normalize("NFKD", INVISIBLE.sub("", text))
    text = "".join(letter for letter in letters if not unicodedata.combining(letter)).translate(LOOK_ALIKES)
    return unicodedata.normalize("NFC", text)  # Korean syllables are whole again


def _constant(texts: Sequence[str], reference: Sequence[str]) -> list[Flag]:
    """Flags for outputs that say nearly the same, or begin or end with the same words."""
    alike = near_constant(texts)
    if len(alike) > MOST * len(texts):
        if len(near_constant(reference)) > MOST * len(reference):
            return []
        detail = f"nearly the same text answers {len(alike)} of {len(texts)} instructions"
        return [Flag("constant", len(alike), len(texts), excerpt(texts[alike[0]]), detail)]
    flags = []
    for at_the_end, verb in ((False, "open"), (True, "end")):
        count, edge = shared_edge(texts, at_the_end=at_the_end)
        of_reference = shared_edge(reference, at_the_end=at_the_end)[1]
        core = slice(-SHORT_EDGE, None) if at_the_end else slice(SHORT_EDGE)
        if count and edge[core] != of_reference[core]:
            detail = f"the same words {verb} {count} of {len(texts)} outputs"
            flags.append(Flag("constant", count, len(texts), excerpt(edge), detail))
    return flags


def shared_edge(texts: Sequence[str], *, at_the_end: bool) -> tuple[int, str]:
    """Count the texts that begin (or end) alike, and return their common characters; (0, "") if few do."""
    if len(texts) < FEWEST_OUTPUTS:
        return 0, ""
    edges = [" ".join(text.split()) for text in texts]
    edges = [text[::-1] for text in edges] if at_the_end else edges
    for length, share in ((LONG_EDGE, MOST), (SHORT_EDGE, 0.95)):
        counts = Counter(text[:length] for text in edges if len(text) > length)
        edge, count = counts.most_common(1)[0] if counts else ("", 0)
        if count > share * len(texts):
            sharing = [text for text in edges if text.startswith(edge)]
            extremes = zip(min(sharing), max(sharing), strict=False)  # what these two share, all do
            shared = "".join(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], extremes))
            return count, shared[::-1] if at_the_end else shared
    return 0, ""


def near_constant(texts: Sequence[str]) -> list[int]:
    """Indices of `texts` that share four fifths of their five-word runs with most; none if they are few."""
    if len(texts) < FEWEST_OUTPUTS:
        return []
    shingles = []
    for text in texts:
        words = text.casefold().split()
        starts = range(max(1, len(words) - SHINGLE + 1)) if words else ()
        shingles.append({hash(tuple(words[i : i + SHINGLE])) for i in starts})
    spread = Counter(shingle for of_text in shingles for shingle in of_text)
    frequent = {shingle for shingle, count in spread.items() if count > MOST * len(texts)}
    return [i for i, of_text in enumerate(shingles) if of_text and len(of_text & frequent) >= ALIKE * len(of_text)]


def excerpt(text: str, start: int = 0) -> str:
    """Quote `text` from `start` on, on one line, cut short."""
    return one_line(text[start : start + 4 * EXCERPT], EXCERPT)


# ---------------------------------------------------------------------------------------------------- stored red flags


def flag_sentences(row: Any) -> list[str]:
    """The sentences of stored red flags (`RedFlags.to_row`); none of anything else."""
    flags = row.get("flags") if isinstance(row, Mapping) else None
    return [str(flag["says"]) for flag in flags or () if isinstance(flag, Mapping) and flag.get("says")]


def judge_bias(row: Any) -> str:
    """The judge's biases in stored red flags, and over how many pairs; "" if unknown."""
    kinds = {
        "prefers_longer": f"the longer output {{}} times (lengths differ by more than {SIGNIFICANT_LENGTH} characters)",
        "prefers_lists": "the one with a list {} times (only one has a list)",
        "prefers_first_shown": "the one shown first {} times (mean of both orders)",
        "turned_by_order": "the other output in the other order {} times",
    }
    estimates = {kind: row.get(kind) for kind in kinds} if isinstance(row, Mapping) else {}
    shares = [
        kinds[kind].format(f"{100 * estimate['value']:.0f} % of {estimate['n']}")
        for kind, estimate in estimates.items()
        if isinstance(estimate, Mapping) and estimate.get("n")
    ]
    return f"chose {', '.join(shares)}" if shares else ""


def red_flag_lines(row: Any) -> list[tuple[str, str]]:
    """Stored red flags as (subject, sentence)s: "flag" for each flag, "judge" for the judge's bias."""
    lines = [("flag", sentence) for sentence in flag_sentences(row)]
    return lines + ([("judge", judge_bias(row))] if judge_bias(row) else [])
