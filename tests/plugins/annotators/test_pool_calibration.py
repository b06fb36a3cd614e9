"""A calibrated pool: labels against probabilities worked by hand, and the file that says so."""

from __future__ import annotations

from dataclasses import replace

import pytest
from light_farm import light_workspace
from scripted_ask import ScriptedAsk, make_pairs

from afarm.core.errors import ConfigError
from afarm.core.interfaces import AnnotateContext
from afarm.core.records import Instruction, Pair, Preference
from afarm_plugins.annotators.calibration import Calibration
from afarm_plugins.annotators.pool import PoolAnnotator
from afarm_plugins.annotators.settings import PoolConfig

MANY = 2500


def share_of_second(calibration: Calibration, lengths: tuple[int, int], verdict: float, order: str) -> float:
    """The share of labels for output_2, over many pairs with outputs of these lengths."""
    wins = 0.0
    for number in range(MANY):
        pair = Pair(Instruction(f"say {number}"), "a" * lengths[0], "b" * lengths[1])
        label = calibration.label(pair, Preference(pair.id, verdict, order=order), seed=1)
        wins += label.p2 or 0.0
    return wins / MANY


@pytest.mark.parametrize(
    ("calibration", "lengths", "verdict", "order", "expected"),
    [
        ({}, (3, 7), 1.0, "12", 1.0),
        ({"noise": 0.2}, (3, 7), 1.0, "12", 0.8),
        ({"noise": 0.2}, (3, 7), 0.0, "12", 0.2),
        ({"noise": 0.5}, (3, 7), 1.0, "12", 0.5),
        # 4 and 8 characters with one added each: twice as long. Odds of 4 at noise 0.2, and e^0.7 for the length.
        ({"noise": 0.2, "length": 0.7}, (3, 7), 1.0, "12", 8.0550 / 9.0550),
        ({"noise": 0.2, "length": 0.7}, (7, 3), 1.0, "12", 1.9863 / 2.9863),
        ({"noise": 0.2, "position": 0.7}, (3, 3), 1.0, "12", 1.9863 / 2.9863),
        ({"noise": 0.2, "position": 0.7}, (3, 3), 1.0, "21", 8.0550 / 9.0550),
        ({"noise": 0.2, "position": 0.7}, (3, 3), 1.0, "both", 0.8),
    ],
)
def test_a_label_has_the_stated_probability(
    calibration: dict[str, float], lengths: tuple[int, int], verdict: float, order: str, expected: float
) -> None:
    found = share_of_second(Calibration(**calibration), lengths, verdict, order)
    assert found == pytest.approx(expected, abs=0.03)


def test_swapping_a_pair_mirrors_its_label_and_no_answer_stays_none() -> None:
    calibration = Calibration(noise=0.4, length=0.5, position=0.5)
    for number in range(200):
        pair = Pair(Instruction(f"say {number}"), "short", "rather longer")
        verdict = Preference(pair.id, float(number % 2), order="12" if number % 3 else "21")
        label, mirrored = calibration.label(pair, verdict, 1), calibration.label(pair.swapped(), verdict.swapped(), 1)
        assert mirrored == label.swapped()
    unread = Preference(pair.id, None, "unparsed")
    assert calibration.label(pair, unread, 1) is unread
    draw = replace(verdict, p2=None, outcome="draw")
    assert calibration.label(pair, draw, 1).outcome == "decided"


POOL = """
members: [gpt4_4, chatgpt_4]
calibration: {weights: {gpt4_4: 0.2, chatgpt_4: 0.8}, noise: 0.3}
"""


def test_the_pool_draws_members_by_weight_and_flips_its_share(tmp_path) -> None:
    path = tmp_path / "calibrated.yaml"
    path.write_text(POOL)
    pool = PoolAnnotator(PoolConfig(), str(path))
    pairs = make_pairs(1200)
    labels = pool.annotate(pairs, AnnotateContext(3, ScriptedAsk(lambda shown: shown.order == "ab")))
    assert sum(label.member == "chatgpt_4" for label in labels) / 1200 == pytest.approx(0.8, abs=0.04)
    # Every verdict is for the canonical first output.
    flipped = sum((label.p2 == 1) == pair.is_canonical for label, pair in zip(labels, pairs, strict=True)) / 1200
    assert flipped == pytest.approx(0.3, abs=0.045)
    assert pool.has_own_noise
    path.write_text(POOL.replace("0.3", "0.31"))
    assert PoolAnnotator(PoolConfig(), str(path)).identity != pool.identity


@pytest.mark.parametrize(
    ("calibration", "reason"),
    [
        ("{noise: 0.6}", "noise"),
        ("{weights: {gpt4_4: -1}}", "each weight is 0 or more"),
        ("{weights: {gpt4_9: 1}}", "calibration: weights: 'gpt4_9' is no member. Did you mean 'gpt4_4'"),
        ("{nois: 0.1}", "nois"),
    ],
)
def test_a_wrong_calibration_is_refused(calibration: str, reason: str, tmp_path) -> None:
    path = tmp_path / "calibrated.yaml"
    path.write_text(f"members: [gpt4_4, chatgpt_4]\ncalibration: {calibration}\n")
    with pytest.raises(ConfigError) as refused:
        PoolAnnotator(PoolConfig(), str(path))
    assert reason in str(refused.value)
    assert str(path) in str(refused.value)


def test_its_noise_is_not_flipped_once_more(tmp_path) -> None:
    path = tmp_path / "calibrated.yaml"
    path.write_text(POOL)
    pool = f"annotate.annotator=pool:{path}"
    with pytest.raises(ConfigError, match=r"label_noise is 0\.25, and pool:.* has its noise: add --label-noise 0"):
        light_workspace(tmp_path, pool, "annotate.label_noise=0.25")
    with light_workspace(tmp_path, pool, "annotate.label_noise=0"):
        pass
