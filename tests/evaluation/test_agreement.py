"""Every figure about an annotator, against numbers worked by hand."""

from __future__ import annotations

import csv
import math
from typing import Any

import pytest
from places import SHARED_DATA

from afarm.evaluation.agreement import AnnotatorReport, Profile, compare_annotators, mode, win_rates
from afarm.evaluation.biases import family_of_judge, find_family, has_list
from afarm.evaluation.labels import HUMANS, Label, by_pair
from afarm.evaluation.metrics import Estimate, clustered_mean, pearson, rank_transform

LEADERBOARD = SHARED_DATA / "alpaca_eval" / "evaluators_leaderboard.csv"


def labels(annotator: str, preferences: dict[str, list[float | None]], **fields: Any) -> list[Label]:
    """Labels as files have them (1, 2, 1.5 for a draw, None), by pair."""
    return [
        Label(pair, annotator, None if p is None else p - 1, True, **({"output_1": "one", "output_2": "two"} | fields))
        for pair, given in preferences.items()
        for p in given
    ]


def profile_of(comparison: AnnotatorReport, name: str) -> Profile:
    return next(p for p in comparison.profiles if p.annotator == name)


def compared(people: dict[str, list[float | None]], own: dict[str, list[float | None]]) -> AnnotatorReport:
    return compare_annotators({HUMANS: labels(HUMANS, people), "judge": labels("judge", own)})


def about(figure: Estimate | None, value: float, n: int, error: float | None = None) -> bool:
    assert figure is not None
    assert figure.value == pytest.approx(value)
    assert figure.n == n
    assert error is None or figure.error == pytest.approx(error)
    return True


PEOPLE: dict[str, list[float | None]] = {"p": [1, 1, 1, 2], "q": [2, 2, 2, 2], "r": [1, 1, 2, 2]}
"""Modes: 1, 2, and a tie."""


def test_agreement_is_one_label_against_the_majority_and_a_tie_counts_half() -> None:
    judge = profile_of(compared(PEOPLE, {"p": [1], "q": [1], "r": [1], "unseen": [2]}), "judge")
    # 1, 0 and 1/2; standard deviation 1/2 over the root of 3
    assert about(judge.agreement, 50, 3, 100 * 0.5 / math.sqrt(3))


def test_a_persons_agreement_is_with_the_majority_of_the_others() -> None:
    people = profile_of(compared(PEOPLE, {"p": [1]}), HUMANS)
    # p: each 1 against {1,1,2} agrees, the 2 against {1,1,1} does not: 3/4. q: 4/4. r: 1 against {1,2,2}: 0/4.
    assert about(people.agreement, 100 * (3 + 4 + 0) / 12, 12)
    assert about(people.variance, 100 * 5 / 12, 12)
    assert about(people.bias, 0, 3)


def test_variance_is_leave_one_out_and_a_tie_among_the_others_counts_half() -> None:
    judge = profile_of(compared(PEOPLE, {"p": [1, 1, 2], "q": [2, 2, 2], "r": [1]}), "judge")
    # p: 1 against {1,2}: 1/2, again 1/2, 2 against {1,1}: 1. q: 0. r has no other label.
    assert about(judge.variance, 100 * 2 / 6, 6)
    # By pair, residuals sum to 3(2/3 - 1/3) = 1 and -1: sqrt((1 + 1)·2/1)/6 = 1/3.
    assert judge.variance is not None
    assert judge.variance.error == pytest.approx(100 / 3)


def test_bias_is_the_error_of_the_majority_and_needs_three_labels() -> None:
    own: dict[str, list[float | None]] = {"p": [2, 2, 1], "q": [2, 2, 1], "r": [1, 1, 1], "x": [1, 1, 1]}
    assert about(profile_of(compared(PEOPLE, own), "judge").bias, 100 * (1 + 0 + 0.5) / 3, 3)
    two: dict[str, list[float | None]] = {pair: given[:2] for pair, given in own.items()}
    assert profile_of(compared(PEOPLE, two), "judge").bias is None


