from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from bandit import ANSWERS, INSTRUCTIONS, bandit_policy, bandit_preferences, rewards
from tiny_models import Recorder, judged, make_context, make_instructions, make_policy, pair_rewards, same_weights

from afarm import LoraConfig
from afarm.backend import hold_out, pairwise_accuracy
from afarm.core.errors import DataError
from afarm.core.interfaces import RewardModel
from afarm.core.records import JudgedPair, Preference
from afarm.core.seeding import digest, uniform
from afarm.testing import check_reward_model
from afarm_plugins.reward_model import RewardModelConfig
from afarm_plugins.reward_model.bradley_terry import BradleyTerryRewardModel, bootstrap_weights, tokenize
from afarm_plugins.reward_model.calibration import calibration, margins
from afarm_plugins.reward_model.pair_trainer import HeldOut


def config(**settings: Any) -> RewardModelConfig:
    defaults = {
        "learning_rate": 3e-3,
        "head_learning_rate": 3e-2,
        "num_train_epochs": 4,
        "per_device_train_batch_size": 16,
        "save_steps": 0,
    }
    return RewardModelConfig(**(defaults | settings))


def preferences(count: int = 120) -> list[JudgedPair]:
    """The output with w7 in it is better; which one that is, and where, varies."""
    pairs = []
    for n, instruction in enumerate(make_instructions(count)):
        words = [f"w{10 + (n * 7 + j) % 20}" for j in range(1 + n % 4)]
        good = [*words]
        good.insert(n % (len(words) + 1), "w7")
        outputs = (" ".join(words), " ".join(good))
        second = uniform(n) < 0.5
        pairs.append(judged(instruction, *(outputs if second else outputs[::-1]), 1.0 if second else 0.0))
    return pairs


def fit(tmp_path: Path, rows: list[JudgedPair], **settings: Any) -> tuple[BradleyTerryRewardModel, Recorder]:
    context, log = make_context(tmp_path)
    return BradleyTerryRewardModel.fit(rows, make_policy(initializer_range=0.1), config(**settings), context), log


def test_learns_what_is_better_and_says_so_on_held_out_pairs(tmp_path: Path) -> None:
    model, log = fit(tmp_path, preferences(), num_train_epochs=8, eval_fraction=0.2)
    assert log.values("train_accuracy")[0] > 0.95
    assert log.values("eval_accuracy")[0] > 0.8
    assert log.values("eval_pairs") == [24]
    assert pairwise_accuracy(preferences(), *pair_rewards(model, preferences())) > 0.9


def test_the_first_loss_is_that_of_even_odds_since_the_head_starts_at_zero(tmp_path: Path) -> None:
    _, log = fit(tmp_path, preferences(32), num_train_epochs=1)
    assert log.values("loss")[0] == pytest.approx(math.log(2), abs=1e-4)


def test_rewards_of_the_training_outputs_are_standardised(tmp_path: Path) -> None:
    rows = preferences(40)
    model, _ = fit(tmp_path, rows, eval_fraction=0.0)
    instructions = [r.pair.instruction for r in rows] * 2
    scores = model.score(instructions, [r.pair.output_1 for r in rows] + [r.pair.output_2 for r in rows])
    values = torch.tensor([s.value for s in scores], dtype=torch.float64)
    assert values.mean().item() == pytest.approx(0, abs=1e-4)
    assert values.std(correction=0).item() == pytest.approx(1, abs=1e-4)


def test_how_a_step_is_cut_into_micro_batches_changes_nothing(tmp_path: Path) -> None:
    # 27 pairs in steps of 8: the last step has 3, in micro-batches of 2 and 1, whose means weigh differently
    settings = {"learning_rate": 1e-3, "num_train_epochs": 1, "lr_scheduler_type": "constant", "eval_fraction": 0.0}
    whole, log = fit(tmp_path / "1", preferences(27), per_device_train_batch_size=8, **settings)
    split, split_log = fit(
        tmp_path / "2",
        preferences(27),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=4,
        **settings,
    )
    assert same_weights(whole.model, split.model, tolerance=1e-4)
    assert split_log.values("loss") == pytest.approx(log.values("loss"), abs=1e-4)


def test_swapped_pairs_give_the_same_model(tmp_path: Path) -> None:
    rows = preferences(48)
    swapped = [JudgedPair(r.pair.swapped(), r.preference.swapped()) for r in rows]
    one, _ = fit(tmp_path / "1", rows, num_train_epochs=1)
    two, _ = fit(tmp_path / "2", swapped, num_train_epochs=1)
    assert same_weights(one.model, two.model, tolerance=1e-5)


