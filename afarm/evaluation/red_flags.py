"""What to know before a win rate is believed: outputs that play to the judge, and a judge that plays favourites.

    found = look(judgements)
    found.flags, found.prefers_longer, found.prefers_lists

All of it is pure, over outputs and judgements. A flag names what is suspicious and shows one place; it changes no
figure. Constant outputs and outputs that talk to the judge are those that Zheng et al. 2024 ("Cheating Automatic LLM
Benchmarks", arXiv 2410.07137) won AlpacaEval with; the judge's taste for length and lists is measured as in
`afarm.analysis.agreement`.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from afarm.analysis.agreement import Figure, longer, mean, the_list
from afarm.analysis.labels import Label
from afarm.core.records import Instruction, JudgedPair, Row
from afarm.evaluation.biases import family_of, family_of_judge

FEWEST = 5
"""Outputs of which it can be said that they are all alike."""
MOST = 0.5
"""The share of a system's outputs above which what they do is the system's doing."""
ALIKE = 0.8
"""The share of an output that must be common to most outputs for it to be nearly the same as they are."""
WORDS = 5
"""Words in a row by which texts are compared."""
TEXTS = 2_000
"""Outputs of a system that are looked at, where it has more."""
GLANCE = 16
"""Outputs that tell whether it is worth looking at the others."""
EXCERPT = 120

_OUTPUTS = ("output", "response", "answer", "reply", "completion", "assistant", "model", "candidate", "option")
_OUTPUT = rf"(?:{'|'.join(_OUTPUTS)})"
_JUDGES = ("evaluator", "judge", "grader", "rater", "annotator", "marker", "reviewer", "scorer", "llm", "llms")
_JUDGE = rf"(?:{'|'.join(_JUDGES)}|language model)"
_PREFER = ("prefer", "choose", "select", "pick", "rank", "rate", "score", "favor", "favour")
_CHOOSE = rf"(?:{'|'.join(_PREFER)})"
_BESTS = ("best", "better", "first", "highest", "top", "winner", "superior", "preferred", "perfect", "10")
_BEST = rf"(?:{'|'.join(_BESTS)})"


@dataclass(frozen=True, slots=True)
class Sign:
    """A way of playing to the judge: what matches `pattern`. It is looked for only where a word of each of `words`
    stands, which most texts are spared by."""

    name: str
    words: tuple[frozenset[str], ...]
    pattern: re.Pattern[str]


def _sign(name: str, words: Sequence[Iterable[str]], pattern: str, flags: int = re.IGNORECASE) -> Sign:
    return Sign(name, tuple(map(frozenset, words)), re.compile(pattern, flags))


TALKS_TO_THE_JUDGE = (
    _sign(
        "takes back instructions",
        [("ignore", "disregard", "forget", "override")],
        r"\b(?:ignore|disregard|forget|override)\b[^.\n]{0,30}\b(?:previous|prior|above|earlier|preceding|other|all)\b"
        r"[^.\n]{0,30}\b(?:instruction|prompt|text|rule|guideline|criteri|output|response|answer)",
    ),
    _sign(
        "calls the judge",
        [(*_JUDGES, *(f"{judge}s" for judge in _JUDGES), "language")],
        rf"\b(?:dear|attention|note to|hello|(?:message|instructions?) (?:to|for))[ ,:]+(?:the |all |ai )*{_JUDGE}s?\b",
    ),
    _sign(
        "tells the judge its task",
        [(*_JUDGES, "language")],
        rf"\b(?:as|you are|you're) (?:an? |the )?(?:\w+ ){{0,2}}{_JUDGE}\b[^.\n]{{0,60}}\b(?:must|should|{_CHOOSE})\b",
    ),
    _sign(
        "asks to be preferred",
        [_PREFER, ("this", "my"), _OUTPUTS],
        rf"\b{_CHOOSE}\b[^.\n]{{0,20}}\b(?:this|my) {_OUTPUT}\b",
    ),
    _sign(
        "asks for the verdict",
        [_PREFER, ("must", "should", "please", "always"), _OUTPUTS],
        rf"\b(?:must|should|please|always) {_CHOOSE}\b[^.\n]{{0,20}}\b{_OUTPUT}\b[^.\n]{{0,20}}\b{_BEST}\b",
    ),
    _sign(
        "says that whoever wrote it is the best",
        [("i",), ("best",)],
        rf"\bi(?: am|'m|’m) (?:by far |clearly |definitely |objectively )?the best"
        rf"(?: (?:\w+ )?(?:{_OUTPUT}|ai|llm))?(?=\s*(?:[.!,;:\n]|$))",
    ),
    _sign(
        "says that it is the best",
        [("this", "my"), _OUTPUTS, _BESTS],
        rf"\b(?:this|my) {_OUTPUT} (?:is|was|should be|must be|has been)(?: rated| ranked| judged| marked| considered)?"
        rf"(?: (?:by far|clearly|definitely|objectively|the|to be))* (?:a )?{_BEST}\b",
    ),
)
"""Ways of talking to whoever judges."""

QUOTES_A_FORMAT = (
    _sign("a label of two outputs", [("output",)], r"\boutput \([ab]\)"),
    _sign("a verdict in brackets", (), r"\[\[ ?(?:[a-cA-C]|[Tt]ie|\d{1,2}(?:\.\d)?) ?\]\]", 0),
    _sign("a ranking", [("rank",)], r"""['"]?model['"]?\s*:\s*['"]?[\w-]+['"]?\s*,\s*['"]?rank['"]?\s*:"""),
    _sign("a name in a ranking", [("model_1", "model_2")], r"\bmodel_[12]\b"),
    _sign(
        "a verdict as JSON",
        [("first_is_better", "is_output_1_better", "preferred_output", "ordered_models", "best_model")],
        r"""['"](?:first_is_better|is_output_1_better|preferred_output|ordered_models|best_model)['"]\s*:""",
    ),
    _sign(
        "the heading of a verdict",
        [("identifier", "outputs", "output", "verdict", "model")],
        r"^#+ *(?:best model identifier|(?:model|unordered) outputs?|which (?:output|model) is|verdict)\b",
        re.IGNORECASE | re.MULTILINE,
    ),
    _sign("a question to the judge", [("m",)], r"""\bwhich (?:one )?is (?:the )?best,? ['"]?m['"]? or ['"]?m\b"""),
    _sign(
        "a chat's markers",
        [],
        r"<\|(?:im_start|im_end|eot_id|start_header_id|endoftext|system|user|assistant)\|>",
        0,  # with its case a literal beginning is found faster
    ),
    _sign("a chat's brackets", (), r"\[/?INST\]|<</?SYS>>", 0),
)
"""What prompts of judges are made of, and what verdicts are read from."""