def test_a_draw_is_a_choice_of_its_own_and_weighted_labels_are_what_they_lean_to() -> None:
    judge = profile_of(compared(PEOPLE, {"p": [1.5, 1.2], "q": [1.9, 1.4]}), "judge")
    assert about(judge.agreement, 50, 4)
    drawn = profile_of(compared({"p": [1.5, 1.5, 1]}, {"p": [1.5]}), "judge")
    assert about(drawn.agreement, 100, 1)


def test_what_was_not_read_is_counted_and_left_out_of_the_rest() -> None:
    judge = profile_of(compared(PEOPLE, {"p": [1, None], "q": [None, None]}), "judge")
    assert (judge.pairs, judge.labels, judge.parsed) == (2, 4, 1)
    assert about(judge.unparsed, 75, 4)
    assert about(judge.agreement, 100, 1)
    assert judge.variance is None


def test_prefers_first_is_2_less_the_mean_preference() -> None:
    judge = profile_of(compare_annotators({"judge": labels("judge", {"p": [1, 2], "q": [1.5, 1.25]})}), "judge")
    assert about(judge.prefers_first, 2 - (1 + 2 + 1.5 + 1.25) / 4, 4)
    assert judge.prefers_first_shown is None


def test_prefers_first_shown_follows_the_order_that_was_shown() -> None:
    given = [*labels("judge", {"p": [2], "q": [2], "r": [1]}, shown_first=2), *labels("judge", {"s": [1]})]
    judge = profile_of(compare_annotators({"judge": given}), "judge")
    assert about(judge.prefers_first_shown, 2 / 3, 3)
    assert about(judge.prefers_first, 2 / 4, 4)


def test_longer_counts_only_over_30_characters_and_only_choices() -> None:
    given = [
        *labels("judge", {"p": [2]}, output_1="x", output_2="x" * 32),  # 31 more: chosen
        *labels("judge", {"q": [2]}, output_1="x" * 32, output_2="x"),  # 31 more: not chosen
        *labels("judge", {"r": [2]}, output_1="x", output_2="x" * 31),  # 30 more: does not count
        *labels("judge", {"s": [1.5, None]}, output_1="x", output_2="x" * 99),
    ]
    assert about(profile_of(compare_annotators({"judge": given}), "judge").prefers_longer, 0.5, 2)


def test_lists_count_only_where_exactly_one_output_has_one() -> None:
    a_list = "They are:\n- one\n- two"
    given = [
        *labels("judge", {"p": [2, 2, 1]}, output_1="one and two", output_2=a_list),
        *labels("judge", {"q": [1]}, output_1=a_list, output_2="1. one\n2. two"),
        *labels("judge", {"r": [1]}, output_1="one", output_2="two - three"),
    ]
    assert about(profile_of(compare_annotators({"judge": given}), "judge").prefers_lists, 2 / 3, 3)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1. one\n2. two", True),
        ("* one\n\n* two", True),
        ("a) one\nb) two", True),
        ("  • one\n  • two", True),
        ("1. Only one point.", False),
        ("well-known\nself-made", False),
        ("-5 degrees\n-7 degrees", False),
        ("", False),
    ],
)
def test_a_list_is_two_items_at_the_start_of_lines(text: str, expected: bool) -> None:
    assert has_list(text) == expected


def test_own_family_counts_where_exactly_one_output_is_of_it() -> None:
    given = [
        *labels("gpt-4", {"p": [2, 2]}, generator_1="claude-2", generator_2="gpt-3.5-turbo"),
        *labels("gpt-4", {"q": [2]}, generator_1="text_davinci_003", generator_2="vicuna-13b"),
        *labels("gpt-4", {"r": [1]}, generator_1="gpt4", generator_2="text_davinci_003"),
        *labels("gpt-4", {"s": [1]}, generator_1="gpt4", generator_2="somebody"),
    ]
    assert about(profile_of(compare_annotators({"gpt-4": given}), "gpt-4").prefers_own_family, 2 / 3, 3)
    named = compare_annotators({"gpt-4": given}, {"somebody": "meta"})
    assert about(profile_of(named, "gpt-4").prefers_own_family, 3 / 4, 4)
    assert profile_of(compare_annotators({"me": given}), "me").prefers_own_family is None


