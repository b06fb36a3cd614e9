"""The two controls, on outputs of known lengths."""

from __future__ import annotations

import pytest
from afarm_heuristics import LengthConfig
from afarm_heuristics.length import LengthBalance, Longer

from afarm import EvaluationInputs, Instruction, JudgedPair, Output, Pair, Preference
from afarm.testing import annotate_context, check_annotator, check_evaluator


def test_longer_conforms() -> None:
    check_annotator(Longer(LengthConfig(margin=0)))


def test_length_balance_conforms() -> None:
    check_evaluator(LengthBalance(LengthConfig()))


@pytest.mark.parametrize(
    ("first", "second", "margin", "p2"),
    [("aa", "aaa", 0, 1.0), ("aaa", "aa", 0, 0.0), ("aa", "bb", 0, None), ("a" * 40, "", 30, 0.0), ("a", "", 1, None)],
)
def test_longer_prefers_the_longer_output_beyond_the_margin(
    first: str, second: str, margin: int, p2: float | None
) -> None:
    pair = Pair(Instruction("say a"), first, second)
    [preference] = Longer(LengthConfig(margin=margin)).annotate([pair], annotate_context())
    assert (preference.p2, preference.outcome) == (p2, "draw" if p2 is None else "decided")


def test_length_balance_splits_wins_by_length() -> None:
    # (characters of the reference, of the system's output, p2); a margin of 2 makes the fourth pair similar.
    rows = [(10, 20, 1.0), (10, 20, 1.0), (10, 20, 0.0), (10, 11, 1.0), (20, 10, 0.0)]
    outputs, judgements = [], []
    for number, (theirs, ours, p2) in enumerate(rows):
        instruction = Instruction(f"task {number}")
        pair = Pair(instruction, "r" * theirs, "s" * ours)
        outputs.append(Output(instruction, "s" * ours, "mine"))
        judgements.append(JudgedPair(pair, Preference(pair.id, p2), "judge"))
    found = LengthBalance(LengthConfig(margin=2)).evaluate(EvaluationInputs("mine", outputs, (), judgements))
    assert found.metrics == {
        "win_rate_longer": pytest.approx(200 / 3),
        "n_longer": 3,
        "win_rate_similar": 100.0,
        "n_similar": 1,
        "win_rate_shorter": 0.0,
        "n_shorter": 1,
        "longer_preferred": 75.0,  # 2 of the 3 longer ones won, and the one shorter lost
    }
