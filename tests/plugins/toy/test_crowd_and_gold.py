"""The simulated crowd and the gold reward as components."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from afarm.core.errors import DataError
from afarm.core.interfaces import AnnotateContext, EvaluationInputs
from afarm.core.records import Instruction, Output, Pair
from afarm_plugins.toy import CrowdConfig
from afarm_plugins.toy.crowd import SIZE, Crowd, members
from afarm_plugins.toy.gold import GoldEvaluator, GoldReward
from tools.toy.calibrate import draw_pairs

WHICH = Instruction("Which word in the input is a tree?", "fox, oak, drum")
IS_TRUE = Instruction("Is the fox an animal and the oak a tree?")


def no_calls(requests: Any) -> Any:
    raise AssertionError("the crowd makes no judge call")


def context(seed: int = 0) -> AnnotateContext:
    return AnnotateContext(seed, no_calls)  # type: ignore[arg-type]


def test_labels_depend_on_pair_and_seed_alone() -> None:
    pairs = draw_pairs(200)
    together = Crowd().annotate(pairs, context())
    alone = [Crowd().annotate([pair], context())[0] for pair in reversed(pairs)]
    assert together == alone[::-1]
    assert together != Crowd().annotate(pairs, context(seed=1))


def test_swapping_outputs_mirrors_labels() -> None:
    pairs = draw_pairs(200)
    labels = Crowd().annotate(pairs, context())
    swapped = Crowd().annotate([pair.swapped() for pair in pairs], context())
    assert [label.swapped() for label in swapped] == labels


def test_every_member_is_asked_about_equally_often() -> None:
    labels = Crowd().annotate(draw_pairs(3200), context())
    counts = Counter(label.member for label in labels)
    assert len(counts) == SIZE
    assert min(counts.values()) > 140  # 200 expected, standard deviation 14
    assert max(counts.values()) < 260


def test_votes_are_of_different_members_and_p2_is_their_share() -> None:
    labels = Crowd(CrowdConfig(votes=4)).annotate(draw_pairs(300), context())
    assert {label.p2 for label in labels} == {0.0, 0.25, 0.5, 0.75, 1.0}
    assert all(len(set(label.member.split("+"))) == 4 for label in labels)


def test_members_differ_in_taste_and_agree_on_plain_cases() -> None:
    chances = [
        member.prefers_second(WHICH, "fox. it is fat it is it is", "oak. it is big. it is wild.")
        for member in members()
    ]
    assert min(chances) > 0.5
    assert max(chances) - min(chances) > 0.05


def test_crowd_refuses_foreign_instructions() -> None:
    with pytest.raises(DataError, match="text_utility"):
        Crowd().annotate([Pair(Instruction("Write a poem."), "a", "b")], context())


def test_gold_evaluator_by_hand() -> None:
    ours = [Output(WHICH, "oak. it is big."), Output(IS_TRUE, "yes.")]  # 1.7, 1.2
    theirs = [Output(WHICH, "oak."), Output(IS_TRUE, "yes.")]  # 1.2, 1.2
    evaluation = GoldEvaluator().evaluate(EvaluationInputs("ppo", ours, theirs))
    assert evaluation.metrics == pytest.approx(
        {
            "n": 2,
            "gold": 1.45,
            "gold_se": 0.25,
            "gold_reference": 1.2,
            "gold_difference": 0.25,
            "gold_difference_se": 0.25,
            "gold_win_rate": 75.0,
            "gold_win_rate_se": 25.0,
        }
    )
    assert evaluation.rows[0] == pytest.approx({"gold": 1.7, "gold_reference": 1.2})


def test_gold_evaluator_refuses_what_does_not_belong_together() -> None:
    ours = [Output(WHICH, "oak.")]
    with pytest.raises(DataError, match="row 1"):
        GoldEvaluator().evaluate(EvaluationInputs("ppo", ours, [Output(IS_TRUE, "yes.")]))
    with pytest.raises(DataError, match="1 outputs but 2"):
        GoldEvaluator().evaluate(EvaluationInputs("ppo", ours, ours * 2))
    with pytest.raises(DataError, match="no outputs"):
        GoldEvaluator().evaluate(EvaluationInputs("ppo", []))


def test_gold_reward_model_keeps_the_order_of_its_input() -> None:
    scores = GoldReward().score([WHICH, IS_TRUE, WHICH], ["oak.", "no.", "drum"])
    assert [score.value for score in scores] == pytest.approx([1.2, -1.8, -2.1])
