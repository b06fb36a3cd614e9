"""The fit of a pool to people: known parameters come back, what labels do not tell stays, bad labels are refused."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from afarm.core.errors import DataError
from afarm.core.records import Instruction, JudgedPair, Pair, Preference
from afarm_plugins.calibration.fit import (
    Labelled,
    PoolVerdicts,
    fit_pool,
    loss_and_gradient,
    predict_held_out,
    split_half,
)
from afarm_plugins.calibration.held_out import (
    agreement_of_people,
    ceiling,
    loss_per_label,
    mean_gap,
    sure_bins,
)
from afarm_plugins.calibration.people import PeoplesLabels, is_for_second, read_peoples_labels
from afarm_plugins.calibration.settings import CalibrateConfig
from afarm_plugins.calibration.study import calibrate_pool

ROLES = ["strong"] * 3 + ["light"] * 3
NAMES = [f"{role}_{number}" for number, role in enumerate(ROLES)]


def person_label(pair: Pair, second: bool, shown: int) -> JudgedPair:
    """Label `pair`, whose second output was shown first if `shown` is 1, its first if -1."""
    return JudgedPair(pair, Preference(pair.id, float(second), order={-1: "12", 0: "", 1: "21"}[shown]))


def world(
    count: int,
    noise: float = 0.1,
    strong: float = 0.5,
    length: float = 0.0,
    position: float = 0.0,
    is_shown: bool = True,
    people: int = 1,
    seed: int = 0,
) -> tuple[list[JudgedPair], PoolVerdicts]:
    """Pairs whose people are a calibrated pool: each of them draws a member, its verdict, and the label of it.

    Members of a role have one probability per pair; roles know nothing of each other.
    """
    draw = np.random.default_rng(seed)
    pairs = [
        Pair(Instruction(f"say {n}"), "a" * draw.integers(5, 200), "b" * draw.integers(5, 200), 0, "one", "other")
        for n in range(count)
    ]
    pairs.sort(key=lambda pair: pair.id)
    by_role = {role: draw.beta(0.3, 0.3, size=count) for role in ("strong", "light")}
    p = np.stack([by_role[role] for role in ROLES], axis=1)
    wins = (draw.random((count, len(ROLES), 2)) < p[:, :, None]).astype(float)
    labels = []
    for number, pair in enumerate(pairs):
        for _ in range(people):
            role = "strong" if draw.random() < strong else "light"
            verdict = draw.random() < by_role[role][number]
            shown = int(draw.choice([-1, 1])) if is_shown else 0
            ratio = math.log2((1 + len(pair.output_2)) / (1 + len(pair.output_1)))
            odds = (1 if verdict else -1) * math.log((1 - noise) / noise) + length * ratio + position * shown
            labels.append(person_label(pair, bool(draw.random() < 1 / (1 + math.exp(-odds))), shown))
    return labels, PoolVerdicts(NAMES, ROLES, [1] * len(ROLES), wins)


def test_the_gradient_is_that_of_the_loss() -> None:
    labels, pool = world(60, length=0.5, position=0.5)
    data = Labelled.of(labels, pool)
    draw = np.random.default_rng(1)
    theta, counts = draw.normal(size=len(data.kinds)) / 2, draw.integers(0, 3, size=len(labels)).astype(float)
    gradient = loss_and_gradient(theta, data, counts)[1]
    for place in range(len(theta)):
        step = np.eye(len(theta))[place] * 1e-6
        ends = [loss_and_gradient(theta + sign * step, data, counts)[0] for sign in (1, -1)]
        assert gradient[place] == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-4, abs=1e-5)


def test_known_parameters_come_back() -> None:
    labels, pool = world(3000, noise=0.1, strong=0.8, length=0.6, position=-0.5)
    fit = fit_pool(Labelled.of(labels, pool))
    weights, noise, length, position = fit.calibration
    assert weights[:3].sum() == pytest.approx(0.8, abs=0.06)
    assert noise == pytest.approx(0.1, abs=0.03)
    assert length == pytest.approx(0.6, abs=0.12)
    assert position == pytest.approx(-0.5, abs=0.12)


def test_chance_of_verdicts_is_not_counted_as_noise_of_people() -> None:
    """Two members with much chance of their own; without ρ the fit would flip far more than people do."""
    labels, pool = world(4000, noise=0.05, strong=1.0, is_shown=False)
    pool = PoolVerdicts(NAMES[:1], ROLES[:1], [1], pool.wins[:, :1])
    data = Labelled.of(labels, pool)
    assert data.reliability == pytest.approx(0.25 / (1 + 2 * 0.3) / 0.25, abs=0.04), "Var(p) / Var(verdict), of a beta"
    assert fit_pool(data).calibration[1] == pytest.approx(0.05, abs=0.03)
    plain = replace(data, verdicts=pool.wins[data.pair].mean(axis=2))
    assert fit_pool(plain).calibration[1] > 0.12


def test_what_labels_do_not_tell_stays_at_its_prior() -> None:
    labels, pool = world(300, is_shown=False)
    pool.wins[:, 3:] = pool.wins[:, :3]  # both roles say the same
    fit = fit_pool(Labelled.of(labels, pool))
    assert not fit.free[:8].any()
    assert fit.theta[:8].tolist() == [0.0] * 8, "weights are equal"
    assert not fit.free[-1], "nobody knows what people saw first"
    assert fit.theta[-1] == 0
    assert fit.free[-3], "noise is told"
    even = [person_label(Pair(label.pair.instruction, "one", "two"), is_for_second(label), 0) for label in labels]
    assert not fit_pool(Labelled.of(even, pool)).free[-2], "all outputs are as long"


def test_held_out_labels_are_predicted_better_than_by_the_prior_and_their_own_fold_is_not_seen() -> None:
    labels, pool = world(400, noise=0.05, length=0.8, strong=0.9)
    data = Labelled.of(labels, pool)
    folds = np.arange(400) % 4
    p = predict_held_out(data, folds)
    prior = 0.25 + 0.5 * data.verdicts.mean(axis=1)
    assert loss_per_label(p, data.second).mean() < loss_per_label(prior, data.second).mean() - 0.1
    turned = replace(data, second=np.where(folds == 0, 1 - data.second, data.second))
    assert predict_held_out(turned, folds)[folds == 0].tolist() == p[folds == 0].tolist()


def test_bins_and_their_gap_by_hand() -> None:
    p = np.array([0.95, 0.05, 0.95, 0.65])
    second = np.array([1.0, 0.0, 0.0, 0.0])
    bins = sure_bins(p, second, np.arange(4))
    assert [(b.predicted, b.observed.value, b.labels) for b in bins] == [
        (pytest.approx(0.65), 0.0, 1),
        (pytest.approx(0.95), pytest.approx(2 / 3), 3),
    ]
    assert mean_gap(bins) == pytest.approx((0.65 + 3 * (0.95 - 2 / 3)) / 4)


def test_peoples_agreement_sets_a_ceiling() -> None:
    pair, other = (Pair(Instruction(name), "a", "b") for name in ("x", "y"))
    votes = [person_label(pair, True, 0)] * 2 + [person_label(pair, False, 0), person_label(other, True, 0)]
    found = agreement_of_people(votes)
    assert found is not None
    assert found.value == pytest.approx(1 / 3), "one of three couples; the other pair has one label"
    assert agreement_of_people(votes[:1]) is None
    assert ceiling(1.0) == 1.0
    assert ceiling(0.5) == 0.5
    assert ceiling(0.68) == pytest.approx(0.8), "all pairs at 0.8: 0.64 + 0.04"


def test_split_half_by_hand() -> None:
    wins = np.array([[[1.0, 1.0]], [[0.0, 0.0]], [[1.0, 0.0]], [[0.0, 1.0]]])
    assert split_half(wins, np.ones(1)) == pytest.approx(0.05), "half agree: as often as by chance"
    assert split_half(wins[:2], np.ones(1)) == 1.0
    assert split_half(wins[:3], np.ones(1)) == pytest.approx(0.5)


def rows(count: int, preference: object, **more: object) -> list[dict[str, object]]:
    return [
        {"instruction": f"say {n}", "output_1": "one", "output_2": f"two {n}", "preference": preference, **more}
        for n in range(count)
    ]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (rows(10, 1) + rows(10, 2), "20 labels on 10 instructions choose an output: too few"),
        (rows(60, 2), "all 60 labels are for output_2"),
        (rows(60, 1.5), "0 labels on 0 instructions choose an output (left out: 60 draws)"),
        (rows(30, 3), "field 'preference' is 3"),
    ],
)
def test_labels_that_tell_nothing_are_refused(given: list[dict[str, object]], reason: str, tmp_path: Path) -> None:
    path = tmp_path / "people.json"
    path.write_text(json.dumps(given))
    with pytest.raises(DataError) as refused:
        read_peoples_labels([str(path)], "unknown")
    assert reason in str(refused.value)
    assert str(path) in str(refused.value)


def test_several_people_per_row_and_the_order_they_saw(tmp_path: Path) -> None:
    given = [
        {"instruction": f"say {n}", "response1": "b", "response2": "a", "annotator1": 1, "annotator2": 2 - n % 2}
        for n in range(40)
    ]
    given[0]["order"] = "21"
    path = tmp_path / "people.json"
    path.write_text(json.dumps(given))
    labels = read_peoples_labels([str(path)], "output_1").labels
    assert len(labels) == 80
    first = labels[0]
    assert is_for_second(first), "b, the canonical second, is response1, and won"
    assert (first.preference.order, labels[2].preference.order) == ("12", "21"), (
        "a was shown first in row 0, b in the others"
    )


def test_people_who_disagree_are_told_apart_from_noise_of_the_pool() -> None:
    labels, pool = world(150, noise=0.5, people=3, seed=4)
    found = calibrate_pool(PeoplesLabels(labels, Counter(draws=3)), pool, CalibrateConfig(resamples=20))
    text = " ".join(found.notes)
    assert "cannot be told from chance" in text
    assert "Left out: 3 draws." in text
    calm, pool = world(150, noise=0.02, strong=1.0, people=3, seed=4)
    text = " ".join(calibrate_pool(PeoplesLabels(calm), pool, CalibrateConfig(resamples=20)).notes)
    assert "cannot be told from chance" not in text
    assert "No annotator can agree with one person on more than" in text
