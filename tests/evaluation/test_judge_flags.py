"""Known faults of judges are flagged by their size and number, and usual ones are shown without a flag."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from afarm.core.records import Instruction, JudgedPair, Pair, Preference
from afarm.evaluation.judge_flags import JudgeTally, evaluator_flags, reward_flags


def label(number: int, first: float | None, order: str = "", **more: Any) -> JudgedPair:
    """A judgement of a pair, shown straight or switched in turn; `first` is the choice of the one shown first."""
    order = order or ("12" if number % 2 else "21")
    p2 = first if first is None or order == "21" else 1 - first
    pair = Pair(Instruction(f"task {number}"), f"theirs {number}", f"ours {number}")
    outcome = more.pop("outcome", "unparsed" if p2 is None else "decided")
    return JudgedPair(pair, Preference(pair.id, p2, outcome, order=order, **more), "me")


def shares(of: int, first: float) -> list[JudgedPair]:
    """`of` verdicts, a share of them for the output shown first, in either order alike."""
    return [label(i, float((i // 2) % 100 < 100 * first)) for i in range(of)]


def both(of: int, turned: float) -> list[JudgedPair]:
    drawn = [label(i, None, "both", outcome="draw") for i in range(round(turned * of))]
    return drawn + [label(i, 1.0, "both") for i in range(len(drawn), of)]


def won(of: int, share: float = 0.5, missing: int = 0) -> list[JudgedPair]:
    rows = [label(i, float(i < share * of), "21", source="human") for i in range(of)]
    return rows + [label(of + i, None, outcome="refused" if i % 2 else "unparsed") for i in range(missing)]


def system_wins(i: int, share: float) -> float:
    return float(((i // 2) % 100 < 100 * share) == (i % 2 == 0))


CASES: Mapping[str, tuple[list[JudgedPair], list[str]]] = {
    "always the first": (shares(300, 1), ["place"]),
    "always the second": (shares(300, 0), ["place"]),
    "the first with its probability": ([label(i, 0.98) for i in range(300)], ["place"]),
    "twelve, always the first": (shares(12, 1), ["place"]),
    "four are too few": (shares(4, 1), []),
    "as the offline judge": (shares(800, 0.56), []),
    "as GPT-4": (shares(800, 0.625), []),
    "as GPT-3.5": (shares(800, 0.73), ["place"]),
    "no bias, and a system that wins nearly always": ([label(i, system_wins(i, 0.95)) for i in range(800)], []),
    "a better system that is always shown first": ([label(i, 1.0, "21") for i in range(300)], []),
    "both orders, always turned": (both(300, 1), ["turned"]),
    "both orders, turned as GPT-4's": (both(300, 0.35), []),
    "both orders, turned as GPT-3.5's": (both(300, 0.54), ["turned"]),
    "two thirds without a verdict": (won(20, 1.0, 40), ["unread"]),
    "half of twelve": (won(6, 0.5, 6), ["unread"]),
    "one of 300": (won(299, 0.5, 1), []),
    "three of 302, all others won": (won(299, 1.0, 3), ["unread"]),
    "one of twelve": (won(11, 0.5, 1), []),
    "coin flips": ([label(i, i % 2, source="noise" if i % 3 else "judge") for i in range(30)], ["noise"]),
}


@pytest.mark.parametrize("case", CASES)
def test_faults_are_flagged_and_what_judges_of_repute_do_is_not(case: str) -> None:
    rows, flags = CASES[case]
    assert [flag.name for flag in counted(rows).flags()] == flags


def counted(rows: Iterable[JudgedPair], shown: Mapping[str, float] | None = None) -> JudgeTally:
    tally = JudgeTally()
    for row in rows:
        tally.add(row, shown)
    return tally


def test_the_share_of_the_first_shown_is_none_of_the_better_system() -> None:
    rows = [label(i, float(i % 4 > 0), "12") for i in range(100)] + [label(i, 0.25, "21") for i in range(100, 400)]
    first = counted(rows).biases()["prefers_first_shown"]
    assert first is not None
    assert (first.value, first.n) == (pytest.approx((0.75 + 0.25) / 2), 400)
    assert counted(rows[:100]).biases()["prefers_first_shown"] is None


@pytest.mark.parametrize(
    ("shown", "p2", "flags"),
    [
        ({"ab": 0.98, "ba": 0.97}, 0.505, ["place", "turned"]),  # no draw, and nothing but place
        ({"ab": 0.5, "ba": 0.5}, 0.5, []),  # two draws
        ({"ab": 0.9, "ba": 0.2}, 0.85, []),
        ({"ab": 1.0}, 0.5, ["turned"]),  # an answer is lost: the label tells
    ],
)
def test_of_both_orders_the_choice_in_each_counts(shown: Mapping[str, float], p2: float, flags: list[str]) -> None:
    rows = [label(i, 1 - p2, "both") for i in range(100)]
    assert [flag.name for flag in counted(rows, shown).flags()] == flags


def test_a_flag_on_missing_verdicts_says_what_they_could_do() -> None:
    [flag] = counted(won(20, 1.0, 40)).flags()
    assert flag.sentence == (
        "40 of 60 pairs have no verdict: the win rate is of the other 20; all lost or all won, it is 33.3 or 100.0 %"
    )


JUDGE = {"win_rate": 55.5, "standard_error": 1.7, "n_total": 805}


@pytest.mark.parametrize(
    ("judge", "name", "metrics", "says"),
    [
        (
            JUDGE,
            "gold",
            {"gold": 0.1, "gold_reference": 0.6, "gold_difference": -0.51, "gold_difference_se": 0.08},
            "the judge and gold disagree: 55.5 % won by the judge, and gold is 0.510 ± 0.080 below the reference",
        ),
        (
            JUDGE,
            "length_controlled",
            {"length_controlled_winrate": 44.0, "lc_sampling_error": 1.8},
            "the judge and length_controlled disagree: 55.5 % won by the judge, and 44.0 % ± 1.8 by length_controlled",
        ),
        (
            {**JUDGE, "win_rate": 40.0},
            "reward",
            {"reward": 2.0, "reward_difference": 0.4, "reward_difference_se": 0.1},
            "the judge and reward disagree: 40.0 % won by the judge, and reward is 0.400 ± 0.100 above the reference",
        ),
        (JUDGE, "gold", {"gold": 0.1, "gold_difference": 0.51, "gold_difference_se": 0.08}, ""),
        (JUDGE, "gold", {"gold": 0.1, "gold_difference": -0.1, "gold_difference_se": 0.08}, ""),
        (JUDGE, "length_controlled", {"length_controlled_winrate": 44.0, "lc_sampling_error": None}, ""),
        ({**JUDGE, "win_rate": 51.0}, "gold", {"gold": 0.1, "gold_difference": -0.5, "gold_difference_se": 0.1}, ""),
        (JUDGE, "words", {"words": 3.0, "words_warning": "too {few}"}, "words: too {few}"),
    ],
)
def test_an_evaluator_on_the_other_side_of_even_contradicts_the_judge(
    judge: Mapping[str, Any], name: str, metrics: Mapping[str, Any], says: str
) -> None:
    assert [flag.sentence for flag in evaluator_flags({"win_rate": judge, name: metrics})] == [says] * bool(says)


@pytest.mark.parametrize(
    ("summary", "count"),
    [
        ({"eval_accuracy": 0.3, "eval_pairs": 100.0}, 30),
        ({"eval_accuracy": 0.0, "eval_pairs": 20.0}, 0),
        ({"eval_accuracy": 0.45, "eval_pairs": 2000.0}, 900),
        ({"eval_accuracy": 0.45, "eval_pairs": 100.0}, None),
        ({"eval_accuracy": 0.0, "eval_pairs": 1.0}, None),
        ({"eval_accuracy": 0.5, "eval_pairs": 1000.0}, None),
        ({"eval_accuracy": 0.7, "eval_pairs": 1000.0}, None),
        ({"eval_accuracy": "NaN", "eval_pairs": 1000.0}, None),
        ({"eval_accuracy": 0.1, "eval_pairs": 0.0}, None),
        ({"eval_accuracy": 0.1}, None),
        ({}, None),
    ],
)
def test_a_reward_model_that_is_surely_worse_than_chance_is_flagged(summary: dict[str, Any], count: int | None) -> None:
    found = [(flag.name, flag.count, flag.of) for flag in reward_flags(summary)]
    assert found == ([] if count is None else [("below_chance", count, round(summary["eval_pairs"]))])
    if count:
        [flag] = reward_flags(summary)
        assert f"worse than chance: it agrees with {count} of {flag.of} held-out labels" in flag.sentence


def test_a_judge_that_only_draws_is_flagged() -> None:
    """Else its 50 % looks like a finding: a rubric that no answer meets, marks that are all alike."""

    def said(draws: int, of: int) -> list[str]:
        tally = JudgeTally()
        for n in range(of):
            pair = Pair(Instruction(f"Task {n}"), "one", "two")
            p2, outcome = (None, "draw") if n < draws else (1.0, "decided")
            tally.add(JudgedPair(pair, Preference(pair.id, p2, outcome, order="12" if n % 2 else "21")))
        return [flag.sentence for flag in tally.flags() if flag.name == "drawn"]

    assert said(40, 40) == ["40 of 40 verdicts are draws: the judge hardly tells two outputs apart"]
    assert said(36, 40) == []  # nine of ten may be
    assert said(19, 19) == []  # too few to say so
