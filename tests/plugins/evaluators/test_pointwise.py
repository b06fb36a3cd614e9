"""The mean rating against numbers worked by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from afarm.core.errors import DataError
from afarm.core.interfaces import EvaluationInputs
from afarm.core.records import Instruction, JudgedPair, Output, Pair, Preference
from afarm_plugins.evaluators.pointwise import Pointwise


def inputs(scores: Sequence[tuple[float, float] | None], identical: int = 0) -> EvaluationInputs:
    """A judged pair for each (the reference's rating, mine), None where none could be read; `identical` more pairs."""
    judged = []
    for number, marks in enumerate(scores):
        pair = Pair(Instruction(f"instruction {number}"), "theirs", f"mine {number}")
        p2 = None if marks is None else float(marks[1] > marks[0])
        judged.append(JudgedPair(pair, Preference(pair.id, p2, "unparsed" if p2 is None else "decided", scores=marks)))
    for number in range(identical):
        pair = Pair(Instruction(f"identical {number}"), "same", "same")
        judged.append(JudgedPair(pair, Preference(pair.id, None, "draw", "rule")))
    return EvaluationInputs("me", [Output(r.pair.instruction, r.pair.output_2) for r in judged], judgements=judged)


SCORES = [(3.0, 4.0), (5.0, 4.0), (2.0, 7.0)]


def test_mean_ratings_and_their_paired_difference_by_hand() -> None:
    found = Pointwise().evaluate(inputs([*SCORES, None])).metrics
    assert found["rating"] == pytest.approx(5.0)
    assert found["rating_reference"] == pytest.approx(10 / 3)
    assert found["rating_difference"] == pytest.approx(5 / 3)
    # Differences 1, -1, 5: squared deviations 4/9 + 64/9 + 100/9 = 168/9; ratings 4, 4, 7: 1 + 1 + 4.
    assert found["rating_difference_se"] == pytest.approx(math.sqrt(168 / 9 / 2 / 3))
    assert found["rating_se"] == pytest.approx(math.sqrt(6 / 2 / 3))
    assert (found["n_total"], found["n_identical"], found["n_unrated"]) == (3, 0, 1)


def test_identical_outputs_are_a_difference_of_nothing() -> None:
    found = Pointwise().evaluate(inputs(SCORES, identical=2)).metrics
    assert found["rating_difference"] == pytest.approx(1.0)
    assert found["rating"] == pytest.approx(5.0)
    assert (found["n_total"], found["n_identical"], found["n_unrated"]) == (5, 2, 0)


def test_several_ratings_of_an_output_are_no_surer_than_one() -> None:
    once = inputs(SCORES, identical=1)
    thrice = replace(
        once,
        outputs=[o for o in once.outputs for _ in range(3)],
        judgements=[r for r in once.judgements for _ in range(3)],
    )
    one, three = (Pointwise().evaluate(given).metrics for given in (once, thrice))
    for name in ("rating", "rating_se", "rating_difference", "rating_difference_se"):
        assert three[name] == pytest.approx(one[name])
    assert (three["n_total"], three["n_identical"]) == (12, 3)


def test_swapping_mirrors_the_difference_and_a_constant_shift_leaves_it() -> None:
    given = inputs(SCORES, identical=1)
    swapped = [JudgedPair(r.pair.swapped(), r.preference.swapped()) for r in given.judgements]
    outputs = [replace(o, output=r.pair.output_2) for o, r in zip(given.outputs, swapped, strict=True)]
    here = Pointwise().evaluate(given).metrics
    there = Pointwise().evaluate(replace(given, outputs=outputs, judgements=swapped)).metrics
    assert there["rating_difference"] == pytest.approx(-(here["rating_difference"] or 0))  # type: ignore[operator]
    assert there["rating"] == here["rating_reference"]
    shifted = Pointwise().evaluate(inputs([(one + 2, two + 2) for one, two in SCORES], identical=1)).metrics
    assert shifted["rating_difference"] == pytest.approx(here["rating_difference"])


def test_judgements_without_ratings_are_an_error_that_names_the_annotators_that_give_them() -> None:
    for given in (inputs([None, None]), inputs([], identical=2)):
        with pytest.raises(DataError, match=r"me: none of 2 judgements has ratings.*--annotator ratings"):
            Pointwise().evaluate(given)
    assert Pointwise().evaluate(inputs(SCORES[:1])).metrics["rating_se"] is None