def test_soft_labels_give_rewards_that_differ_as_the_odds_say(tmp_path: Path) -> None:
    rows = [judged(i, "w7", "w8", 0.8) for i in make_instructions(1)] * 2
    model, _ = fit(
        tmp_path, rows, num_train_epochs=60, eval_fraction=0.0, standardize_outputs=0, lr_scheduler_type="constant"
    )
    first, second = model.score([rows[0].pair.instruction] * 2, ["w7", "w8"])
    assert second.value - first.value == pytest.approx(math.log(4), abs=0.15)


def test_draws_and_unparsed_answers_are_dropped_and_counted(tmp_path: Path) -> None:
    rows = preferences(30)
    noisy = [*rows]
    for n, i in enumerate(make_instructions(200)[150:160]):
        noisy.append(judged(i, "w1", "w2", None, "draw" if n < 7 else "unparsed"))
    model, log = fit(tmp_path / "1", noisy)
    clean, _ = fit(tmp_path / "2", rows)
    assert log.values("pairs_draw") == [7]
    assert log.values("pairs_unparsed") == [3]
    assert log.values("pairs_decided") == [30]
    assert log.values("pairs_left_out") == [10]
    assert same_weights(model.model, clean.model)


@pytest.mark.parametrize("rows", [[], [judged(i, "w1", "w2", None) for i in make_instructions(3)]])
def test_nothing_to_learn_from_is_a_data_error(tmp_path: Path, rows: list[JudgedPair]) -> None:
    with pytest.raises(DataError, match=r"nothing to learn from: (3 draw|no preferences)"):
        fit(tmp_path, rows)


def split(rows: list[JudgedPair], fraction: float, seed: int) -> tuple[list[JudgedPair], list[JudgedPair]]:
    training, held_out = hold_out(rows, fraction, lambda id: digest(seed, id))
    return [rows[place] for place in training], [rows[place] for place in held_out]


def test_all_pairs_of_an_instruction_are_held_out_together_whatever_their_order() -> None:
    rows = [judged(i, "w1", f"w{n}", 1.0) for i in make_instructions(20) for n in (2, 3)]
    training, held_out = split(rows, 0.25, seed=0)
    assert len(held_out) == 10
    assert not {r.pair.instruction.id for r in training} & {r.pair.instruction.id for r in held_out}
    again = split(rows[::-1], 0.25, seed=0)[1]
    assert {r.pair.id for r in again} == {r.pair.id for r in held_out}
    assert {r.pair.id for r in split(rows, 0.25, seed=1)[1]} != {r.pair.id for r in held_out}


def test_one_instruction_alone_is_trained_on() -> None:
    rows = [judged(make_instructions(1)[0], "w1", "w2", 1.0)]
    assert split(rows, 0.9, seed=0) == (rows, [])


def test_each_output_is_read_to_its_eos_after_its_prompt() -> None:
    policy = make_policy()
    examples, cut = tokenize(policy, [judged(make_instructions(1)[0], "w1", "w2 w3", 0.3)], 512)
    assert cut == 0
    prompt = policy.prompt_ids(make_instructions(1))[0]
    assert examples == [
        {"chosen_ids": [*prompt, 7, 8, 1], "rejected_ids": [*prompt, 6, 1], "p_chosen": 0.3, "length": 7}
    ]
    assert tokenize(policy, [judged(make_instructions(1)[0], "w1", "w2 w3", 0.3)], len(prompt) + 2)[1] == 1


def test_the_head_learns_at_its_own_rate(tmp_path: Path) -> None:
    start = make_policy(initializer_range=0.1)
    frozen, _ = fit(tmp_path, preferences(32), learning_rate=1e-30, head_learning_rate=1e-2)
    assert frozen.model.score.weight.abs().max() > 1e-3
    assert same_weights(frozen.model.model, start.model.model, tolerance=1e-20)


def test_lora_learns_with_its_head_and_reloads(tmp_path: Path) -> None:
    rows = preferences()
    model, log = fit(tmp_path, rows, num_train_epochs=6, learning_rate=1e-2, lora=LoraConfig(r=8))
    assert log.values("train_accuracy")[0] > 0.85
    model.save(tmp_path / "saved")
    again = BradleyTerryRewardModel.load(tmp_path / "saved", make_context(tmp_path)[0])
    assert not any("lora" in name for name in again.model.state_dict())
    assert isinstance(again, RewardModel)
    instructions = [r.pair.instruction for r in rows[:10]]
    outputs = [r.pair.output_1 for r in rows[:10]]
    assert [s.value for s in again.score(instructions, outputs)] == pytest.approx(
        [s.value for s in model.score(instructions, outputs)], abs=1e-5
    )


