"""Outputs and reference brought together: what is missing, too much, repeated or empty is counted, or an error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from afarm.core.errors import DataError
from afarm.core.records import Instruction, Message, Output
from afarm.evaluation.matching import Coverage, MatchPolicy, among, distinct, match_rows, same_answers
from afarm.storage.conversations import Tasks, task_text


def rows(generator: str, answers: Sequence[tuple[str, str]], input: str = "") -> list[Output]:
    return [Output(Instruction(asked, input), answer, generator) for asked, answer in answers]


REFERENCE = rows("ref", [("a", "1"), ("b", "2"), ("c", "3"), ("d", "")])
SYSTEM = rows("sys", [("c", "z"), ("a", "x"), ("e", "too much")])


def test_rows_are_joined_by_instruction_whatever_their_order() -> None:
    matched = match_rows(REFERENCE[::-1], REFERENCE)
    assert [(p.output_1, p.output_2) for p in matched.pairs] == [("", ""), ("3", "3"), ("2", "2"), ("1", "1")]
    assert matched.coverage == Coverage(4, 4, 4, empty=1, empty_reference=1)
    assert matched.coverage.sentence == (
        "4 of the reference's 4 instructions; 1 empty output; 1 empty output of the reference"
    )


def test_what_does_not_fit_is_an_error_that_counts_names_and_says_what_to_do() -> None:
    with pytest.raises(DataError) as caught:
        match_rows(SYSTEM, REFERENCE, names=("mine.json", "ref.json"))
    said = str(caught.value)
    assert "mine.json: rows do not match the reference: of 3 instructions here and 4 there" in said
    assert "2 of the reference's have no output, such as 'b' and 1 are not the reference's, such as 'e'" in said
    assert "on the 2 that both answer with --on-missing skip, or --on-missing loss" in said


def test_skipped_rows_are_left_out_and_counted() -> None:
    matched = match_rows(SYSTEM, REFERENCE, MatchPolicy("skip"))
    assert [(p.instruction.instruction, p.output_1, p.output_2) for p in matched.pairs] == [
        ("c", "3", "z"),
        ("a", "1", "x"),
    ]
    assert matched.coverage == Coverage(4, 3, 2, missing=2, extra=1)
    assert matched.unanswered == []
    assert matched.coverage.sentence == (
        "2 of the reference's 4 instructions; 2 without an output left out; "
        "1 that the reference does not answer left out"
    )


def test_missing_rows_can_count_as_lost() -> None:
    matched = match_rows(SYSTEM, REFERENCE, MatchPolicy("loss"))
    assert [(p.instruction.instruction, p.output_1, p.output_2) for p in matched.unanswered] == [
        ("b", "2", ""),
        ("d", "", ""),
    ]
    assert len(matched.pairs) == 2, "and only these are judged"
    assert matched.coverage == Coverage(4, 3, 2, missing=2, missing_as_loss=2, extra=1, empty_reference=1)
    assert "2 without an output counted as lost" in matched.coverage.sentence


def test_the_input_is_part_of_what_is_asked() -> None:
    other = rows("sys", [("a", "x"), ("b", "y")], input="material")
    with pytest.raises(DataError, match="2 have the same 'instruction' but another 'input'"):
        match_rows(other, REFERENCE, MatchPolicy("skip"))


def test_inputs_merged_into_the_instruction_are_matched_row_by_row_and_counted() -> None:
    apart = [Output(Instruction("a", material), material or "a", "ref") for material in ("x", "y", "")]
    merged = [Output(Instruction(text, dataset="own"), text, "sys") for text in ("a\n\ny", "a", "a\n\nx")]
    for ours, theirs in ((merged, apart), (apart, merged)):
        matched = match_rows(ours, theirs)
        assert [(p.output_1 in p.output_2) or (p.output_2 in p.output_1) for p in matched.pairs] == [True] * 3
        asked = {row.instruction.id for row in theirs}
        assert {row.instruction.id for row in matched.outputs} == asked, "each is asked as the reference was"
        assert matched.coverage == Coverage(3, 3, 3, merged=2)
        assert "2 written otherwise in the two (input merged, spaces, line ends …)" in matched.coverage.sentence
    assert {row.instruction.dataset for row in match_rows(merged, apart).outputs} == {"own"}


def test_a_merged_text_that_could_be_of_two_rows_is_not_guessed() -> None:
    apart = [
        Output(Instruction("a", "b\n\nc"), "1"),
        Output(Instruction("a\n\nb", "c"), "2"),
        Output(Instruction("d"), ""),
    ]
    merged = [Output(Instruction("a\n\nb\n\nc"), "x"), Output(Instruction("d"), "y")]
    with pytest.raises(DataError, match=r"2 of the reference's have no output.*1 are not the reference's"):
        match_rows(merged, apart)
    turns = (Message("user", "hi"), Message("assistant", "yes"))
    with pytest.raises(DataError, match="rows do not match"):
        match_rows([Output(Instruction("a\n\nb"), "x")], [Output(Instruction("a", "b", messages=turns), "y")])


def test_different_sets_of_instructions_are_refused_whatever_the_policy() -> None:
    for policy in (MatchPolicy("skip"), MatchPolicy("loss")):
        with pytest.raises(DataError, match="they have no instruction in common"):
            match_rows(rows("sys", [("x", "1"), ("y", "2")]), REFERENCE, policy)


CAFE = Instruction('Order a café.\nSay "please".', "here - now")
SYSTEM_TEXT, TURN = Message("system", "Be kind."), Message("user", "Hello")


@pytest.mark.parametrize(
    "written",
    [
        Instruction(' Order a cafe\u0301.\nSay "please".\n', "here - now"),
        Instruction('Order a café.\r\nSay "please".\n\nhere - now '),
        Instruction('Order a café.\rSay "please".\n', "\u00a0here - now"),
        replace(CAFE, messages=(SYSTEM_TEXT,)),
        Instruction(task_text(CAFE), messages=(SYSTEM_TEXT,)),
    ],
)
def test_one_task_is_matched_however_it_is_written(written: Instruction) -> None:
    others = [Output(Instruction("do it"), "x"), Output(Instruction("do it", messages=(SYSTEM_TEXT,)), "y")]
    for mine, asked in ((written, CAFE), (CAFE, written)):
        assert mine in Tasks([asked])
        matched = match_rows([Output(mine, "a"), *others], [Output(asked, "b"), *others])
        assert matched.outputs[0].instruction == asked, "the judge is asked as the reference was"
        assert [pair.output_1 for pair in matched.pairs] == ["b", "x", "y"]
        assert matched.coverage == Coverage(3, 3, 3, merged=1)
        assert among([Output(mine, "a")], [asked]) == [Output(asked, "a")]


@pytest.mark.parametrize(
    ("written", "difference"),
    [
        ("Order a\u00a0café.", "has no-break space at character 8 where the other has space"),
        ("\ufeffOrder a café.", "has a byte order mark at character 1 where the other has latin capital letter o"),
        ("Order a ca\u200bfe\u0301.", "has zero width space at character 11 where the other has latin small letter f"),
        ("Order a café.\u200d", "has zero width joiner at character 14 where the other has nothing"),
        ("Order  a café.", "has space at character 7 where the other has latin small letter a"),
        ("Order a\ncafé.", "has a line break at character 8 where the other has space"),
    ],
)
def test_what_looks_alike_and_is_not_is_told_by_its_first_difference(written: str, difference: str) -> None:
    asked = Instruction("Order a café.")
    assert Instruction(written) not in Tasks([asked])
    rows = [Output(Instruction(written), "x")]
    with pytest.raises(DataError) as caught:
        match_rows(rows, [Output(asked, "y")])
    assert f"; 1 look alike; the first {difference}: write them alike in both files" in str(caught.value)
    assert "in common" not in str(caught.value)


def test_kinds_of_quotes_and_dashes_look_alike() -> None:
    for written in ("say “a” – now", "say 'a' — now", "say «a» - now", "say\u2007“a“-now"):
        with pytest.raises(DataError, match="1 look alike; the first has "):
            match_rows([Output(Instruction(written), "x")], [Output(Instruction('say "a" - now'), "y")])


def test_earlier_turns_and_another_system_text_make_another_task() -> None:
    bare, kind, rude, later = (
        Instruction("q", messages=turns)
        for turns in ((), (SYSTEM_TEXT,), (Message("system", "Be rude."),), (TURN, Message("assistant", "Hi")))
    )
    for one, other, same in ((bare, kind, True), (kind, rude, False), (bare, later, False), (later, kind, False)):
        for mine, asked in ((one, other), (other, one)):
            assert (mine in Tasks([asked])) is same
            assert bool(among([Output(mine, "x")], [asked])) is same
    both = [Output(kind, "1"), Output(rude, "2")]
    assert [row.output for row in match_rows(both, both[::-1]).reference] == ["1", "2"]
    with pytest.raises(DataError, match=r"rows 0 and 1 hold the same instruction \('q'\) with different outputs"):
        match_rows(both, [Output(bare, "3")])


def test_the_same_answer_twice_is_one_and_another_answer_is_an_error_that_names_both_rows() -> None:
    twice = [*REFERENCE, REFERENCE[1]]
    assert match_rows(twice, twice).coverage == Coverage(
        4, 4, 4, repeated=1, repeated_reference=1, empty=1, empty_reference=1
    )
    other = [*REFERENCE, *rows("ref", [("b", "another")])]
    with pytest.raises(
        DataError, match=r"mine\.json: rows 1 and 4 hold the same instruction \('b'\).*--on-duplicate first"
    ):
        match_rows(other, REFERENCE, names=("mine.json", "ref.json"))
    found, dropped = distinct(other, "mine.json", "first")
    assert ([row.output for row in found.values()], dropped) == (["1", "2", "3", ""], 1)


def test_all_instructions_with_several_outputs_are_counted_and_the_first_are_named() -> None:
    again = [*REFERENCE, *rows("ref", [("b", "another"), ("a", "1"), ("a", "one"), ("b", "a third")])]
    with pytest.raises(DataError) as caught:
        distinct(again, "mine.json")
    assert str(caught.value) == (
        "mine.json: 2 instructions have different outputs: rows 1, 4 and 7 hold the same instruction ('b'); rows 0 and "
        "6 hold the same instruction ('a'); remove 3 rows, or let the first stand: --on-duplicate first"
    )
    thrice = [row for number in range(3) for row in rows("ref", [(name, f"{name}{number}") for name in "abcde"])]
    with pytest.raises(DataError, match=r"5 instructions have .*\('c'\); and 2 more instructions; remove 10 rows"):
        distinct(thrice, "mine.json")
    with pytest.raises(DataError, match=r"rows 0, 1, 2 and 97 more hold the same instruction \('a'\) with different"):
        distinct(rows("ref", [("a", str(number)) for number in range(100)]), "mine.json")


def test_nothing_at_all_is_an_error() -> None:
    with pytest.raises(DataError, match="the reference: no instructions"):
        match_rows(REFERENCE, [])


def test_where_judging_stopped_early_the_others_are_counted_as_not_asked_about() -> None:
    order = [row.instruction.id for row in REFERENCE[:3]]
    matched = match_rows(REFERENCE, REFERENCE, order=order, judged=2)
    assert [p.output_1 for p in matched.pairs] == ["1", "2"]
    assert matched.coverage == Coverage(4, 4, 2, unasked=1, unshared=1)
    assert not matched.coverage.partial
    assert matched.coverage.sentence == (
        "2 of the reference's 4 instructions; 1 not asked about; 1 that another system does not answer left out"
    )
    lost = match_rows(SYSTEM, REFERENCE, MatchPolicy("loss"), order=order, judged=2)
    assert lost.coverage == Coverage(4, 3, 1, missing=1, missing_as_loss=1, extra=1, unasked=1, unshared=1)


def test_less_than_half_is_told_apart() -> None:
    assert match_rows(SYSTEM[:1], REFERENCE, MatchPolicy("skip")).coverage.partial
    assert not match_rows(SYSTEM, REFERENCE, MatchPolicy("skip")).coverage.partial


def test_the_data_set_of_a_row_is_taken_from_where_it_is_known() -> None:
    told = [Output(Instruction("a", "", "koala"), "1")]
    assert match_rows(rows("sys", [("a", "x")]), told).pairs[0].instruction.dataset == "koala"


def test_systems_with_the_same_answers_are_found_whatever_their_names_and_order() -> None:
    again = rows("renamed", [("a", "x"), ("e", "too much"), ("c", "z")])
    assert same_answers({"one": SYSTEM, "two": REFERENCE, "three": again}) == [("one", "three")]


def test_coverage_survives_the_disk() -> None:
    coverage = match_rows(SYSTEM, REFERENCE, MatchPolicy("loss")).coverage
    assert Coverage.from_row(coverage.to_row()) == coverage


def test_outputs_are_paired_by_instruction_and_mismatches_are_errors() -> None:
    def output(name: str, text: str) -> Output:
        return Output(Instruction(name), text)

    reference = [output("a", "1"), output("b", "2")]
    pairs = match_rows([output("b", "3"), output("a", "4")], reference).pairs
    assert [(p.output_1, p.output_2) for p in pairs] == [("2", "3"), ("1", "4")]
    with pytest.raises(
        DataError, match=r"1 of the reference's have no output.* and 1 are not the reference's, such as 'c'"
    ):
        match_rows([output("a", "3"), output("c", "4")], reference)
    with pytest.raises(DataError, match="the outputs: rows do not match the reference: of 1 instructions here and 2"):
        match_rows([output("a", "3")], reference)
