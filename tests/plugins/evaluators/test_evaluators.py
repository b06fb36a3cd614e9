"""Win rate and mean reward against numbers worked by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from afarm.core.errors import DataError
from afarm.core.interfaces import EvaluationInputs
from afarm.core.records import Instruction, JudgedPair, Output, Pair, Preference, Score
from afarm_plugins.evaluators.reward import MeanReward
from afarm_plugins.evaluators.win_rate import WinRate


def inputs(preferences: Sequence[tuple[float | None, str]]) -> EvaluationInputs:
    """One judged output for each (p2, outcome); output i has i + 1 characters, its reference 10."""
    outputs, reference, judged = [], [], []
    for number, (p2, outcome) in enumerate(preferences):
        instruction = Instruction(f"instruction {number}")
        mine, theirs = Output(instruction, "x" * (number + 1), "me"), Output(instruction, "y" * 10, "them")
        pair = Pair(instruction, theirs.output, mine.output, 0, "them", "me")
        outputs.append(mine)
        reference.append(theirs)
        judged.append(JudgedPair(pair, Preference(pair.id, p2, outcome)))  # type: ignore[arg-type]
    return EvaluationInputs("me", outputs, reference, judged)


DECIDED = [(1.0, "decided"), (1.0, "decided"), (0.0, "decided"), (0.25, "decided")]


def metrics(preferences: Sequence[tuple[float | None, str]]) -> dict[str, Any]:
    return dict(WinRate().evaluate(inputs(preferences)).metrics)


def test_win_rate_and_standard_error_by_hand() -> None:
    # Values 1, 1, 0, 0.5, 0.25: mean 0.55; squared deviations 0.2025 * 2 + 0.3025 + 0.0025 + 0.09 = 0.8.
    found = metrics([*DECIDED, (None, "draw")])
    assert found["win_rate"] == pytest.approx(55.0)
    assert found["standard_error"] == pytest.approx(100 * math.sqrt(0.8 / 4) / math.sqrt(5))
    assert (found["n_wins"], found["n_wins_base"], found["n_draws"], found["n_total"]) == (2, 2, 1, 5)
    assert (found["avg_length"], found["avg_length_reference"]) == (3.0, 10.0)
    assert found["coverage"] == 1.0


def test_several_labels_of_an_instruction_are_a_cluster() -> None:
    # Two annotators of three instructions: wins 1, 1; 0, 0; 1, 0. Mean 0.5; residuals 1, -1, 0, squared 2 in all:
    # 100 · √(2 · 3/2) / 6, where labels taken for independent would give 100 · √0.3 / √6.
    given = inputs([(p2, "decided") for p2 in (1.0, 1.0, 0.0, 0.0, 1.0, 0.0)])

    def about(number: int, row: JudgedPair) -> JudgedPair:
        pair = replace(row.pair, instruction=Instruction(f"instruction {number // 2}"))
        return JudgedPair(pair, replace(row.preference, pair_id=pair.id))

    judged = [about(number, row) for number, row in enumerate(given.judgements)]
    outputs = [replace(o, instruction=row.pair.instruction) for o, row in zip(given.outputs, judged, strict=True)]
    found = WinRate().evaluate(replace(given, outputs=outputs, judgements=judged)).metrics
    assert found["standard_error"] == pytest.approx(100 * math.sqrt(3) / 6)
    assert (found["n_total"], found["n_instructions"]) == (6, 3)
    # Whatever the data set is called.
    named = [
        replace(r, pair=replace(r.pair, instruction=replace(r.pair.instruction, dataset=f"set {n % 2}")))
        for n, r in enumerate(judged)
    ]
    found = WinRate().evaluate(replace(given, outputs=outputs, judgements=named)).metrics
    assert (found["n_total"], found["n_instructions"]) == (6, 3)


def test_outputs_that_are_both_missing_are_no_draw() -> None:
    given = inputs([(0.0, "decided"), (None, "draw")])
    judged = [replace(row, pair=replace(row.pair, output_1="", output_2="")) for row in given.judgements]
    outputs = [replace(output, output="") for output in given.outputs]
    found = WinRate().evaluate(replace(given, outputs=outputs, judgements=judged)).metrics
    assert (found["n_draws"], found["n_identical"]) == (1, 1)


def test_unparsed_and_refused_answers_are_counted_and_left_out_never_taken_for_losses() -> None:
    with_holes = metrics([*DECIDED, (None, "unparsed"), (None, "refused"), (None, "unparsed")])
    without = metrics(DECIDED)
    same = ("win_rate", "standard_error", "n_wins", "n_wins_base", "n_draws", "n_total")
    assert [with_holes[name] for name in same] == [without[name] for name in same]
    assert (with_holes["n_unparsed"], with_holes["n_refused"]) == (2, 1)
    assert with_holes["coverage"] == pytest.approx(4 / 7)
    assert (without["n_unparsed"], without["n_refused"], without["coverage"]) == (0, 0, 1.0)


def test_a_judge_that_is_exactly_torn_counts_like_a_draw() -> None:
    assert metrics([(0.5, "decided"), (1.0, "decided")])["win_rate"] == 75.0
    judged = inputs([(None, "draw"), (0.5, "decided"), (None, "unparsed")]).judgements
    assert [row.win for row in judged] == [0.5, 0.5, None]


def test_the_discrete_win_rate_counts_whole_wins_and_keeps_an_even_preference_as_a_draw() -> None:
    # 1, 1, 0, 0.25 and a draw: two wins, two losses, a draw; then 0.51 wins and 0.5 is even.
    assert metrics([*DECIDED, (None, "draw")])["discrete_win_rate"] == pytest.approx(50.0)
    assert metrics([(0.51, "decided"), (0.5, "decided")])["discrete_win_rate"] == pytest.approx(75.0)


def test_each_data_set_has_its_own_win_rate_and_error() -> None:
    given = inputs([*DECIDED, (None, "unparsed")])
    judged = [
        replace(row, pair=replace(row.pair, instruction=replace(row.pair.instruction, dataset=name)))
        for row, name in zip(given.judgements, ("koala", "vicuna", "vicuna", "koala", "oasst"), strict=True)
    ]
    rows = WinRate().evaluate(replace(given, judgements=judged)).rows
    # koala: 1 and 0.25; vicuna: 1 and 0; oasst: nothing that could be read.
    deviation = {"koala": math.sqrt(2 * 0.375**2), "vicuna": math.sqrt(2 * 0.5**2)}
    assert [(row["dataset"], row["win_rate"], row["n_total"]) for row in rows] == [
        ("koala", 62.5, 2),
        ("oasst", None, 0),
        ("vicuna", 50.0, 2),
    ]
    assert [row["standard_error"] for row in rows] == [
        pytest.approx(100 * deviation["koala"] / math.sqrt(2)),
        None,
        pytest.approx(100 * deviation["vicuna"] / math.sqrt(2)),
    ]
    assert WinRate().evaluate(given).rows == ()


def test_swapping_the_two_mirrors_the_win_rate_and_the_order_of_rows_does_not_matter() -> None:
    given = inputs([*DECIDED, (None, "draw"), (None, "unparsed")])
    here = WinRate().evaluate(given).metrics
    turned = replace(given, outputs=given.outputs[::-1], judgements=given.judgements[::-1])
    assert WinRate().evaluate(turned).metrics == pytest.approx(dict(here))
    swapped = [JudgedPair(row.pair.swapped(), row.preference.swapped()) for row in given.judgements]
    there = WinRate().evaluate(replace(given, outputs=given.reference, judgements=swapped)).metrics
    for name in ("win_rate", "discrete_win_rate"):
        assert there[name] == pytest.approx(100 - float(here[name] or 0))
    assert there["standard_error"] == pytest.approx(here["standard_error"])
    assert (there["n_wins"], there["n_wins_base"]) == (here["n_wins_base"], here["n_wins"])
    assert there["avg_length"] == here["avg_length_reference"]


def test_one_judgement_has_no_standard_error() -> None:
    found = metrics([(1.0, "decided")])
    assert (found["win_rate"], found["standard_error"], found["n_total"]) == (100.0, None, 1)


def test_judgements_that_do_not_belong_to_the_outputs_are_an_error_that_names_the_row() -> None:
    right = inputs(DECIDED)
    wrong = [
        (replace(right, judgements=right.judgements[:-1]), "3 judgements for 4 outputs"),
        (replace(right, judgements=right.judgements[::-1]), "judgement 0 is not about output 0"),
        (replace(right, outputs=[*right.outputs[:3], replace(right.outputs[3], output="z")]), "judgement 3"),
        (replace(right, judgements=[], outputs=[]), "none of 0 pairs"),
        (inputs([(None, "unparsed")] * 2), r"none of 2 pairs has a usable judgement \(2 unparsed\)"),
    ]
    for given, said in wrong:
        with pytest.raises(DataError, match=said):
            WinRate().evaluate(given)


def scored(scores: list[float], reference_scores: list[float]) -> EvaluationInputs:
    given = inputs([(1.0, "decided")] * len(scores))
    return replace(given, scores=[Score(s) for s in scores], reference_scores=[Score(s) for s in reference_scores])


def test_mean_reward_and_its_paired_difference_by_hand() -> None:
    # Gains 1, 3, -1: mean 1, squared deviations 0 + 4 + 4, s = 2.
    found = MeanReward().evaluate(scored([2.0, 4.0, 3.0], [1.0, 1.0, 4.0])).metrics
    assert found["reward"] == pytest.approx(3.0)
    assert found["reward_reference"] == pytest.approx(2.0)
    assert found["reward_difference"] == pytest.approx(1.0)
    assert found["reward_difference_se"] == pytest.approx(2 / math.sqrt(3))


def test_the_difference_pairs_instructions_not_rows() -> None:
    given = scored([2.0, 4.0, 3.0], [1.0, 1.0, 4.0])
    turned = replace(given, reference=given.reference[::-1], reference_scores=given.reference_scores[::-1])
    assert MeanReward().evaluate(turned) == MeanReward().evaluate(given)
    pairs = [(row["reward"], row["reward_reference"]) for row in MeanReward().evaluate(turned).rows]
    assert pairs == [(2.0, 1.0), (4.0, 1.0), (3.0, 4.0)]


def test_mean_reward_without_a_reference_or_with_one_row_has_no_error() -> None:
    alone = replace(scored([2.0, 4.0], [0.0, 0.0]), reference=[], reference_scores=[])
    assert MeanReward().evaluate(alone).metrics == {"reward": 3.0}
    assert MeanReward().evaluate(scored([2.0], [1.0])).metrics["reward_difference_se"] is None


def test_scores_that_do_not_belong_to_the_outputs_are_an_error() -> None:
    given = scored([2.0, 4.0], [1.0, 1.0])
    for wrong in (
        replace(given, scores=given.scores[:1]),
        replace(given, scores=[], outputs=[]),
        replace(given, reference_scores=given.reference_scores[:1]),
        replace(given, reference=[replace(r, instruction=Instruction("other")) for r in given.reference]),
    ):
        with pytest.raises(DataError, match="me"):
            MeanReward().evaluate(wrong)