def test_dropout_of_adapters_is_on_where_it_is_asked_for(tmp_path: Path) -> None:
    settings = {"num_train_epochs": 1, "eval_fraction": 0.0}
    without, _ = fit(tmp_path / "1", preferences(32), lora=LoraConfig(r=4), **settings)
    dropped, _ = fit(tmp_path / "2", preferences(32), lora=LoraConfig(r=4, dropout=0.5), **settings)
    assert not same_weights(without.model, dropped.model)


def test_calibration_by_hand() -> None:
    # confidence 0.8 in output 1, which the label prefers; 0.9 in output 2, which it does not; 0.6 at a soft 0.7
    found = calibration([0.0, 0.0, 0.7], [0.2, 0.9, 0.6])
    assert found["brier"] == pytest.approx((0.2**2 + 0.9**2 + 0.1**2) / 3)
    expected = -(math.log(0.8) + math.log(0.1) + 0.7 * math.log(0.6) + 0.3 * math.log(0.4)) / 3
    assert found["loss"] == pytest.approx(expected)
    assert [(b["pairs"], round(b["confidence"], 6), b["observed"]) for b in found["reliability"]] == [
        (1, 0.6, 0.7),
        (1, 0.8, 1.0),
        (1, 0.9, 0.0),
    ]
    assert found["ece"] == pytest.approx((0.1 + 0.2 + 0.9) / 3)


def test_calibration_takes_no_notice_of_the_order_of_outputs_and_bears_certainty() -> None:
    straight, mirrored = calibration([1.0, 0.25], [0.7, 0.4]), calibration([0.0, 0.75], [0.3, 0.6])
    assert {k: straight[k] for k in ("loss", "brier", "ece")} == pytest.approx(
        {k: mirrored[k] for k in ("loss", "brier", "ece")}
    )
    assert math.isfinite(calibration([0.0, 1.0], [1.0, 1.0])["loss"])


def test_margins_count_towards_the_preferred_output() -> None:
    found = {(b["from"], b["to"]): b["pairs"] for b in margins([1.0, 0.0, 1.0, 0.5], [0.6, 0.6, 99.0, 3.0])}
    assert found[0.5, 1.0] == 1  # as the label says
    assert found[-1.0, -0.5] == 1  # against it
    assert found[5.5, 6.0] == 1  # the outermost bin is open
    assert sum(found.values()) == 3


def test_held_out_pairs_are_measured_in_full_and_kept(tmp_path: Path) -> None:
    _, log = fit(tmp_path, preferences(), eval_fraction=0.2, eval_steps=5)
    kept = json.loads((tmp_path / "calibration.json").read_text())
    assert (
        kept["pairs"] == 24 == sum(b["pairs"] for b in kept["reliability"]) == sum(b["pairs"] for b in kept["margins"])
    )
    assert log.values("eval_loss")[-1] == pytest.approx(kept["loss"])
    assert log.values("eval_ece") == [kept["ece"]]
    # 96 pairs, 16 a step, 4 epochs: measured at 5, 10, 15, 20 and at the last step, 24, and in the end
    assert [step for step, metrics in log.lines if "eval_loss" in metrics] == [5, 10, 15, 20, 24, 24]
    assert log.values("eval_loss")[-2] == pytest.approx(log.values("eval_loss")[-1], abs=1e-6)
    assert log.values("eval_loss")[-1] < log.values("eval_loss")[0] < math.log(2)


def shuffled(rows: list[JudgedPair]) -> list[JudgedPair]:
    """Labels by lot: training fits them, and the held-out loss rises."""
    return [JudgedPair(r.pair, Preference(r.pair.id, float(uniform("lot", r.pair.id) < 0.5))) for r in rows]


EARLY: dict[str, Any] = {"num_train_epochs": 20, "eval_fraction": 0.3, "eval_steps": 2, "early_stopping_patience": 3}


@pytest.fixture(scope="module")
def stopped_early(tmp_path_factory: pytest.TempPathFactory) -> tuple[BradleyTerryRewardModel, Recorder]:
    return fit(tmp_path_factory.mktemp("early"), shuffled(preferences(60)), save_steps=1, **EARLY)