def test_a_name_that_tells_two_families_tells_none() -> None:
    assert find_family("alpaca_eval_gpt4", {}) is None
    assert find_family("alpaca_eval_gpt4", {"alpaca_eval_gpt4": "openai"}) == "openai"
    assert find_family("chatgpt_3", {}) == "openai"
    assert find_family("longest", {}) is None


def test_price_and_time_are_from_an_annotators_own_rows() -> None:
    people = labels(HUMANS, {"p": [1], "q": [1]}, price=0.3, seconds=36.8)
    judge = [
        *labels("judge", {"p": [1]}, price=0.01, seconds=1.0),
        *labels("judge", {"q": [1]}, price=0.03, seconds=3.0),
        *labels("judge", {"r": [1]}),
    ]
    found = compare_annotators({HUMANS: people, "judge": judge})
    assert about(profile_of(found, HUMANS).price, 300, 2, 0)
    assert about(profile_of(found, "judge").price, 20, 2, 10)  # deviation 0.01·√2 over √2
    assert about(profile_of(found, "judge").seconds, 2000, 2)


def test_mutual_agreement_counts_each_pair_once_and_its_diagonal_two_labels_of_one() -> None:
    found = compared({"p": [1, 1, 2], "q": [2]}, {"p": [1, 2], "q": [2], "x": [1]})
    # p: of 6 combinations (1,1,2)×(1,2), 3 are equal; q: 1 of 1.
    assert about(found.agreement("judge", HUMANS), 75, 2, 100 * 0.5 / 2)
    assert about(found.agreement(HUMANS, HUMANS), 100 / 3, 1)
    assert about(found.agreement("judge", "judge"), 0, 1)
    assert found.agreement("judge", "nobody") is None


def test_a_pair_the_other_way_round_is_the_same_pair() -> None:
    swapped = [Label("p", "judge", 1.0, False, "two", "one")]
    people = labels(HUMANS, {"p": [1, 1, 1]})
    assert about(profile_of(compare_annotators({HUMANS: people, "judge": swapped}), "judge").agreement, 100, 1)


def test_correlations_are_of_systems_win_rates_over_the_pairs_that_both_judged() -> None:
    def judged(annotator: str, wins: dict[str, list[float | None]]) -> list[Label]:
        return [
            Label(f"{system} {i}", annotator, p, True, "x", "y", "reference", system)
            for system, given in wins.items()
            for i, p in enumerate(given)
        ]

    people = judged(HUMANS, {"a": [0, 0], "b": [0, 1], "c": [1, 1]})
    judge = judged("judge", {"a": [0, 0.5], "b": [0, 0], "c": [1, 0.5], "d": [1]})
    assert win_rates(people) == {"a": 0, "b": 0.5, "c": 1}
    found = profile_of(compare_annotators({HUMANS: people, "judge": judge}), "judge")
    assert about(found.spearman, 0.5, 3)  # ranks 2, 1, 3 against 1, 2, 3
    # 0.25, 0, 0.75 against 0, 0.5, 1: 0.25 / sqrt(0.2916667 · 0.5)
    assert about(found.pearson, 0.25 / math.sqrt(0.875 / 3 * 0.5), 3)


def test_ranks_share_their_mean_and_what_does_not_vary_correlates_with_nothing() -> None:
    assert rank_transform([3, 1, 3, 2]) == [3.5, 1, 3.5, 2]
    assert pearson([1, 1, 1], [1, 2, 3]) is None


