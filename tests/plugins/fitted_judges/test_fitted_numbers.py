"""Numbers of a fitted judge by hand: the logistic fit, its folds, and what it is measured by."""

from __future__ import annotations

import math

import numpy as np
import pytest

from afarm import Instruction, Pair
from afarm_plugins.fitted_judges.features import FEATURES, feature_values
from afarm_plugins.fitted_judges.labelled_pairs import LabelledPair, deal_folds
from afarm_plugins.fitted_judges.logistic import fit_ridged, fit_temperature, fit_weights, out_of_fold, sigmoid
from afarm_plugins.fitted_judges.measures import bootstrap_intervals, credits, longer_leaning, measure, people_agreement


def labelled(number: int, votes: tuple[float, ...], second: str = "b", task: str = "") -> LabelledPair:
    return LabelledPair(Pair(Instruction(task or f"task {number}"), "a", second), votes)


# ------------------------------------------------------------------------------------------------- the logistic fit


def test_the_weight_of_one_feature_is_where_the_ridge_balances_the_labels() -> None:
    """Four pairs won by the larger output: 4 · sigmoid(−w) = ridge · w, which w = ln 3 solves for ridge 1 / ln 3."""
    weights = fit_weights(np.array([[1.0], [1.0], [-1.0], [-1.0]]), np.array([1.0, 1, 0, 0]), 1 / math.log(3))
    assert weights == pytest.approx([math.log(3)], abs=1e-6)


def test_a_soft_label_is_both_labels_each_with_its_share() -> None:
    """Without a ridge to speak of, three labels of four for the larger are log-odds of ln 3."""
    soft = fit_weights(np.array([[1.0], [1.0]]), np.array([0.75, 0.75]), 1e-9)
    votes = fit_weights(np.array([[1.0]] * 4), np.array([1.0, 1, 1, 0]), 1e-9)
    assert soft == pytest.approx([math.log(3)], abs=1e-5)
    assert votes == pytest.approx(soft, abs=1e-5)


def test_weights_are_in_the_units_of_the_features() -> None:
    differences, p2 = np.array([[2.0], [-1.0], [0.5], [1.0]]), np.array([1.0, 0, 0, 1])
    small, large = fit_weights(differences, p2, 1.0), fit_weights(differences * 1000, p2, 1.0)
    assert small == pytest.approx(large * 1000, rel=1e-5)


def test_a_feature_that_never_differs_has_no_weight() -> None:
    weights = fit_weights(np.array([[1.0, 0.0], [-1.0, 0.0]]), np.array([1.0, 0.0]), 1.0)
    assert weights[1] == 0
    assert weights[0] > 0


def test_swapping_every_pair_changes_no_weight() -> None:
    drawn = np.random.default_rng(0)
    differences, p2 = drawn.normal(size=(60, 3)), drawn.random(60)
    assert fit_weights(differences, p2, 1.0) == pytest.approx(fit_weights(-differences, 1 - p2, 1.0), abs=1e-5)


def test_no_pair_is_predicted_by_its_own_folds_labels() -> None:
    """Turning every label of a fold moves the predictions of all other folds, and none of its own."""
    drawn = np.random.default_rng(1)
    differences, folds = drawn.normal(size=(80, 2)), np.arange(80) % 4
    p2 = (differences[:, 0] + drawn.logistic(size=80) > 0).astype(float)
    turned = np.where(folds == 2, 1 - p2, p2)
    before, after = out_of_fold(differences, p2, folds), out_of_fold(differences, turned, folds)
    assert (before[folds == 2] == after[folds == 2]).all()
    assert (before[folds != 2] != after[folds != 2]).all()


def test_pairs_that_may_not_be_learned_from_teach_nothing() -> None:
    drawn = np.random.default_rng(2)
    differences, folds = drawn.normal(size=(90, 2)), np.arange(90) % 3
    p2, usable = (differences[:, 0] > 0).astype(float), np.arange(90) % 2 == 0
    turned = np.where(usable, p2, 1 - p2)
    assert (out_of_fold(differences, p2, folds, usable) == out_of_fold(differences, turned, folds, usable)).all()


def test_labels_without_a_pattern_get_the_largest_ridge_and_hardly_a_weight() -> None:
    drawn = np.random.default_rng(3)
    differences, p2 = drawn.normal(size=(300, 10)), (drawn.random(300) < 0.5).astype(float)
    fitted = fit_ridged(differences, p2, np.arange(300) % 5)
    assert fitted.ridge >= 100
    assert np.abs(fitted.weights).max() < 0.3


def test_the_factor_of_rewards_is_never_below_zero() -> None:
    gaps = np.array([1.0, -1.0, 2.0, -2.0])
    assert fit_temperature(gaps, np.array([1.0, 0, 1, 0])) > 0
    assert fit_temperature(gaps, np.array([0.0, 1, 0, 1])) == 0


def test_the_sigmoid_does_not_overflow() -> None:
    assert sigmoid(np.array([-1e9, 0.0, math.log(3), 1e9])) == pytest.approx([0, 0.5, 0.75, 1])


# ------------------------------------------------------------------------------------------------- folds and measures