def test_stops_when_the_held_out_loss_gets_no_better_and_keeps_the_best(
    stopped_early: tuple[BradleyTerryRewardModel, Recorder],
) -> None:
    model, log = stopped_early
    measured = [(metrics["eval_loss"], step) for step, metrics in log.lines if "eval_loss" in metrics][:-1]
    best, step = min(measured)
    assert log.values("best_step") == [step]
    assert log.values("best_eval_loss") == [best]
    assert measured[-1][1] == step + 3 * 2 < 60
    assert log.values("eval_loss")[-1] == pytest.approx(best, abs=1e-5)  # measured again, on the weights that were kept
    assert isinstance(model.std, float)


@pytest.mark.parametrize("after", [-1, 3])
def test_early_stopping_goes_on_after_a_kill_to_the_same_weights(
    after: int, stopped_early: tuple[BradleyTerryRewardModel, Recorder], tmp_path: Path
) -> None:
    rows = shuffled(preferences(60))
    whole, log = stopped_early
    interrupt(tmp_path / "cut", rows, int(log.values("best_step")[0]) + after, save_steps=1, **EARLY)
    resumed, again = fit(tmp_path / "cut", rows, save_steps=1, **EARLY)
    assert same_weights(resumed.model, whole.model)
    assert again.values("best_step") == log.values("best_step")


def test_what_had_stopped_early_when_it_was_killed_ends_with_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = EARLY | {"eval_steps": 1, "early_stopping_patience": 1}
    rows = preferences(60)
    losses = iter([0.6, 0.5, 0.7, *[0.6, 0.5, 0.7], *[0.4, 0.8]])  # the last two, only where training went on
    monkeypatch.setattr(HeldOut, "measure", lambda _: {"eval_loss": next(losses)})
    whole, log = fit(tmp_path / "whole", rows, save_steps=1, **settings)

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(BradleyTerryRewardModel, "finish", killed)
        with pytest.raises(KeyboardInterrupt):
            fit(tmp_path / "cut", rows, save_steps=1, **settings)
    resumed, again = fit(tmp_path / "cut", rows, save_steps=1, **settings)
    assert log.values("best_step") == again.values("best_step") == [2]
    assert same_weights(resumed.model, whole.model)


def interrupt(directory: Path, rows: list[JudgedPair], steps: int, **settings: Any) -> None:
    """Fit, and stop after so many steps."""
    asked = 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        return asked >= steps

    context, _ = make_context(directory, should_stop=stop)
    with pytest.raises(KeyboardInterrupt):
        BradleyTerryRewardModel.fit(rows, make_policy(initializer_range=0.1), config(**settings), context)


@pytest.mark.parametrize("settings", [{"early_stopping_patience": 2}, {"members": "adapters", "ensemble": 2}])
def test_settings_that_lack_what_they_need_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="needs"):
        config(**settings)


def test_bootstrap_weights_are_1_on_average_keyed_and_apart() -> None:
    rows = preferences(50)
    drawn = bootstrap_weights(rows, 3, seed=0)
    for column in zip(*drawn, strict=True):
        assert sum(column) / 50 == pytest.approx(1)
    assert bootstrap_weights(rows[::-1], 3, seed=0)[::-1] == [pytest.approx(row) for row in drawn]
    assert len({tuple(row) for row in drawn}) == 50
    assert all(len(set(row)) == 3 for row in drawn)
    assert bootstrap_weights(rows, 1, seed=0) == [[1.0]] * 50


HEADS: dict[str, Any] = {"ensemble": 3}
ADAPTERS: dict[str, Any] = {
    "ensemble": 2,
    "members": "adapters",
    "lora": LoraConfig(r=4),
    "learning_rate": 1e-2,
    "num_train_epochs": 4,
}


@pytest.mark.parametrize("settings", [HEADS, ADAPTERS], ids=["heads", "adapters"])
def test_members_of_an_ensemble_all_learn_differ_and_reload(tmp_path: Path, settings: dict[str, Any]) -> None:
    rows = preferences()
    model, log = fit(tmp_path, rows, eval_fraction=0.2, **settings)
    first, second = model.both(rows)
    assert first.shape == (120, settings["ensemble"])
    labels = torch.tensor([j.p2 for j in rows]) > 0.5
    for member in range(settings["ensemble"]):
        assert ((second - first)[:, member].gt(0) == labels).float().mean() > 0.8
    assert (first[:, 0] - first[:, 1]).abs().mean() > 0.02
    assert log.values("eval_spread")[0] > 0.01
    trained = torch.cat([model.both(rows)[i] for i in (0, 1)])
    assert trained.std(0, correction=0).tolist() == pytest.approx([1.0] * settings["ensemble"], abs=0.2)
    model.save(tmp_path / "saved")
    again = BradleyTerryRewardModel.load(tmp_path / "saved", make_context(tmp_path)[0])
    scores = [m.score([r.pair.instruction for r in rows[:8]], ["w7 w1"] * 8) for m in (model, again)]
    assert [s.value for s in scores[1]] == pytest.approx([s.value for s in scores[0]], abs=1e-5)
    assert [s.spread for s in scores[1]] == pytest.approx([s.spread for s in scores[0]], abs=1e-5)
    check_reward_model(again)


