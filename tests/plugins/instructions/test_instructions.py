"""Instructions: readings of sentences, agreement with labels by hand, and shares and distances worked by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from places import SHARED_DATA

from afarm import Bounded, ConfigError, DataError, Findings, Instruction, Output, PluginError, read_placed_rows
from afarm.experiments import discover
from afarm_plugins.instructions.imperatives import Reading, parse_by_rules, parse_tree, read_request, reader
from afarm_plugins.instructions.settings import InstructionsConfig
from afarm_plugins.instructions.study import Instructions, distance

REAL = (
    SHARED_DATA / "alpaca" / "alpaca_5000.json.gz",
    SHARED_DATA / "alpaca_eval" / "outputs.text_davinci_003.json.gz",
)
LABELLED = Path(__file__).with_name("request_labels.json")
"""A hundred instructions of both files by their ids, labelled by hand before the rules had read them."""


def read(text: str) -> Reading:
    return read_request(text, parse_by_rules)


@pytest.mark.parametrize(
    ("text", "verb", "noun"),
    [
        ("Paint the old barn door.", "paint", "door"),
        ("List three birds that cannot fly.", "list", "bird"),
        ("Please write me a short poem about rain", "write", "poem"),
        ("Could you give some examples of irony?", "give", "example"),
        ("I want you to act as a pilot.", "act", ""),
        ("Given a sentence, find its subject.", "find", "subject"),
        ("In the text below, correct all errors", "correct", "error"),
        ("Compare and contrast cities with villages.", "compare", "city"),
        ("Write a letter complaining about noise.", "write", "letter"),
        ("Explain the meaning of life", "explain", "meaning"),
        ("Explain how a lock works.", "explain", ""),
        ("Summarise the story given by the old man", "summarize", "story"),
        ("You read about a storm. Describe its effects.", "describe", "effect"),
        ("Briefly re-phrase Anna's answer (if there is one).", "rephrase", "answer"),
        ('Translate "good night" into French.', "translate", ""),
    ],
)
def test_a_task_has_its_verb_and_object(text: str, verb: str, noun: str) -> None:
    assert read(text) == ("task", verb, noun)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Why is the sky blue?", "question"),
        ("what is tar made of", "question"),
        ("As a captain, what would you say?", "question"),
        ("My cat is ill. How do I help her? Give three ways.", "question"),
        ("The sea is salty.", "other"),
        ("", "other"),
    ],
)
def test_what_is_no_task_is_a_question_or_neither(text: str, kind: str) -> None:
    assert read(text) == (kind, "", "")


@pytest.mark.skipif(not all(path.is_file() for path in REAL), reason=f"no Alpaca or AlpacaEval at {SHARED_DATA}")
def test_the_rules_agree_with_a_person_as_often_as_the_page_says() -> None:
    """The rules were not changed after they had met these labels: the figures hold for other instructions too."""
    rows = [Instruction.from_row(row) for path in REAL for _, row in read_placed_rows(path)]
    text_of = {row.id: row.instruction for row in rows}
    readings = [(read(text_of[id]), tuple(label)) for id, *label in json.loads(LABELLED.read_text())]
    assert sum(found[:2] == label[:2] for found, label in readings) == 92
    assert sum(found == label for found, label in readings) == 90


def test_a_tree_of_spacy_has_root_and_object() -> None:
    tokens = pytest.importorskip("spacy.tokens", reason="no spaCy")
    vocab = pytest.importorskip("spacy.vocab").Vocab()
    words = ["Write", "two", "short", "stories", "."]
    tree = {"heads": [0, 3, 3, 0, 0], "deps": ["ROOT", "nummod", "amod", "dobj", "punct"]}
    lemmas, parts = ["write", "two", "short", "story", "."], ["VERB", "NUM", "ADJ", "NOUN", "PUNCT"]
    assert parse_tree(tokens.Doc(vocab, words, lemmas=lemmas, pos=parts, **tree)) == ("write", "story")
    tree["deps"][3] = "nsubj"
    assert parse_tree(tokens.Doc(vocab, words, lemmas=lemmas, pos=parts, **tree)) is None, "a statement"


def test_spacy_is_asked_for_in_vain_if_it_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("afarm_plugins.instructions.imperatives.MODEL", "no_model_of_this_name")
    assert reader("auto")[0] == "rules"
    with pytest.raises(PluginError, match="python -m spacy download no_model"):
        reader("spacy")


# ----------------------------------------------------------------------------------------------------------- findings


def test_the_distance_of_two_samples_is_half_the_sum_of_differences() -> None:
    # a has 1/2 and 1/4, b 1/2 and 1/4, c 0 and 1/2: (1/4 + 1/4 + 1/2) / 2
    apart, chance = distance(["a", "b"], ["a", "b", "c", "c"])
    assert apart == 50
    assert 0 <= chance.low <= chance.value <= chance.high <= 100
    assert distance(["a"] * 9, ["a"] * 5) == (0, Bounded(0, 0, 0))
    assert distance(["a"] * 40, ["b"] * 40)[0] == 100
    one, other = (["a", "b", "c"] * 100, ["b", "a", "a"] * 100)
    apart, chance = distance(one, other)
    assert apart == pytest.approx(100 / 3)
    assert apart > 2 * chance.high, "which no draw from both together reaches"


def table(found: Findings, name: str) -> list[dict[str, Any]]:
    [one] = [table for table in found.tables if table.name == name]
    return [dict(zip(one.columns, row, strict=True)) for row in one.rows]


def analysed(rows: Mapping[str, Sequence[Output]], **settings: Any) -> Findings:
    """The findings of a data set of these splits."""

    def load(split: str) -> Sequence[Output]:
        if split not in rows:
            raise DataError(f"no split {split!r}")
        return rows[split]

    study = Instructions(InstructionsConfig(tagger="rules", **settings))
    study.read(load)
    return study.analyse([])


TRAIN = [
    Output(Instruction("Write a poem.", "about a b"), "one two"),
    Output(Instruction("Write a long story."), "one two three four"),
    Output(Instruction("List rivers"), ""),
    Output(Instruction("Who are you?"), "me"),
]
TEST = [Output(Instruction("Write a poem."), ""), Output(Instruction("The sea."), "")]


def test_verbs_objects_and_lengths_are_counted_by_set() -> None:
    found = analysed({"sft": TRAIN, "evaluation": TEST})
    train, test = table(found, "sets")
    assert [train[f"{kind}, %"].value for kind in ("tasks", "questions", "others", "with input")] == [75, 25, 0, 25]
    assert [test[f"{kind}, %"].value for kind in ("tasks", "questions", "others", "with input")] == [50, 0, 50, 0]
    assert (train["instructions"], train["verbs"], train["verbs with objects"]) == (4, 2, 3)
    first, second = table(found, "verbs")
    assert (first["verb"], first["sft, %"].value, first["evaluation, %"].value) == ("write", 50, 50)
    assert first["objects"] == "poem 67%, story 33%"
    assert (second["verb"], second["sft, %"].value, second["evaluation, %"].value) == ("list", 25, 0)
    lengths = {(row["set"], row["texts"]): row for row in table(found, "lengths")}
    assert (lengths["sft", "answers"]["not empty"], lengths["sft", "answers"]["mean"].value) == (
        3,
        pytest.approx(7 / 3),
    )
    assert (lengths["sft", "inputs"]["not empty"], lengths["sft", "inputs"]["median"]) == (1, 3)
    assert ("evaluation", "answers") not in lengths
    [apart] = table(found, "distances")  # write 1/2 and 1/2, list 1/4, question 1/4, other 1/2
    assert (apart["verbs, %"], apart["differs most"], apart["by"]) == (50, "other", -50)
    assert apart["with objects, %"] == 75, "the poem has 1/4 and 1/2"
    assert [note for note in found.notes if note.startswith("Left out")] == [
        f"Left out: no split {split!r}" for split in ("preference", "unlabeled", "validation")
    ]
    readings = [json.loads(line) for line in found.files["readings.jsonl"].splitlines()]
    assert (readings[1]["set"], readings[1]["verb"], readings[1]["instruction"]) == (
        "sft",
        "write",
        "Write a long story.",
    )


def test_one_set_has_no_distance_and_none_has_no_findings() -> None:
    found = analysed({"sft": TRAIN}, splits="sft", verbs=1)
    assert [table.name for table in found.tables] == ["sets", "verbs", "lengths"]
    assert [series.x for series in found.plots[0].series] == [["write"]]
    assert Instructions(InstructionsConfig()).analyse([]) == Findings()
    with pytest.raises(DataError, match="no split 'sft'"):
        analysed({})


def test_two_files_with_one_name_are_refused() -> None:
    settings = InstructionsConfig(instructions=["a/train.json", "b/train.json"])
    with pytest.raises(ConfigError, match=r"--instructions b/train\.json: 'train' has the name of another"):
        Instructions(settings).analyse([])


def test_the_study_is_found_by_its_name() -> None:
    component = discover().get("studies", "instructions")
    assert (component.load(), component.config) == (Instructions, InstructionsConfig)
