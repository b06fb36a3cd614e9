"""Coefficients and abilities, by hand and beside crowd-kit."""

from __future__ import annotations

import numpy as np
import pytest
from afarm_people.raters import cohens_kappa, estimate_truth, krippendorffs_alpha, mean_kappa


def crowd(raters: int, pairs: int, right: list[float], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Votes of raters who are right with probabilities `right`, a third of them missing; and the truth."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(3, size=pairs)
    wrong = (truth + rng.integers(1, 3, (raters, pairs))) % 3
    votes = np.where(rng.random((raters, pairs)) < np.array(right)[:, None], truth, wrong)
    votes[rng.random((raters, pairs)) < 1 / 3] = -1
    votes[0, (votes < 0).all(0)] = 0
    return votes, truth


def test_abilities_are_found_and_a_random_rater_is_told() -> None:
    votes, truth = crowd(5, 400, [0.95, 0.85, 0.75, 0.6, 1 / 3], seed=0)
    found = estimate_truth(votes)
    assert found.ability == pytest.approx([0.95, 0.85, 0.75, 0.6, 1 / 3], abs=0.07)
    most = np.array([np.bincount(votes[votes[:, pair] >= 0, pair], minlength=3).argmax() for pair in range(400)])
    assert (found.answers.argmax(1) == truth).mean() > (most == truth).mean()
    cast = (votes >= 0).sum(0)
    alike = (np.where(votes < 0, votes.max(0), votes) == votes.max(0)).all(0) & (cast > 2)
    split = ~alike & (cast == 2)
    assert found.difficulty[alike].mean() < 0.05 < found.difficulty[split].mean()


def test_a_fixed_point_by_hand() -> None:
    """Two raters of two pairs, who agree on the first: one round from shares of votes is the fixed point."""
    found = estimate_truth([[0, 0], [0, 1]], kinds=2)
    assert found.answers == pytest.approx(np.array([[1, 0], [0.5, 0.5]]))
    assert found.shares == pytest.approx([0.75, 0.25])
    assert found.confusion == pytest.approx(np.array([[[1, 0], [1, 0]], [[2 / 3, 1 / 3], [0, 1]]]))
    assert found.ability == pytest.approx([0.75, 0.75])
    assert found.difficulty == pytest.approx([0, 0.5])


def test_who_had_no_part_in_the_truth_is_rated_by_it() -> None:
    """Truths (1, 0) and (0.5, 0.5), shares 0.75 and 0.25: right in 1 of 1.5 and in 0.5 of 0.5."""
    found = estimate_truth([[0, 0], [0, 1]], kinds=2)
    assert found.rate([0, 1]) == pytest.approx(0.75 * 1 / 1.5 + 0.25 * 0.5 / 0.5)
    assert found.rate([-1, -1]) == pytest.approx(0.5)


def test_a_judges_own_votes_do_not_rate_it() -> None:
    """Two people who split, and a judge that sides with the first: nobody says who is right."""
    first, second = [0, 1, 2] * 20, [1, 2, 0] * 20
    found = estimate_truth([first, second])
    assert found.rate(first) == pytest.approx(found.rate(second))
    assert estimate_truth([first, second, first]).ability[2] > found.rate(first) + 0.3  # as it would rate itself


def test_a_pair_without_votes_is_refused() -> None:
    with pytest.raises(ValueError, match="without any vote"):
        estimate_truth([[0, -1], [1, -1]])


def test_as_crowd_kit() -> None:
    """Ten rounds of crowd-kit 1.4.2 (`DawidSkene(n_iter=10, tol=0)`), whose figures these are."""
    votes = [
        [0, -1, 1, 0, -1, 0, 0, 0, 0, 2],
        [2, 0, 1, 0, 0, 0, 0, 0, 0, 2],
        [2, 2, 0, -1, 0, 0, 0, -1, 2, 2],
        [2, -1, 0, 1, 0, 1, -1, 2, 0, -1],
    ]
    theirs = np.zeros((10, 3))
    theirs[[3, 5, 6, 8], 0] = theirs[2, 1] = theirs[[0, 9], 2] = 1
    theirs[1], theirs[7] = (0.96139298, 0, 0.03860702), (0.95918307, 0, 0.04081693)
    theirs[4] = 0.9966097, 0.0033903, 0
    assert estimate_truth(votes, rounds=10, tolerance=0).answers == pytest.approx(theirs, abs=1e-8)


def test_coefficients_of_known_tables() -> None:
    # 20 yes-yes, 5 yes-no, 10 no-yes, 15 no-no: observed 0.7, by chance 0.5, kappa 0.4
    one = [1] * 25 + [0] * 25
    other = [1] * 20 + [0] * 5 + [1] * 10 + [0] * 15
    assert cohens_kappa(one, other) == pytest.approx(0.4)
    assert np.isnan(cohens_kappa([1, 1], [1, 1]))
    assert np.isnan(cohens_kappa([1, -1], [-1, 1]))
    # Two raters, four pairs, one disagreement: Do = 1/4, De = 1 - (5·4 + 3·2)/(8·7), alpha = 1 - Do/De
    assert krippendorffs_alpha([[0, 0, 1, 0], [0, 0, 1, 1]], "nominal") == pytest.approx(1 - 0.25 / (1 - 26 / 56))
    assert np.isnan(krippendorffs_alpha([[0, 0], [0, 0]]))
    assert mean_kappa([one, other, [-1] * 50])[:2] == pytest.approx([0.4, 0.4])
    assert np.isnan(mean_kappa([one, other, [-1] * 50])[2])