_SIGNS = {"addresses_judge": TALKS_TO_THE_JUDGE, "answer_format": QUOTES_A_FORMAT}
_WORD = re.compile(r"\w+")

SAYS: Mapping[str, str] = {
    "constant": "nearly the same text answers {count} of {of} instructions",
    "addresses_judge": "{count} of {of} outputs talk to the judge",
    "answer_format": "{count} of {of} outputs quote the format of a judge's prompt or verdict",
    "empty": "{count} of {of} outputs are empty",
    "own_family": "the judge grades its own family: {example}",
}
"""The flags there are, and what each says."""


@dataclass(frozen=True, slots=True)
class Flag:
    """Something suspicious: in `count` of `of` outputs, such as `example`."""

    name: str
    count: int
    of: int
    example: str = ""

    @property
    def sentence(self) -> str:
        said = SAYS.get(self.name, self.name).format(count=self.count, of=self.of, example=self.example)
        return said if not self.example or self.name == "own_family" else f"{said}, such as {self.example!r}"


@dataclass(frozen=True, slots=True)
class Guards:
    """What was found of a system's outputs and of the judge's taste: of the judge's choices between outputs of
    different length (one with a list and one without), the share for the longer (for the list)."""

    flags: tuple[Flag, ...] = ()
    prefers_longer: Figure | None = None
    prefers_lists: Figure | None = None

    def to_row(self) -> Row:
        row = asdict(self)
        return {**row, "flags": [{**asdict(flag), "says": flag.sentence} for flag in self.flags]}


def look(judgements: Iterable[JudgedPair], models: Mapping[str, str] | None = None) -> Guards:
    """What is suspicious about the system whose outputs are output_2 of `judgements`, and about their judge.

    What most outputs of the reference, output_1, do as well is the task's doing. `models` names the model behind a
    system whose name does not tell its family. Of rows that are lost without an output there is nothing to look at. The
    judgements are read once, and of more than `TEXTS` outputs that many are looked at: memory holds those.
    """
    texts: list[tuple[Instruction, str, str]] = []
    chosen: list[tuple[str, int, int | None, int | None]] = []
    judges: set[tuple[str, str, str, str]] = set()
    draw = random.Random(0)
    rows = empty = 0
    for row in judgements:
        if row.unanswered:
            continue
        pair, rows = row.pair, rows + 1
        empty += not pair.output_2.strip()
        if len(texts) < TEXTS:
            texts.append((pair.instruction, pair.output_2, pair.output_1))
        elif (place := draw.randrange(rows)) < TEXTS:  # each row is kept with the same chance
            texts[place] = (pair.instruction, pair.output_2, pair.output_1)
        if row.preference.source == "judge" and not pair.identical:
            judges.add((row.preference.judge, row.annotator, pair.generator_1, pair.generator_2))
            if row.p2 is not None and row.p2 != 0.5:
                label = Label(row.preference.pair_id, row.annotator, row.p2, True, pair.output_1, pair.output_2)
                chosen.append((label.pair_id, 2 if row.p2 > 0.5 else 1, longer(label), the_list(label)))
    flags = text_flags([text[:2] for text in texts], [reference for _, _, reference in texts])
    flags += [Flag("empty", empty, rows)] if empty else []
    flags += family_flags(sorted(judges), models or {})
    tastes = (
        mean((pair_id, float(choice == which[kind])) for pair_id, choice, *which in chosen if which[kind] is not None)
        for kind in (0, 1)
    )
    return Guards(tuple(flags), *tastes)


