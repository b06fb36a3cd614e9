"""Red flags on a win rate: outputs that game the judge (constant, injected) and judge biases.

    found = inspect_outputs(judgements)
    found.flags, found.prefers_longer, found.prefers_lists

All of it is pure, over outputs and judgements. A flag names what is suspicious and quotes one place; it changes no
figure. Constant outputs and outputs that talk to the judge are those that Zheng et al. 2024 ("Cheating Automatic LLM
Benchmarks", arXiv 2410.07137) won AlpacaEval with; the judge's bias for length and lists is measured as
`afarm.analysis.agreement` does.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from typing import Any

import yaml

from afarm.core.records import Instruction, JudgedPair, Row
from afarm.evaluation.biases import family_of, family_of_judge, longer, with_list
from afarm.evaluation.metrics import Estimate, clustered_mean
from afarm.storage.text import one_line

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
GLANCE = 16
"""Outputs that tell if it is worth comparing the others."""
EXCERPT = 120
"""Characters of an output that a flag quotes."""

_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Pattern:
    """A way of gaming the judge: text that matches `regex`.

    Texts that lack a word of one of `words` are not searched, which spares most of them the search.
    """

    name: str
    words: tuple[frozenset[str], ...]
    regex: re.Pattern[str]


@cache
def patterns() -> Mapping[str, tuple[Pattern, ...]]:
    """The patterns of `patterns.yaml`, by the name of the flag that a match raises."""
    text = resources.files("afarm.evaluation").joinpath("patterns.yaml").read_text(encoding="utf-8")
    listed = yaml.safe_load(text)
    alternatives: Mapping[str, Sequence[str]] = listed["alternatives"]
    return {
        flag: tuple(_pattern(entry, alternatives) for entry in entries) for flag, entries in listed["patterns"].items()
    }


def _pattern(entry: Mapping[str, Any], alternatives: Mapping[str, Sequence[str]]) -> Pattern:
    regex = entry["pattern"]
    for name, choices in alternatives.items():
        regex = regex.replace(f"<{name}>", f"(?:{'|'.join(choices)})")
    first_words = {name: [choice.split()[0] for choice in choices] for name, choices in alternatives.items()}
    words = (
        frozenset(word for listed in group for word in first_words.get(listed, [listed]))
        for group in entry.get("words", ())
    )
    flags = re.RegexFlag(0) if entry.get("case_sensitive") else re.IGNORECASE
    flags |= re.MULTILINE if entry.get("multiline") else 0
    return Pattern(entry["name"], tuple(words), re.compile(regex, flags))


SAYS: Mapping[str, str] = {
    "constant": "nearly the same text answers {count} of {of} instructions",
    "addresses_judge": "{count} of {of} outputs talk to the judge",
    "answer_format": "{count} of {of} outputs quote the format of a judge's prompt or verdict",
    "empty": "{count} of {of} outputs are empty",
    "own_family": "the judge grades its own family: {example}",
}
"""The flags there are, with the sentence of each."""


@dataclass(frozen=True, slots=True)
class Flag:
    """Something suspicious in `count` of `of` outputs, such as `example`."""

    name: str
    count: int
    of: int
    example: str = ""

    @property
    def sentence(self) -> str:
        said = SAYS.get(self.name, self.name).format(count=self.count, of=self.of, example=self.example)
        return said if not self.example or self.name == "own_family" else f"{said}, such as {self.example!r}"


@dataclass(frozen=True, slots=True)
class RedFlags:
    """The flags that a system's outputs raise, and the judge's biases.

    `prefers_longer` is the share for the longer of the judge's choices between outputs of different length,
    `prefers_lists` the share for the list of its choices between one with a list and one without.
    """

    flags: tuple[Flag, ...] = ()
    prefers_longer: Estimate | None = None
    prefers_lists: Estimate | None = None

    def to_row(self) -> Row:
        row = asdict(self)
        return {**row, "flags": [{**asdict(flag), "says": flag.sentence} for flag in self.flags]}


def inspect_outputs(judgements: Iterable[JudgedPair], models: Mapping[str, str] | None = None) -> RedFlags:
    """Inspect the system whose outputs are output_2 of `judgements`, and their judge.

    A text that most outputs of the reference, output_1, share as well is the task's doing. `models` names the model
    behind a system whose name does not tell its family. Rows that count as lost without an output are skipped. The
    judgements are read once; of more than `SAMPLED_OUTPUTS` outputs a random sample of that size is held and inspected.
    """
    texts: list[tuple[Instruction, str, str]] = []
    choices: list[tuple[str, int, int | None, int | None]] = []
    judges: set[tuple[str, str, str, str]] = set()
    draw = random.Random(0)
    rows = empty = 0
    for row in judgements:
        if row.unanswered:
            continue
        pair, rows = row.pair, rows + 1
        empty += not pair.output_2.strip()
        if len(texts) < SAMPLED_OUTPUTS:
            texts.append((pair.instruction, pair.output_2, pair.output_1))
        elif (place := draw.randrange(rows)) < SAMPLED_OUTPUTS:  # each row is kept with the same chance
            texts[place] = (pair.instruction, pair.output_2, pair.output_1)
        if row.preference.source == "judge" and not pair.identical:
            judges.add((row.preference.judge, row.annotator, pair.generator_1, pair.generator_2))
            if row.p2 is not None and row.p2 != 0.5:
                outputs = pair.output_1, pair.output_2
                choices.append(
                    (row.preference.pair_id, 2 if row.p2 > 0.5 else 1, longer(*outputs), with_list(*outputs))
                )
    flags = text_flags([text[:2] for text in texts], [reference for _, _, reference in texts])
    flags += [Flag("empty", empty, rows)] if empty else []
    flags += family_flags(sorted(judges), models or {})
    biases = (
        clustered_mean(
            (pair_id, float(choice == features[kind]))
            for pair_id, choice, *features in choices
            if features[kind] is not None
        )
        for kind in (0, 1)
    )
    return RedFlags(tuple(flags), *biases)


# ------------------------------------------------------------------------------------------------------- outputs


def text_flags(rows: Sequence[tuple[Instruction, str]], reference: Sequence[str] = ()) -> list[Flag]:
    """Flags that outputs, each with its instruction, raise by their text."""
    texts = [output for _, output in rows]
    flags = []
    alike = near_constant(texts)
    if len(alike) > MOST * len(texts) and not len(near_constant(reference)) > MOST * len(reference):
        flags.append(Flag("constant", len(alike), len(texts), excerpt(texts[alike[0]])))
    hits: dict[str, list[str]] = {flag: [] for flag in patterns()}
    for instruction, output in rows:
        for flag, quote in suspicious(output, instruction):
            hits[flag].append(quote)
    flags += [Flag(name, len(quotes), len(texts), quotes[0]) for name, quotes in hits.items() if quotes]
    return flags


def suspicious(output: str, instruction: Instruction) -> list[tuple[str, str]]:
    """(flag, excerpt)s of one output that talks to the judge or quotes its format.

    A phrase that stands in the instruction or its input as well was asked for.
    """
    words = {*_WORD.findall(output.casefold())}
    found = []
    for flag, listed in patterns().items():
        for pattern in listed:
            if any(group.isdisjoint(words) for group in pattern.words):
                continue
            match = pattern.regex.search(output)
            if match and not any(pattern.regex.search(text) for text in (instruction.instruction, instruction.input)):
                found.append((flag, excerpt(output, match.start())))
                break
    return found


def near_constant(texts: Sequence[str]) -> list[int]:
    """Indices of the `texts` of which four fifths are common to most; none if there are too few.

    Texts are compared by five words in a row, shorter ones as a whole. Linear in their length.
    """
    if len(texts) < FEWEST_OUTPUTS:
        return []
    if len(texts) > 2 * GLANCE:
        # A small random sample rules out most systems; every k-th row could follow a pattern.
        sample = random.Random(0).sample(range(len(texts)), GLANCE)
        if len(_alike([texts[i] for i in sample], MOST / 2)) < GLANCE * MOST / 2:
            return []
    return _alike(texts, MOST)


def _alike(texts: Sequence[str], most: float) -> list[int]:
    """Indices of the `texts` of which four fifths are common to more than a share `most` of them."""
    shingles = [_shingles(text) for text in texts]
    spread = Counter(shingle for of_text in shingles for shingle in of_text)
    frequent = {shingle for shingle, count in spread.items() if count > most * len(texts)}
    return [i for i, of_text in enumerate(shingles) if of_text and len(of_text & frequent) >= ALIKE * len(of_text)]


def _shingles(text: str) -> set[int]:
    """Hashes of each `SHINGLE` words in a row, comparable within one process only."""
    words = text.casefold().split()
    if not words:
        return set()
    return {hash(tuple(words[i : i + SHINGLE])) for i in range(max(1, len(words) - SHINGLE + 1))}


def excerpt(text: str, start: int = 0) -> str:
    """Quote `text` from `start` on, on one line, cut short."""
    return one_line(text[start : start + 4 * EXCERPT], EXCERPT)


# -------------------------------------------------------------------------------------------------------- families


def family_flags(judged: Iterable[tuple[str, str, str, str]], models: Mapping[str, str]) -> list[Flag]:
    """A flag for each judge that compares models of its own family.

    `judged` are (judge's identity, annotator, reference's name, system's name), each once.
    """
    sentences: dict[str, None] = {}
    for judge, annotator, *generators in judged:
        named = judge and not judge.startswith("replay:")  # stored answers are those of the annotator's model
        family = family_of_judge(judge, {}) if named else family_of(annotator.replace("alpaca_eval", ""), {})
        if family is None:
            continue
        for generator in generators:
            if (family_of(generator, {}) or family_of(models.get(generator, ""), {})) == family:
                sentences[f"{judge or annotator} judges {generator} ({family})"] = None
    return [Flag("own_family", 1, 1, sentence) for sentence in sentences]


# ---------------------------------------------------------------------------------------------------- stored red flags


def flag_sentences(row: Any) -> list[str]:
    """The sentences of stored red flags (`RedFlags.to_row`); none of anything else."""
    flags = row.get("flags") if isinstance(row, Mapping) else None
    return [str(flag["says"]) for flag in flags or () if isinstance(flag, Mapping) and flag.get("says")]


def judge_bias(row: Any) -> str:
    """The judge's bias for length and lists as stored red flags have it; empty if nothing is known."""
    kinds = {"prefers_longer": "the longer output", "prefers_lists": "the one with a list"}
    estimates = {name: row.get(kind) for kind, name in kinds.items()} if isinstance(row, Mapping) else {}
    shares = [
        f"{name} {100 * estimate['value']:.0f} % of {estimate['n']} times"
        for name, estimate in estimates.items()
        if isinstance(estimate, Mapping) and estimate.get("n")
    ]
    return f"chose {', '.join(shares)}" if shares else ""


def red_flag_lines(row: Any) -> list[tuple[str, str]]:
    """Stored red flags as (subject, sentence)s: "flag" for each flag, "judge" for the judge's bias."""
    lines = [("flag", sentence) for sentence in flag_sentences(row)]
    return lines + ([("judge", judge_bias(row))] if judge_bias(row) else [])