def test_the_trunk_is_shared_by_adapters_and_stays_the_policys(tmp_path: Path) -> None:
    start = make_policy(initializer_range=0.1)
    model, _ = fit(tmp_path, preferences(32), **ADAPTERS | {"num_train_epochs": 2})
    backbone = model.model.get_base_model().model.state_dict()
    for name, weight in start.model.model.state_dict().items():
        plain = name.replace("_proj.weight", "_proj.base_layer.weight")
        assert torch.equal(backbone[plain if plain in backbone else name], weight)


SHORT_ADAPTERS = ADAPTERS | {"num_train_epochs": 2, "save_steps": 2, "eval_fraction": 0.0}
"""On 48 preferences, 6 steps a member."""


@pytest.fixture(scope="module")
def whole_adapters(tmp_path_factory: pytest.TempPathFactory) -> tuple[BradleyTerryRewardModel, Recorder]:
    return fit(tmp_path_factory.mktemp("adapters"), preferences(48), **SHORT_ADAPTERS)


@pytest.mark.parametrize("steps", [2, 6, 9])
def test_an_ensemble_of_adapters_goes_on_from_whichever_member_it_was_at(
    steps: int, whole_adapters: tuple[BradleyTerryRewardModel, Recorder], tmp_path: Path
) -> None:
    whole, log = whole_adapters
    interrupt(tmp_path / "cut", preferences(48), steps, **SHORT_ADAPTERS)
    resumed, again = fit(tmp_path / "cut", preferences(48), **SHORT_ADAPTERS)
    assert same_weights(resumed.model, whole.model)
    assert [step for step, metrics in log.lines if "loss" in metrics] == list(range(1, 13))
    assert min(step for step, metrics in again.lines if "loss" in metrics) == steps + 1


def test_an_ensemble_of_heads_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    rows = preferences(64)
    settings = HEADS | {"num_train_epochs": 2, "save_steps": 2, "eval_fraction": 0.0}
    whole, _ = fit(tmp_path / "whole", rows, **settings)
    interrupt(tmp_path / "cut", rows, 3, **settings)
    resumed, _ = fit(tmp_path / "cut", rows, **settings)
    assert same_weights(resumed.model, whole.model)
    rewards = torch.cat(resumed.both(rows))
    assert rewards.mean(0).tolist() == pytest.approx([0.0] * 3, abs=1e-4)
    assert rewards.std(0, correction=0).tolist() == pytest.approx([1.0] * 3, abs=1e-4)


def test_a_constant_reward_is_no_trouble(tmp_path: Path) -> None:
    rows = [judged(i, "w1", "w2", 0.5) for i in make_instructions(20)]
    model, log = fit(tmp_path, rows, eval_fraction=0.2, learning_rate=1e-30, head_learning_rate=1e-30)
    assert [s.value for s in model.score(make_instructions(3), ["w1", "w2", "w3"])] == pytest.approx(
        [0, 0, 0], abs=1e-6
    )
    assert log.values("eval_loss") == [pytest.approx(math.log(2), abs=1e-6)]
    assert log.values("eval_accuracy") == []  # there is nothing to agree with


def test_the_bandits_rewards_are_found_up_to_a_constant(tmp_path: Path) -> None:
    """Labels of Bradley–Terry probability determine the rewards: those have the least cross-entropy."""
    context, _ = make_context(tmp_path)
    settings = config(num_train_epochs=60, per_device_train_batch_size=18, eval_fraction=0.0, standardize_outputs=0)
    model = BradleyTerryRewardModel.fit(bandit_preferences(soft=True), bandit_policy(), settings, context)
    for instruction in INSTRUCTIONS:
        found = torch.tensor([s.value for s in model.score([instruction] * 4, ANSWERS)])
        assert (found - found.mean()).tolist() == pytest.approx((rewards() - rewards().mean()).tolist(), abs=0.1)