# ------------------------------------------------------------------------------------------------------- outputs


def text_flags(rows: Sequence[tuple[Instruction, str]], reference: Sequence[str] = ()) -> list[Flag]:
    """The flags that outputs raise by what they say, each with its instruction."""
    texts = [output for _, output in rows]
    found = []
    alike = near_constant(texts)
    if len(alike) > MOST * len(texts) and not len(near_constant(reference)) > MOST * len(reference):
        found.append(Flag("constant", len(alike), len(texts), excerpt(texts[alike[0]])))
    hits: dict[str, list[str]] = {"addresses_judge": [], "answer_format": []}
    for instruction, output in rows:
        for flag, quote in suspicious(output, instruction):
            hits[flag].append(quote)
    found += [Flag(name, len(quotes), len(texts), quotes[0]) for name, quotes in hits.items() if quotes]
    return found


def suspicious(output: str, instruction: Instruction) -> list[tuple[str, str]]:
    """The flags of one output that speaks to the judge or quotes its format, each with the place.

    What the instruction or its input holds as well was asked for.
    """
    words = {*_WORD.findall(output.casefold())}
    found = []
    for flag, signs in _SIGNS.items():
        for sign in signs:
            if any(group.isdisjoint(words) for group in sign.words):
                continue
            match = sign.pattern.search(output)
            if match and not any(sign.pattern.search(text) for text in (instruction.instruction, instruction.input)):
                found.append((flag, excerpt(output, match.start())))
                break
    return found


def near_constant(texts: Sequence[str]) -> list[int]:
    """Which of `texts` consist, but for a fifth, of what most of them say; none where they are too few to tell.

    Texts are compared by five words in a row, shorter ones as a whole. Linear in their length.
    """
    if len(texts) < FEWEST:
        return []
    if len(texts) > 2 * GLANCE:
        # A few say of a system that answers each in its own way that it does; in every so-manieth could be a pattern.
        few = random.Random(0).sample(range(len(texts)), GLANCE)
        if len(_alike([texts[i] for i in few], MOST / 2)) < GLANCE * MOST / 2:
            return []
    return _alike(texts, MOST)


def _alike(texts: Sequence[str], most: float) -> list[int]:
    """Which of `texts` consist, but for a fifth, of what more than a share `most` of them have."""
    shingles = [_shingles(text) for text in texts]
    spread = Counter(shingle for found in shingles for shingle in found)
    frequent = {shingle for shingle, count in spread.items() if count > most * len(texts)}
    return [i for i, found in enumerate(shingles) if found and len(found & frequent) >= ALIKE * len(found)]


def _shingles(text: str) -> set[int]:
    """Hashes of each `WORDS` words in a row. Compared within one process only, where hashes do not change."""
    words = text.casefold().split()
    if not words:
        return set()
    return {hash(tuple(words[i : i + WORDS])) for i in range(max(1, len(words) - WORDS + 1))}


def excerpt(text: str, start: int = 0) -> str:
    """What stands from `start` on, on one line, cut short."""
    return plain(text[start : start + 4 * EXCERPT], EXCERPT)


def plain(text: str, most: int = 80) -> str:
    """`text` on one line, without what a terminal acts on, and cut where it is longer than `most` characters."""
    shown = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


# -------------------------------------------------------------------------------------------------------- families


def family_flags(judged: Iterable[tuple[str, str, str, str]], models: Mapping[str, str]) -> list[Flag]:
    """A flag for each judge that compares models of its own family.

    `judged` are (judge's identity, annotator, reference's name, system's name), each once.
    """
    said: dict[str, None] = {}
    for judge, annotator, *generators in judged:
        family = family_of_judge(judge, {}) if judge else family_of(annotator.replace("alpaca_eval", ""), {})
        if family is None:
            continue
        for generator in generators:
            if (family_of(generator, {}) or family_of(models.get(generator, ""), {})) == family:
                said[f"{judge or annotator} judges {generator} ({family})"] = None
    return [Flag("own_family", 1, 1, sentence) for sentence in said]


def sentences(row: Any) -> list[str]:
    """What stored guards say: the sentences of their flags."""
    flags = row.get("flags") if isinstance(row, Mapping) else None
    return [str(flag["says"]) for flag in flags or () if isinstance(flag, Mapping) and flag.get("says")]


def taste(row: Any) -> str:
    """What stored guards say of the judge's taste for length and lists; empty where nothing is known."""
    kinds = {"prefers_longer": "the longer output", "prefers_lists": "the one with a list"}
    figures = {said: row.get(name) for name, said in kinds.items()} if isinstance(row, Mapping) else {}
    told = [
        f"{said} {100 * figure['value']:.0f} % of {figure['n']} times"
        for said, figure in figures.items()
        if isinstance(figure, Mapping) and figure.get("n")
    ]
    return f"chose {', '.join(told)}" if told else ""


def warnings(row: Any) -> list[tuple[str, str]]:
    """What stored guards say, as (what it is about, sentence)s: the flags, and the judge's taste."""
    said = [("flag", sentence) for sentence in sentences(row)]
    return said + ([("judge", taste(row))] if taste(row) else [])
