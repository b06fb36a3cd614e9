"""The reward model `features`: learned from a run's preferences, centred, saved as a fitted judge."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from afarm import BuildContext, DataError, Farm, Instruction, JudgedPair, Pair, Preference
from afarm.report.charts import describe_held_out
from afarm.storage.runs import RunRecord
from afarm.testing import MetricsRecorder, check_fitted_reward_model, check_reward_model, train_context
from afarm_plugins.fitted_judges.learned_features import FeaturesRewardModel
from afarm_plugins.fitted_judges.reward import FittedReward
from afarm_plugins.fitted_judges.settings import FittedConfig

NO_POLICY: Any = None


def judged(number: int, *, longer_wins: bool = True, instruction: int | None = None) -> JudgedPair:
    """A pair of which the second output is the longer if `number` is even."""
    short, long = f"Tree {number}.", f"Tree {number}, " + "and another " * (3 + number % 7) + "oak."
    outputs = (short, long) if number % 2 == 0 else (long, short)
    pair = Pair(Instruction(f"Name trees of kind {number if instruction is None else instruction}."), *outputs)
    return JudgedPair(pair, Preference(pair.id, float((number % 2 == 0) == longer_wins)))


def fit(pairs: list[JudgedPair], directory: Path, log: Any = None) -> FeaturesRewardModel:
    log = log or MetricsRecorder()
    return FeaturesRewardModel.fit(pairs, NO_POLICY, None, train_context(directory, log_metrics=log))


def test_it_keeps_the_promises_of_a_fitted_reward_model(tmp_path: Path) -> None:
    check_fitted_reward_model(FeaturesRewardModel, None, tmp_path)


def test_it_learns_what_the_labels_prefer_and_measures_it_on_instructions_held_out(tmp_path: Path) -> None:
    log = MetricsRecorder()
    # One label in five is for the shorter: more than chance would need, and no more than the log-odds of 4 to learn.
    model = fit([judged(n, longer_wins=n % 5 > 0) for n in range(200)], tmp_path, log)
    check_reward_model(model)
    asked = Instruction("Name trees.")
    short, long = (score.value for score in model.score([asked] * 2, ["Tree.", "Tree, and another and another oak."]))
    assert 0.3 < long - short < 3 * math.log(4)
    metrics = log.lines[-1][-1]
    assert metrics["eval_accuracy"] == pytest.approx(0.8, abs=0.02)
    assert metrics["eval_pairs"] == 200


def test_the_report_shows_how_often_it_is_right_when_it_is_so_sure(tmp_path: Path) -> None:
    log = MetricsRecorder()
    fit([judged(n, longer_wins=n % 5 > 0) for n in range(200)], tmp_path, log)
    measured = json.loads((tmp_path / "calibration.json").read_text())
    held_out = describe_held_out(RunRecord(tmp_path, {"reward_model": measured}))
    assert held_out is not None
    figures, metrics = dict(held_out["figures"]), log.lines[-1][-1]
    assert figures["pairs"] == sum(pairs for _, _, pairs in held_out["reliability"]) == 200
    assert figures["cross-entropy"] == pytest.approx(metrics["eval_loss"])
    assert figures["Brier score"] == pytest.approx(metrics["eval_brier"])
    assert 0.1 < figures["Brier score"] < 0.2, "0.16 is what 80 % can be known to"


def test_its_scores_have_mean_0_over_what_it_learned_from(tmp_path: Path) -> None:
    pairs = [judged(n) for n in range(60)]
    model = fit(pairs, tmp_path)
    texts = [(j.pair.instruction, text) for j in pairs for text in (j.pair.output_1, j.pair.output_2)]
    scores = [s.value for s in model.score([asked for asked, _ in texts], [text for _, text in texts])]
    assert max(scores) - min(scores) > 1
    assert sum(scores) / len(scores) == pytest.approx(0, abs=1e-9)


def test_what_it_saves_is_also_a_fitted_judge_with_the_same_scores(tmp_path: Path) -> None:
    model = fit([judged(n) for n in range(60)], tmp_path / "fit")
    saved = tmp_path / "saved"
    saved.mkdir()
    model.save(saved)
    asked, output = Instruction("Name trees."), "An oak, a birch and a beech."
    expected = model.score([asked], [output])
    assert FeaturesRewardModel.load(saved, train_context(tmp_path / "load")).score([asked], [output]) == expected
    context = BuildContext(reward_model=lambda name: pytest.fail(name), source="the source")
    assert FittedReward(FittedConfig(), str(saved), context).score([asked], [output]) == expected


def test_a_model_stored_before_its_class_moved_opens(tmp_path: Path) -> None:
    model = fit([judged(n) for n in range(60)], tmp_path / "fit")
    stored = tmp_path / "artifacts" / "fit-reward" / "abc"
    (stored / "model").mkdir(parents=True)
    model.save(stored / "model")
    place = "afarm_plugins.judges.fitted.learned_features:FeaturesRewardModel"
    (stored / "class.json").write_text(json.dumps({"class": place, "kind": "reward_model"}))
    asked, output = Instruction("Name trees."), "An oak, a birch and a beech."
    with Farm(output_dir=tmp_path / "out") as farm:
        loaded = farm.workspace.components.load(stored)
        assert loaded.score([asked], [output]) == model.score([asked], [output])
        assert farm.workspace.components.annotator_identity(f"reward:{stored}")


def test_labels_of_few_instructions_are_refused(tmp_path: Path) -> None:
    assert FeaturesRewardModel.fewest_instructions == 10, "so that a run refuses fewer before it labels any"
    with pytest.raises(DataError, match=r"10 instructions or more.*--set rows\.preference"):
        fit([judged(n, instruction=n % 9) for n in range(60)], tmp_path)
