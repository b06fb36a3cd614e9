"""The stated utility of real text."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afarm.core.records import Instruction
from afarm_plugins.judges.text_utility import TextUtility, terms, utility

TASK = Instruction("Name three animals.", "wild ones")


def test_terms_by_hand() -> None:
    found = terms(TASK, "Wild animals: fox, fox, fox, fox.")
    assert found["length"] == pytest.approx(1 - math.exp(-33 / 400))
    assert found["overlap"] == pytest.approx(2 / 5)  # of name, three, animals, wild, ones
    assert found["repetition"] == pytest.approx(1 - 3 / 4)  # triples: waf, aff, fff, fff
    assert found["unfinished"] == 0
    assert found["empty"] == 0


def test_utility_is_the_weighted_sum() -> None:
    length = 1 - math.exp(-3 / 400)
    assert utility(TASK, "Fox") == pytest.approx(3 * length - 3)


def test_empty_text_is_worst() -> None:
    assert utility(TASK, "") == utility(TASK, " \n ") < utility(TASK, "no") < utility(TASK, "no.")


def test_length_helps_up_to_a_point() -> None:
    def text(sentences: int) -> str:
        return " ".join(f"Fact{i} says{i} that{i} much{i} holds{i}." for i in range(sentences))

    values = [utility(TASK, text(n)) for n in (1, 5, 20)]
    assert values == sorted(values)
    assert utility(TASK, text(2000)) < utility(TASK, text(20))


def test_loops_and_broken_ends_are_punished() -> None:
    fine = "Foxes, lions and wolves are three wild animals that many people know quite well."
    assert utility(TASK, fine) > utility(TASK, fine.rstrip("."))
    assert utility(TASK, fine) > utility(TASK, "Foxes are wild. " * 5)


@given(st.text(max_size=300), st.text(max_size=300))
def test_any_text_has_a_finite_utility(instruction: str, output: str) -> None:
    assert math.isfinite(utility(Instruction(instruction), output))


def test_huge_text_and_other_scripts() -> None:
    for text in ("a" * 1_000_000, "字" * 30_000, "\ud800\u202e💥" * 1000, "word " * 100_000):
        assert math.isfinite(utility(TASK, text))
    assert utility(TASK, "これは三つの動物です。") > utility(TASK, "これは三つの動物です")


def test_scores_keep_the_order_of_their_input() -> None:
    outputs = ["no", "", "Three wild animals."]
    scores = TextUtility().score([TASK] * 3, outputs)
    assert [score.value for score in scores] == [utility(TASK, output) for output in outputs]
