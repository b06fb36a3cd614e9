"""Records, and the rows they are on disk."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from afarm.core.errors import DataError
from afarm.core.records import (
    Instruction,
    JudgedPair,
    Message,
    Output,
    Pair,
    Preference,
)
from afarm.judging.labelling import number_occurrences
from afarm.storage.rows import read_outputs, read_preferences, write_rows

ASK = Instruction("Name a colour.", "warm", "koala")
ROW: dict[str, Any] = {"instruction": "Name a colour.", "output_1": "Red.", "output_2": "Blue."}


def judged(value: Any, **more: Any) -> JudgedPair:
    return JudgedPair.from_row({**ROW, "preference": value, **more}, "file.json: row 7")


# ------------------------------------------------------------------------------------- preferences at the file's edge


@pytest.mark.parametrize(
    ("value", "outcome", "p2"),
    [
        (1, "decided", 0.0),
        (2, "decided", 1.0),
        (1.0, "decided", 0.0),
        (2.0, "decided", 1.0),
        (1.25, "decided", 0.25),
        (1.875, "decided", 0.875),
        (0, "draw", None),
        (0.0, "draw", None),
        (1.5, "draw", None),
        (None, "unparsed", None),
        (math.nan, "unparsed", None),
    ],
)
def test_each_preference_on_disk_has_one_meaning(value: Any, outcome: str, p2: float | None) -> None:
    preference = judged(value).preference
    assert (preference.outcome, preference.p2) == (outcome, p2)


@pytest.mark.parametrize("value", [True, False, 3, -1, 0.5, 2.0001, math.inf, "1", "", [1], {"value": 1}])
def test_any_other_preference_is_an_error_that_names_row_and_field(value: Any) -> None:
    with pytest.raises(DataError, match=r"^file\.json: row 7: field 'preference' is "):
        judged(value)


def test_a_missing_preference_is_not_taken_for_an_unparsed_one() -> None:
    with pytest.raises(DataError, match="row 7: field 'preference' is missing"):
        JudgedPair.from_row(ROW, "file.json: row 7")


def test_an_annotator_that_is_exactly_torn_stays_apart_from_a_draw_on_disk() -> None:
    pair = Pair(ASK, "Red.", "Blue.")
    torn, draw = Preference(pair.id, 0.5), Preference(pair.id, None, "draw")
    rows = [JudgedPair(pair, preference).to_row() for preference in (torn, draw)]
    assert [row["preference"] for row in rows] == [1.5, 1.5]
    assert [JudgedPair.from_row(row).preference for row in rows] == [torn, draw]


def test_identical_outputs_are_0_on_disk_and_a_judges_draw_is_1_5() -> None:
    pair = Pair(ASK, "Red.", "Red.")
    assert JudgedPair(pair, Preference(pair.id, None, "draw", "rule")).to_row()["preference"] == 0
    assert JudgedPair(pair, Preference(pair.id, None, "draw")).to_row()["preference"] == 1.5
    assert judged(0, output_2="Red.").preference.source == "rule"
    assert judged(0).preference.source == "judge"


@pytest.mark.parametrize(
    "preference",
    [
        Preference("x", 0.0, member="gpt4_1", order="21", sample_index=2, completion="abc"),
        Preference("x", 1.0, source="noise"),
        Preference("x", 0.75, source="human", strength=0.5),
        Preference("x", None, "draw"),
        Preference("x", None, "draw", "rule"),
        Preference("x", None, "unparsed", member="gpt4_1"),
        Preference("x", None, "refused", member="gpt4_2"),
    ],
)
def test_a_judged_pair_survives_a_round_trip_through_a_file(preference: Preference, tmp_path: Path) -> None:
    pair = Pair(ASK, "Red.", "Blue.", 3, "davinci", "llama")
    before = JudgedPair(pair, replace(preference, pair_id=pair.id), "pool")
    write_rows(tmp_path / "p.jsonl", [before.to_row()])
    assert read_preferences(tmp_path / "p.jsonl") == [before]


def test_the_judge_is_a_column_that_old_rows_lack_and_others_fill_otherwise(tmp_path: Path) -> None:
    pair = Pair(ASK, "Red.", "Blue.")
    before = JudgedPair(pair, Preference(pair.id, 1.0, judge="openai:gpt-4.1"), "gpt4_4")
    write_rows(tmp_path / "p.jsonl", [before.to_row()])
    assert read_preferences(tmp_path / "p.jsonl") == [before]
    assert judged(1).to_row()["judge"] == ""
    assert judged(1, judge={"name": "Ann"}).preference.judge == ""


def test_a_preference_has_p2_exactly_when_it_is_decided() -> None:
    with pytest.raises(ValueError):
        Preference("x", None, "decided")
    with pytest.raises(ValueError):
        Preference("x", 0.5, "draw")
    with pytest.raises(ValueError):
        Preference("x", 1.01)


@pytest.mark.parametrize("field", ["occurrence", "draw", "strength", "messages"])
def test_a_field_of_the_wrong_kind_is_an_error_that_names_it(field: str) -> None:
    with pytest.raises(DataError, match=f"row 7: field '{field}'"):
        judged(1, **{field: "nonsense"})


def test_a_strength_below_0_is_an_error_since_no_sign_of_it_says_which_output_is_better() -> None:
    assert judged(1, strength=0).preference.strength == 0
    with pytest.raises(DataError, match="row 7: field 'strength' is -1; it must be at least 0"):
        judged(1, strength=-1)


def test_a_malformed_turn_is_an_error_that_names_turn_and_field() -> None:
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant"}]
    with pytest.raises(DataError, match="row 7: messages: turn 1: field 'content' is missing"):
        judged(1, messages=turns)


def test_a_data_sets_own_column_called_source_is_left_alone() -> None:
    assert judged(1, source="sharegpt").preference.source == "judge"
    assert judged(1, source="human").preference.source == "human"


# ---------------------------------------------------------------------------------------------------- pairs and ids


def test_swapping_a_pair_keeps_its_id_and_swapping_a_preference_mirrors_it() -> None:
    pair = Pair(ASK, "Red.", "Blue.", 1, "a", "b")
    mirror = pair.swapped()
    assert (mirror.output_1, mirror.generator_1, mirror.occurrence) == ("Blue.", "b", 1)
    assert mirror.id == pair.id
    assert mirror.canonical == pair.canonical == ("Blue.", "Red.")
    assert (pair.is_canonical, mirror.is_canonical) == (False, True)
    preference = Preference(pair.id, 0.25, order="12", member="gpt4_1")
    assert preference.swapped() == Preference(pair.id, 0.75, order="21", member="gpt4_1")
    assert preference.swapped().swapped() == preference
    assert Preference(pair.id, None, "draw", order="21").swapped() == Preference(pair.id, None, "draw", order="12")


def test_ids_tell_instruction_input_turns_outputs_and_occurrence_apart_but_not_the_data_set() -> None:
    pairs = [
        Pair(ASK, "Red.", "Blue."),
        Pair(replace(ASK, input=""), "Red.", "Blue."),
        Pair(replace(ASK, instruction="Name a colour"), "Red.", "Blue."),
        Pair(replace(ASK, messages=(Message("user", "Hello"),)), "Red.", "Blue."),
        Pair(ASK, "Red.", "Blue"),
        Pair(ASK, "Red.", "Blue.", 1),
        Pair(Instruction("Name a colour.w", "arm"), "Red.", "Blue."),
    ]
    assert len({pair.id for pair in pairs}) == len(pairs)
    assert Pair(replace(ASK, dataset="other"), "Red.", "Blue.").id == pairs[0].id


def test_repeats_of_a_pair_are_numbered_whichever_way_round_they_stand() -> None:
    pair, other = Pair(ASK, "Red.", "Blue."), Pair(ASK, "Red.", "Green.")
    numbered = number_occurrences([pair, other, pair.swapped(), pair])
    assert [p.occurrence for p in numbered] == [0, 0, 1, 2]
    assert len({p.id for p in numbered}) == 4
    assert numbered[2].output_1 == "Blue."


def test_chosen_and_rejected_follow_p2_and_are_absent_without_a_better_one() -> None:
    assert judged(2).chosen_rejected == ("Blue.", "Red.")
    assert judged(1.1).chosen_rejected == ("Red.", "Blue.")
    for even in (0, None, 1.5):
        assert judged(even).chosen_rejected is None
    assert judged(1.5, outcome="decided").chosen_rejected is None


# ----------------------------------------------------------------------------------------------- outputs and strings


def test_an_output_keeps_its_details_and_its_earlier_turns_through_a_file(tmp_path: Path) -> None:
    turns = (Message("system", "Be brief."), Message("user", "Hi"), Message("assistant", "Hello", "afarm"))
    output = Output(replace(ASK, messages=turns), "Red.", "sft", {"score": 1.5, "finish_reason": "stop"})
    write_rows(tmp_path / "o.jsonl", [output.to_row()])
    assert read_outputs(tmp_path / "o.jsonl") == [output]


@pytest.mark.parametrize("field", ["instruction", "output"])
def test_a_missing_or_wrong_text_is_an_error_that_names_row_and_field(field: str) -> None:
    row: dict[str, Any] = {"instruction": "a", "output": "b"}
    for value, said in ((None, "is null"), (3, "must be text, not int")):
        with pytest.raises(DataError, match=f"row 2: field '{field}' {said}"):
            Output.from_row({**row, field: value}, "row 2")
    with pytest.raises(DataError, match=f"row 2: field '{field}' is missing"):
        Output.from_row({k: v for k, v in row.items() if k != field}, "row 2")


ANY_TEXT = st.text(st.characters(exclude_categories=()))  # lone surrogates, control characters, all planes
"""JSON can hold half a surrogate pair as an escape, and models do emit halves of emoji."""


@given(ANY_TEXT, ANY_TEXT, ANY_TEXT)
@example("half an emoji \ud83d", "the other half \ude00", "\u2028\x85\r\n\x00")
def test_any_text_that_json_can_hold_survives_a_round_trip_through_a_file(
    tmp_path_factory: pytest.TempPathFactory, instruction: str, output_1: str, output_2: str
) -> None:
    texts = [json.loads(json.dumps(t)) for t in (instruction, output_1, output_2)]
    pair = Pair(Instruction(texts[0]), texts[1], texts[2])
    before = JudgedPair(pair, Preference(pair.id, 1.0))
    path = tmp_path_factory.getbasetemp() / "any-text.jsonl"
    write_rows(path, [before.to_row()])
    assert read_preferences(path) == [before]
    assert pair.id == pair.swapped().id


def test_ratings_survive_a_file_mirror_and_come_in_twos(tmp_path: Path) -> None:
    pair = Pair(Instruction("Say hello."), "hi", "hello")
    rated = JudgedPair(pair, Preference(pair.id, 1.0, scores=(3.0, 5.5)))
    path = tmp_path / "rated.jsonl"
    write_rows(path, [rated.to_row()])
    assert read_preferences(path) == [rated]
    assert rated.preference.swapped().scores == (5.5, 3.0)
    plain = JudgedPair(pair, Preference(pair.id, 1.0)).to_row()
    assert not {"score_1", "score_2"} & plain.keys()
    for wrong, said in (
        ({"score_1": 3}, "field 'score_2' is missing"),
        ({"score_1": 3, "score_2": None}, "field 'score_2' is missing"),
        ({"score_1": 3, "score_2": "good"}, "field 'score_2' must be a number"),
        ({"score_1": 3, "score_2": float("inf")}, "field 'score_2' must be a number"),
    ):
        with pytest.raises(DataError, match=f"row 4: {said}"):
            JudgedPair.from_row({**plain, **wrong}, "row 4")
    assert JudgedPair.from_row({**plain, "score_1": None, "score_2": float("nan")}).preference.scores is None
