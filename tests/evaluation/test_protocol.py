"""Protocols: what results must share to be compared, and the reasons why two cannot be."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from light_farm import light_farm

from afarm.core.records import Instruction, Output
from afarm.evaluation.drift_log import DRIFT_LOG
from afarm.evaluation.protocol import FIELDS, EvaluationProtocol, comparable, instructions_digest, outputs_digest
from afarm.experiment.comparison.outputs import OutputComparison
from afarm.experiment.farm import Farm
from afarm.storage.rows import read_rows

WHOLE = EvaluationProtocol(
    "pool", "a1", "b2", "1.0", {"strong": "openai:x"}, 0.0, "davinci003", "c3", "d4", drift="2026-01-01"
)  # fmt: skip
OTHER = EvaluationProtocol(
    "solo", "a2", "b3", "1.1", {"strong": "openai:y"}, 0.25, "gpt4", "c4", "d5", drift="2026-02-02"
)


@pytest.mark.parametrize("name", FIELDS)
def test_each_thing_that_differs_is_a_reason_and_another_board(name: str) -> None:
    changed = dataclasses.replace(WHOLE, **{name: getattr(OTHER, name)})
    (reason,) = comparable(WHOLE, changed)
    assert reason.startswith(f"different {FIELDS[name]} (")
    assert changed.id != WHOLE.id


def test_the_version_is_told_and_parts_nothing() -> None:
    newer = dataclasses.replace(WHOLE, version="2.0")
    assert comparable(WHOLE, newer) == []
    assert newer.id == WHOLE.id
    assert {f.name for f in dataclasses.fields(EvaluationProtocol)} == FIELDS.keys() | {"version", "asked"}


def test_settings_are_told_in_words_and_compared_by_their_digest() -> None:
    """Results from before there were words have the id of those with the same settings."""
    usual, both = (dataclasses.replace(WHOLE, asked=words) for words in ("usual settings", "both orders"))
    assert usual.id == WHOLE.id == both.id
    assert usual.sentence() == WHOLE.sentence() != both.sentence()
    assert ", both orders, against davinci003" in both.sentence()
    (reason,) = comparable(dataclasses.replace(both, settings="a3"), usual)
    assert reason == "different annotator settings (both orders, usual settings)"


def test_what_is_not_known_is_comparable_with_nothing() -> None:
    assert comparable(EvaluationProtocol(), EvaluationProtocol()) != []
    assert comparable(WHOLE, EvaluationProtocol()) != []
    assert comparable(WHOLE, WHOLE) == []


def test_it_is_the_same_after_it_was_stored() -> None:
    assert EvaluationProtocol.from_row(json.loads(json.dumps(WHOLE.to_row()))) == WHOLE


@pytest.mark.parametrize("row", [None, "text", [], {}, {"annotator": 3, "judges": "x", "label_noise": True}])
def test_a_record_without_one_or_with_nonsense_has_an_unknown_one(row: object) -> None:
    assert not EvaluationProtocol.from_row(row).known


def test_digests_are_of_sets() -> None:
    assert instructions_digest(["a", "b"]) == instructions_digest(["b", "a", "a"]) != instructions_digest(["a"])
    assert outputs_digest({"a": "1", "b": "2"}) == outputs_digest({"b": "2", "a": "1"}) != outputs_digest({"a": "2"})


def answers(system: str, times: int, count: int = 6) -> list[Output]:
    rows = [(Instruction(f"task {i}"), "word " * (1 + (i * times) % 5)) for i in range(count)]
    return [Output(task, text, system) for task, text in rows]


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[Farm]:
    with light_farm(tmp_path) as made:
        yield made


def protocol_of(farm: Farm, *given: list[Output], annotator: str = "pool") -> EvaluationProtocol:
    made = OutputComparison.of(farm.workspace, *given, annotator).run()
    return EvaluationProtocol.from_row(next(read_rows(made.artifact.path / "results.jsonl"))["protocol"])


def test_a_result_is_stored_with_its_protocol(farm: Farm) -> None:
    one = protocol_of(farm, answers("a", 2), answers("reference", 3))
    two = protocol_of(farm, answers("b", 4), answers("reference", 3))
    assert one == two
    assert (one.annotator, one.reference, one.label_noise) == ("pool", "reference", 0.0)
    assert one.judges == {"*": "counting:"}
    assert one.source
    elsewhere = protocol_of(farm, answers("a", 2), answers("reference", 1))
    assert "different reference outputs" in comparable(one, elsewhere)[0]
    another = protocol_of(farm, answers("a", 2), answers("reference", 3), annotator="chatgpt_1")
    assert "different annotator (pool, chatgpt_1)" in comparable(one, another)
    assert (one.asked, another.asked) == ("usual settings", "usual settings"), "a prompt alone is as it comes"


def test_a_result_is_stored_with_the_settings_in_words(tmp_path: Path) -> None:
    with light_farm(tmp_path, "pool.both_orders=true", "pool.votes=3") as farm:
        assert protocol_of(farm, answers("a", 2), answers("reference", 3)).asked == "both orders, votes 3"


def test_what_is_judged_after_a_shift_was_seen_is_comparable_with_nothing_before_it(farm: Farm) -> None:
    before = protocol_of(farm, answers("a", 2), answers("reference", 3))
    shift = {"epoch": "2026-11-21", "judges": {"*": "counting:"}, "shifted": True}
    other = {"epoch": "2027-01-01", "judges": {"*": "openai:x"}, "shifted": True}
    rows = [json.dumps(row) for row in (shift, other)]
    (farm.workspace.store.root / DRIFT_LOG).write_text("\n".join(rows))
    after = protocol_of(farm, answers("b", 4), answers("reference", 3))
    assert after.drift == "2026-11-21", "the other judge's shift is none of this one's"
    assert comparable(before, after) == ["different shift of the judge (none, 2026-11-21)"]
    again = protocol_of(farm, answers("a", 2), answers("reference", 3))
    assert again == before, "what is stored was judged before"
