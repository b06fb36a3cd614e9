"""Requests in instructions: the verb that says what to do, and its direct object.

By spaCy's parser where it is installed, else by rules that know no grammar but an imperative's. A text is read sentence
by sentence up to the first that asks: by an imperative ("Write a poem", "Given a list, sort it"), which may be wrapped
("Can you give me …", "I want you to …"), or by a question.

The rules take a sentence's first word, or the first behind a comma of a leading clause, for its verb if it is one that
they know. The object is the last word before a preposition, a conjunction, a clause, a participle or a mark. They know
no parts of speech, so an adjective that stands alone, say, misleads them.

Source: Wang et al. 2023 (Self-Instruct), figure 2, for the question; theirs is the Berkeley Neural Parser.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from itertools import dropwhile, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from afarm import PluginError

TASK, QUESTION, OTHER = "task", "question", "other"

MODEL = "en_core_web_sm"

WORDS: Mapping[str, frozenset[str]] = {
    name: frozenset(listed.split())
    for name, listed in yaml.safe_load(Path(__file__).with_name("imperatives.yaml").read_text("utf-8")).items()
}
"""The words that the rules know, by what they are."""

LEAD = re.compile(
    r"""(?:hi|hello|hey|so|then|now|next|first|please|kindly|and|also|just|try\ to)\b[\s,!]*
    |(?:can|could|will|would)\ you\b\s*
    |(?:i|we)(?:\ want|\ need|\ would\ like|'d\ like|’d\ like)\ you\ to\b\s*
    |you(?:\ need|\ have|\ are\ asked|\ will\ be\ asked)\ to\b\s*
    |you(?:\ should|\ must)\b\s*
    |your\ (?:task|job|goal)\ is\ to\b\s*
    |(?:let\ us|let's|let’s)\b\s*""",
    re.IGNORECASE | re.VERBOSE,
)
"""The words that wrap an imperative."""

SENTENCE_END = re.compile(r"(?<=[.!?])[\"'”’)]*\s+|\n+")
MARKS = " \t\"'“”‘’*-"
ASIDE = re.compile(r"\([^)]*\)")
WORD = re.compile(r"[^\W_]+(?:['’.+#-][^\W_]+)*[+#]*|[^\w\s]")


class Reading(NamedTuple):
    """The reading of an instruction: its kind, and of a task the verb and the object, empty without one."""

    kind: str
    verb: str = ""
    object: str = ""


Parse = Callable[[str], tuple[str, str] | None]
"""Returns the verb and the object of an imperative sentence; None for any other."""


def reader(tagger: str) -> tuple[str, Callable[[str], Reading]]:
    """Return the name of what finds verbs, and a function that reads a text by it.

    `tagger` is "spacy", "rules", or "auto" for the first there is. Raises `PluginError` if spaCy is asked for and not
    there.
    """
    there = find_spec("spacy") is not None and find_spec(MODEL) is not None
    if tagger == "spacy" and not there:
        raise PluginError(f"spaCy or its model is not there: pip install spacy && python -m spacy download {MODEL}")
    if tagger == "rules" or not there:
        return "rules", lambda text: read_request(text, parse_by_rules)
    model = import_module("spacy").load(MODEL)
    return f"spaCy's {MODEL}", lambda text: read_request(text, lambda sentence: parse_tree(model(sentence)))


def read_request(text: str, parse: Parse) -> Reading:
    """Read the first request of a text."""
    for sentence in SENTENCE_END.split(ASIDE.sub(" ", text)):
        plain, ends_in_mark = sentence.strip(MARKS), sentence.rstrip().endswith("?")
        asked = without_lead(plain)
        first = next(iter(WORD.findall(asked)), "").lower().replace("’", "'")
        if first in WORDS["question"] or (ends_in_mark and asked == plain):
            return Reading(QUESTION)
        if (found := parse(asked)) is not None:
            return Reading(TASK, *found)
        if ends_in_mark:
            return Reading(QUESTION)
    return Reading(OTHER)


def without_lead(sentence: str) -> str:
    """Return a sentence without the words that wrap an imperative."""
    while (found := LEAD.match(sentence)) and found.end():
        sentence = sentence[found.end() :]
    return sentence


# -------------------------------------------------------------------------------------------------------------- rules


def parse_by_rules(sentence: str) -> tuple[str, str] | None:
    """Return the verb and the object of an imperative by rules."""
    words = WORD.findall(sentence)
    words = list(dropwhile(lambda word: word.lower().endswith("ly") and not as_verb(word), words))
    if not words:
        return None
    if verb := as_verb(words[0]):
        return verb, find_object(words[1:])
    if words[0].lower() not in WORDS["clause"]:
        return None
    for part in sentence.split(",")[1:]:  # "Given a list, sort it"
        main = WORD.findall(without_lead(part.strip()))
        if main and (verb := as_verb(main[0])):
            return verb, find_object(main[1:])
    return None


def as_verb(word: str) -> str:
    """Return a word as one of the verbs that are known, however it is spelt; empty if it is none."""
    plain = word.lower().removesuffix(".").replace("-", "")
    spellings = plain, re.sub(r"(is|ys)e$", lambda found: f"{found[1][0]}ze", plain)
    return next((one for one in spellings if one in WORDS["verbs"]), "")


def find_object(words: list[str]) -> str:
    """Return the head noun of the object that these words after a verb begin with; empty without one."""
    following = list(pairwise([*map(str.lower, words), ""]))
    while following:
        word, after = following[0]
        if word in ("and", "or") and as_verb(after):  # "Name and explain three effects"
            following = following[2:]
        elif word in WORDS["particle"] or (word in WORDS["pronoun"] and not as_verb(after)):
            following = following[1:]
        else:
            break
    head = ""
    for word, after in following:
        if ends_object(word) or (head and begins_clause(word, after)):
            break
        is_beside = word in WORDS["beside"] or word[0].isdigit() or re.search(r"['’]s?$", word) or word.endswith("ly")
        head = head if is_beside else word
    return singular(head)


def ends_object(word: str) -> bool:
    """Say if no object goes on with this word."""
    return word in WORDS["stop"] or not word[0].isalnum() or (word in WORDS["pronoun"] and word not in WORDS["beside"])


def begins_clause(word: str, after: str) -> bool:
    """Say if a participle behind a noun begins a clause: "a tweet summarizing …", "the text given above"."""
    if word.endswith("ing"):
        return word not in WORDS["noun_in_ing"]
    is_participle = word.endswith("ed") or word in WORDS["participle"]
    return is_participle and (after in WORDS["stop"] or not after[:1].isalpha())


def singular(noun: str) -> str:
    """Return a noun in the singular, by its ending."""
    if len(noun) > 4 and noun.endswith("ies"):
        return f"{noun[:-3]}y"
    if re.search(r"(ss|x|ch|sh|zz)es$", noun):
        return noun[:-2]
    return noun[:-1] if len(noun) > 3 and re.search(r"[^siu]s$", noun) else noun


# --------------------------------------------------------------------------------------------------------------- trees


def parse_tree(tree: Any) -> tuple[str, str] | None:
    """Return the verb and the object of spaCy's parse of an imperative: a root without a subject."""
    for root in (sentence.root for sentence in tree.sents):
        parts = {child.dep_: child for child in reversed(list(root.children))}
        if root.pos_ == "VERB" and not {"nsubj", "nsubjpass"} & parts.keys():
            found = parts.get("dobj", parts.get("obj"))
            return root.lemma_.lower(), found.lemma_.lower() if found and found.pos_ in ("NOUN", "PROPN") else ""
    return None
