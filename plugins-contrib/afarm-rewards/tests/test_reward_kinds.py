"""The reward models: the kit's verdict, what each learns, and what is wrong with rows."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from afarm_rewards import KINDS, GenerativeConfig, HeadsConfig, register_reward_models
from afarm_rewards.generative import GenerativeRewardModel
from afarm_rewards.heads import HeadRewardModel
from afarm_rewards.targets import with_numbers, with_strengths

from afarm import DataError, JudgedPair, LoraConfig, Preference, RewardModel
from afarm.backend import all_gather, all_gather_object, shard
from afarm.testing import (
    MetricsRecorder,
    check_fitted_reward_model,
    make_instructions,
    separable_preferences,
    tiny_config,
    tiny_policy,
    train_context,
)
from afarm.testing.processes import train_together

Change = Callable[[int, JudgedPair], Preference]

FAST: dict[str, Any] = {"per_device_train_batch_size": 16, "learning_rate": 0.01, "head_learning_rate": 0.03}


def changed(pairs: list[JudgedPair], change: Change) -> list[JudgedPair]:
    return [replace(judged, preference=change(n, judged)) for n, judged in enumerate(pairs)]


def rich(count: int) -> list[JudgedPair]:
    """Pairs with a strength of 1 to 3, scores of 4 or 5 for the better output, and two attributes."""

    def add(n: int, judged: JudgedPair) -> Preference:
        better, worse = 4.0 + n % 2, 1.0 + n % 3
        both = (worse, better) if judged.p2 == 1 else (better, worse)
        attributes = (("helpfulness", *both), ("verbosity", float(n % 5), float(n % 4)))
        return replace(judged.preference, strength=1.0 + n % 3, scores=both, attributes=attributes)

    return changed(separable_preferences(count), add)


def config_of(name: str, **settings: Any) -> Any:
    """The config of a registered reward model, as a run builds it."""
    found: dict[str, Any] = {}
    register_reward_models(lambda one, target, **more: found.update({one: more}))
    values = {**found[name].get("defaults", {}), **settings}
    return found[name]["config"].model_validate(values, context={"section": name})


LAPLACE = {"loss": "regression", "uncertainty": "laplace", "conservatism": 1.0}


def test_a_margin_with_adapters_conforms_in_one_process_and_in_two(tmp_path: Path) -> None:
    config = tiny_config(HeadsConfig, loss="margin", on_missing="plain", lora=LoraConfig(r=4), **FAST)
    check_fitted_reward_model(HeadRewardModel, config, tmp_path, processes=2)


def test_several_attributes_with_laplace_conform(tmp_path: Path) -> None:
    config = tiny_config(HeadsConfig, **LAPLACE, **FAST)
    check_fitted_reward_model(HeadRewardModel, config, tmp_path, preferences=rich(64))


def test_a_generative_one_conforms(tmp_path: Path) -> None:
    config = tiny_config(
        GenerativeConfig, verdicts=("w38", "w39"), per_device_train_batch_size=16, max_length=128, learning_rate=0.02
    )
    check_fitted_reward_model(GenerativeRewardModel, config, tmp_path)


def test_a_generative_one_scores_the_rows_of_its_own_process(tmp_path: Path) -> None:
    """Two processes score their shards, as in training; then the first alone, as best-of-n does."""
    config = tiny_config(GenerativeConfig, verdicts=("w38", "w39"), max_length=128)
    model = GenerativeRewardModel(tiny_policy(), config)
    tasks, texts = make_instructions(5), ["w1", "w2 w3", "w4", "w5", ""]
    whole = [score.value for score in model.score(tasks, texts)]

    def score_shards(context: Any) -> list[list[float]]:
        own = [score.value for score in model.score(shard(tasks), shard(texts))]
        alone = [score.value for score in model.score(tasks, texts)] if len(own) == 3 else []
        return [all_gather(own), all_gather_object(alone)[0]]

    for scores in train_together(score_shards, 2, tmp_path):
        assert scores == pytest.approx(whole, abs=1e-4)


def fit(name: str, pairs: list[JudgedPair], directory: Path, **settings: Any) -> tuple[RewardModel, dict[str, float]]:
    log, config = MetricsRecorder(), config_of(name, **{**FAST, "max_length": 48, **settings})
    fitted = HeadRewardModel.fit(pairs, tiny_policy(), config, train_context(directory, log_metrics=log))
    return fitted, log.lines[-1][1]


def test_numbers_are_predicted_in_their_units_and_weighted(tmp_path: Path) -> None:
    fitted, metrics = fit(
        "attributes_reward", rich(64), tmp_path, weights={"helpfulness": 1.0}, standardize_outputs=0, num_train_epochs=4
    )
    good, bad = (score.value for score in fitted.score(make_instructions(2), ["w1 w2 w5", "w31 w32 w5"]))
    assert good == pytest.approx(4.5, abs=0.7)
    assert bad == pytest.approx(2.0, abs=0.7)
    assert metrics["eval_correlation_helpfulness"] > 0.6
    assert metrics["eval_mse_helpfulness"] < 1.2
    weights = {"helpfulness": -1.0, "verbosity": 0.1}
    some = changed(rich(48), without(5))
    negative, dropped = fit("attributes_reward", some, tmp_path / "n", weights=weights, on_missing="drop")
    assert dropped["pairs_without_numbers"] == 1
    good, bad = (score.value for score in negative.score(make_instructions(2), ["w1 w2 w5", "w31 w32 w5"]))
    assert good < bad


def test_conservatism_takes_k_standard_deviations_off_a_reward_and_off_no_other_place(tmp_path: Path) -> None:
    texts = ["w1 w2 w5", "w31 w32 w5", "w20 w21 w22 w23 w24 w25 w26 w27"]
    scores = {
        k: fit("uncertain_reward", rich(32), tmp_path / str(k), conservatism=k)[0].score(make_instructions(3), texts)
        for k in (0.0, 2.0)
    }
    for plain, careful in zip(scores[0.0], scores[2.0], strict=True):
        assert plain.spread == pytest.approx(careful.spread, rel=1e-4)
        assert careful.value == pytest.approx(plain.value - 2 * (plain.spread or 0), rel=1e-4, abs=1e-4)
    spreads = [score.spread or 0 for score in scores[0.0]]
    assert spreads[2] > 1.2 * max(spreads[:2]), "words that no pair had"


# --------------------------------------------------------------------------------------------------------- bad input


def without(*places: int) -> Change:
    def change(n: int, judged: JudgedPair) -> Preference:
        blank = replace(judged.preference, strength=None, scores=None, attributes=())
        return blank if n in places else judged.preference

    return change


NAN = float("nan")
LACKING = (
    r"margin_reward: 2 of 8 pairs have no strength \(strength\), the first .* '.+': --set margin_reward.on_missing"
)


@pytest.mark.parametrize(
    ("name", "settings", "change", "said"),
    [
        ("margin_reward", {}, without(1, 2), LACKING),
        ("margin_reward", {}, without(*range(8)), r"8 of 8 pairs have no strength .*'margin'.*--vote mean"),
        ("scaled_reward", {"on_missing": "drop"}, without(*range(8)), r"8 of 8 pairs have no strength"),
        (
            "ordinal_reward",
            {},
            lambda n, j: replace(j.preference, strength=NAN if n == 3 else 1.0),
            "1 of 8 pairs have",
        ),
        ("regression_reward", {}, lambda n, j: replace(j.preference, scores=(NAN, 1.0)), r"8 of 8 .*score \(8\)"),
        (
            "regression_reward",
            {},
            lambda n, j: replace(j.preference, scores=(2.0, 2.0)),
            "'score' is 2 for each output",
        ),
        ("regression_reward", {}, without(*range(8)), "none of 8 pairs has 'score' .* no numbers at all"),
        ("attributes_reward", {}, without(5), r"1 of 8 .* helpfulness \(1\), verbosity \(1\).*on_missing=drop"),
        (
            "attributes_reward",
            {},
            lambda n, j: replace(j.preference, attributes=j.preference.attributes[: 1 + (n != 2)]),
            r"1 of 8 pairs have no number for both outputs in verbosity \(1\)",
        ),
        ("attributes_reward", {"weights": {"helpful": 1}}, without(), "has 'helpful' .*Did you mean 'helpfulness'"),
        ("attributes_reward", {}, lambda n, j: replace(j.preference, attributes=()), r"has attributes; .*score: 1"),
    ],
)
def test_rows_that_teach_nothing_are_named_before_training(
    name: str, settings: dict[str, Any], change: Change, said: str
) -> None:
    config = config_of(name, **settings)
    with pytest.raises(DataError, match=said):
        (with_numbers if config.loss == "regression" else with_strengths)(changed(rich(8), change), config)


def test_strengths_are_taken_from_one_source_and_votes_are_not_counted_twice(caplog: Any) -> None:
    pairs = changed(rich(6), lambda n, j: replace(j.preference, strength=None, attributes=()))
    kept, strengths, _ = with_strengths(pairs, config_of("margin_reward", strength_scale=0.5))
    assert strengths == [abs(j.preference.scores[1] - j.preference.scores[0]) / 2 for j in kept]  # type: ignore[index]
    votes = changed(separable_preferences(2), lambda n, j: replace(j.preference, p2=(0.2, 1.0)[n]))
    kept, strengths, _ = with_strengths(votes, config_of("scaled_reward"))
    assert ([j.p2 for j in kept], strengths) == ([0.0, 1.0], pytest.approx([0.6, 1.0]))
    coins = changed(votes, lambda n, j: replace(j.preference, source="noise" if n else "judge"))
    assert with_strengths(coins, config_of("scaled_reward", on_missing="drop"))[1] == pytest.approx([0.6])
    kept, strengths, _ = with_strengths(rich(6), config_of("ordinal_reward"))
    assert strengths == pytest.approx([1 / 3, 2 / 3, 1] * 2)
    bare = separable_preferences(4)
    kept, strengths, counts = with_strengths(bare, config_of("margin_reward", on_missing="plain"))
    assert (strengths, counts["pairs_without_strength"]) == ([0.0] * 4, 4)
    equal = changed(bare, lambda n, j: replace(j.preference, strength=2.0))
    with caplog.at_level(logging.WARNING):
        with_strengths(equal, config_of("margin_reward"))
    assert "4 of 4 pairs have no strength" in caplog.text
    assert "all 4 strengths (strength) are equal (2), so they do not distinguish" in caplog.text


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("margin_reward", {"conservatism": 1}, "conservatism needs uncertainty"),
        ("regression_reward", {"on_missing": "plain"}, "on_missing=plain is for strengths"),
        ("margin_reward", {"weights": {"score": 1}}, "set loss=regression"),
        ("attributes_reward", {"weights": {"a": 0}}, "are all 0"),
        ("generative_reward", {"verdicts": ("Yes", "Yes ")}, "two different words"),
        ("generative_reward", {"conservatism": 1}, "needs reasons=2"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(name: str, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        config_of(name, **settings)


def test_verdicts_that_the_tokenizer_cannot_tell_apart_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="writes 'Yes' and 'No' as the same tokens"):
        GenerativeRewardModel.fit(rich(4), tiny_policy(), config_of("generative_reward"), train_context(tmp_path))


@pytest.mark.parametrize("name", [*KINDS, "generative_reward"])
def test_under_toy_and_smol_a_reward_model_has_no_settings_of_a_large_model(name: str) -> None:
    found: dict[str, Any] = {}
    register_reward_models(lambda one, target, **more: found.update({one: more}))
    for recipe in ("toy", "smol"):
        assert config_of(name, **found[name]["recipes"][recipe]).learning_rate > 1e-5