def test_errors_are_those_of_independent_pairs_not_labels() -> None:
    once = clustered_mean([("p", 0.0), ("q", 1.0), ("r", 1.0)])
    copied = clustered_mean([(pair, v) for pair, v in (("p", 0.0), ("q", 1.0), ("r", 1.0)) for _ in range(4)])
    assert once is not None
    assert copied is not None
    assert once.error == pytest.approx(math.sqrt(1 / 3) / math.sqrt(3))  # std(0, 1, 1; ddof 1) = √(1/3)
    assert copied.error == pytest.approx(once.error)
    assert clustered_mean([]) is None
    assert clustered_mean([("p", 1.0)]) == Estimate(1.0, None, 1)


def test_mode_of_nothing_is_nothing() -> None:
    assert mode([]) == {}
    assert mode(["low", "high", "low"]) == {"low": 1.0}
    assert by_pair([]) == {}


def test_without_people_what_needs_none_is_there() -> None:
    judge = profile_of(compare_annotators({"judge": labels("judge", {"p": [1, 2]})}), "judge")
    assert (judge.agreement, judge.bias, judge.spearman) == (None, None, None)
    assert judge.variance is not None
    assert judge.prefers_first is not None


@pytest.mark.skipif(not LEADERBOARD.is_file(), reason="needs ../shared/data/alpaca_eval/evaluators_leaderboard.csv")
def test_the_published_columns_mean_the_same_here() -> None:
    """The people's labels are not published with them, so rows are checked that follow from the definitions alone."""
    with LEADERBOARD.open() as handle:
        published = {row[""]: row for row in csv.DictReader(handle)}
    lengths = [(40 * i % 700 + 5, 90 * i % 640) for i in range(60)]
    longest = [
        Label(str(i), "longest", float(b > a), True, "x" * a, "y" * b, price=0.0, seconds=0.0)
        for i, (a, b) in enumerate(lengths)
        for _ in range(4)
    ]
    people = [Label(str(i), HUMANS, float((i * 7 + k * k) % 3 > 0), True, "", "") for i in range(60) for k in range(4)]
    found = compare_annotators({HUMANS: people, "longest": longest})
    row, ours = published["longest"], profile_of(found, "longest")
    for column, figure in {
        "Price [$/1000 examples]": ours.price,
        "Time [seconds/1000 examples]": ours.seconds,
        "Variance": ours.variance,
        "Proba. prefer longer": ours.prefers_longer,
    }.items():
        assert figure is not None
        assert figure.value == pytest.approx(float(row[column]))
    # An annotator without variance is wrong exactly where its majority is: agreement and bias add up to 100.
    assert float(row["Human agreement"]) + float(row["Bias"]) == pytest.approx(100)
    assert ours.agreement is not None
    assert ours.bias is not None
    assert ours.agreement.value + ours.bias.value == pytest.approx(100)
    # A person's agreement with the majority of the others is what variance leaves.
    human, theirs = published["humans"], profile_of(found, HUMANS)
    assert float(human["Bias"]) == 0
    assert float(human["Human agreement"]) + float(human["Variance"]) == pytest.approx(100, abs=0.01)
    assert theirs.agreement is not None
    assert theirs.variance is not None
    assert theirs.agreement.value + theirs.variance.value == pytest.approx(100)


@pytest.mark.parametrize(
    ("judge", "family"),
    [
        ("openai:gpt-4.1[temperature=0.5]", "openai"),
        ("anthropic:claude-opus-5-5", "anthropic"),
        ("openai-compatible:meta-llama/Llama-3.1-8B@https://api.openai.example/v1", "meta"),
        ("openai-compatible:Qwen/Qwen3-8B@http://localhost:8000/v1", "qwen"),
        ("local:gemma-3-1b@0123456789ab", "google"),
        ("local:DeepSeek-R1-Distill-Llama-8B@0123456789ab", None),
        ("offline:text_utility@0123456789ab", None),
        ("fitted:labels of gpt4@0123456789ab", None),
    ],
)
def test_the_family_of_a_judge_is_its_vendors_or_its_models(judge: str, family: str | None) -> None:
    assert family_of_judge(judge, {}) == family
    assert family_of_judge(judge, {judge: "mine"}) == "mine"