def test_folds_are_equal_in_size_and_do_not_depend_on_the_order() -> None:
    ids = [f"id {n}" for n in range(50)]
    folds = deal_folds(ids, 5, seed=0)
    assert sorted(folds.values()) == sorted(list(range(5)) * 10)
    assert deal_folds([*reversed(ids), *ids], 5, seed=0) == folds
    assert deal_folds(ids, 5, seed=1) != folds


def test_credit_is_one_for_the_better_output_and_half_for_no_choice() -> None:
    rows = [labelled(0, (1.0,)), labelled(1, (0.0, 0.0, 1.0)), labelled(2, (1.0,))]
    assert credits(rows, np.array([0.3, 0.3, 0.0])).tolist() == [1.0, 0.0, 0.5]


def test_the_longer_wins_is_by_characters() -> None:
    rows = [labelled(0, (1.0,), "longer"), labelled(1, (1.0,), ""), labelled(2, (1.0,), "b")]
    assert longer_leaning(rows).tolist() == [5.0, -1.0, 0.0]


def test_the_gain_is_over_the_shorter_if_it_wins_more_often() -> None:
    rows = [labelled(0, (1.0,), ""), labelled(1, (1.0,), ""), labelled(2, (0.0,), "")]
    found = measure(rows, np.array([0.9, 0.7, 0.7]))
    assert found.longer.value == pytest.approx(1 / 3)
    assert found.agreement.value == pytest.approx(2 / 3)
    assert found.gain.value == pytest.approx(0), "to always take the shorter is as good"


def test_measures_by_hand() -> None:
    """p = .9 and right, .7 and wrong, .7 and right, for the second, the first and the first output."""
    rows = [labelled(0, (1.0,), "bb"), labelled(1, (1.0,), "bb"), labelled(2, (0.0,), "bb")]
    found = measure(rows, np.array([0.9, 0.3, 0.3]))
    assert found.agreement.value == pytest.approx(2 / 3)
    assert found.longer.value == pytest.approx(2 / 3)
    assert found.gain.value == pytest.approx(0)
    assert found.log_loss == pytest.approx(-(math.log(0.9) + math.log(0.3) + math.log(0.7)) / 3)
    assert found.brier == pytest.approx((0.01 + 0.49 + 0.09) / 3)
    assert [(b.pairs, b.predicted, b.observed) for b in found.reliability] == [
        (2, pytest.approx(0.7), 0.5),
        (1, pytest.approx(0.9), 1.0),
    ]
    assert found.ece == pytest.approx((2 * 0.2 + 0.1) / 3)


def test_the_brier_score_is_over_labels() -> None:
    assert measure([labelled(0, (1.0, 1.0, 0.0))], np.array([0.5])).brier == pytest.approx(0.25)


def test_intervals_resample_instructions_and_not_pairs() -> None:
    """Four instructions with 50 equal pairs each know no more than four pairs."""
    rows = [labelled(n, (1.0,), task=f"task {n % 4}") for n in range(200)]
    credit = np.array([float(n % 4 < 2) for n in range(200)])
    [clustered] = bootstrap_intervals(rows, [credit])
    [apart] = bootstrap_intervals([labelled(n, (1.0,)) for n in range(200)], [credit])
    assert clustered.value == apart.value == 0.5
    assert clustered.high - clustered.low > 0.7
    assert apart.high - apart.low < 0.2


def test_one_annotator_is_measured_against_the_others() -> None:
    """Of (1, 1, 0): each of the first two sees the others torn, and gets one half; the third is alone: 0."""
    found = people_agreement([labelled(0, (1.0, 1.0, 0.0)), labelled(1, (1.0, 1.0, 1.0)), labelled(2, (1.0,))])
    assert found is not None
    assert found.share.value == pytest.approx((1 / 3 + 1) / 2)
    assert found.text().endswith("% of 2 pairs with several")
    assert people_agreement([labelled(0, (1.0,))]) is None


# ------------------------------------------------------------------------------------------------- features


def test_features_by_hand() -> None:
    task = Instruction("Describe trees please", "oak, birch")
    found = feature_values(task, "Sorry, trees grow. Trees grow.\n- oak 12\n- birch?")
    assert found["length"] == pytest.approx(math.log(1 + 48))
    assert found["beyond_the_task"] == pytest.approx(math.log(49 / 33))
    assert found["lines"] == pytest.approx(math.log(3))
    assert found["list_items"] == pytest.approx(math.log(3))
    assert found["repetition"] == 0
    assert found["question"] == found["finished"] == 1
    assert found["overlap"] == pytest.approx(2 / 4)  # of describe, trees, please and birch
    assert found["echo"] == pytest.approx(3 / 6)  # sorry, trees, grow, trees, grow, birch
    assert found["digits"] == pytest.approx(2 / 48)
    assert feature_values(task, "I'm sorry, no")["refusal"] == 1
    assert feature_values(task, "one two three one two three")["repetition"] == pytest.approx(1 / 4)


@pytest.mark.parametrize("text", ["", " ", "\x00", "漢字。", "🙂" * 1000, "a" * 100_000, "\n" * 5000, "- \n" * 5000])
def test_features_of_any_text_are_finite(text: str) -> None:
    for task in (Instruction(""), Instruction(text, text)):
        found = feature_values(task, text)
        assert list(found) == list(FEATURES)
        assert all(map(math.isfinite, found.values()))
