from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import Recorder, judged, make_context, make_instructions, make_policy, same_weights

from afarm.backend import LoraConfig, TorchRewardModel, pair_accuracy
from afarm.errors import DataError
from afarm.interfaces import RewardModel
from afarm.keyed import uniform
from afarm.records import JudgedPair
from afarm_plugins.reward_model import RewardModelConfig
from afarm_plugins.reward_model.bradley_terry import BradleyTerryRewardModel, preference_loss, split, tokenize


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


def test_loss_by_hand() -> None:
    first, second = torch.tensor([0.0, 1.0]), torch.tensor([2.0, 0.5])
    # σ(2) = 0.880797, σ(−0.5) = 0.377541; the second label is soft
    expected = (-math.log(0.880797) + -(0.3 * math.log(0.377541) + 0.7 * math.log(1 - 0.377541))) / 2
    assert preference_loss(first, second, torch.tensor([1.0, 0.3])).item() == pytest.approx(expected, abs=1e-5)
    assert preference_loss(second, first, torch.tensor([0.0, 0.7])).item() == pytest.approx(expected, abs=1e-5)


def test_learns_what_is_better_and_says_so_on_held_out_pairs(tmp_path: Path) -> None:
    model, log = fit(tmp_path, preferences(), num_train_epochs=8, eval_fraction=0.2)
    assert log.values("train_accuracy")[0] > 0.95
    assert log.values("eval_accuracy")[0] > 0.8
    assert log.values("eval_pairs") == [24]
    assert pair_accuracy(model, preferences()) > 0.9


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
    rows = [judged(i, "w7", "w8", 0.8) for i in make_instructions(1)] * 64
    model, _ = fit(
        tmp_path, rows, num_train_epochs=30, eval_fraction=0.0, standardize_outputs=0, lr_scheduler_type="constant"
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
    model = TorchRewardModel(None, policy.tokenizer, policy.template, policy.backend)
    examples, cut = tokenize(model, [judged(make_instructions(1)[0], "w1", "w2 w3", 0.3)], 512)
    assert cut == 0
    prompt = policy.prompt_ids(make_instructions(1))[0]
    assert examples == [
        {"chosen_ids": [*prompt, 7, 8, 1], "rejected_ids": [*prompt, 6, 1], "p_chosen": 0.3, "length": 7}
    ]
    assert tokenize(model, [judged(make_instructions(1)[0], "w1", "w2 w3", 0.3)], len(prompt) + 2)[1] == 1


def test_the_head_learns_at_its_own_rate(tmp_path: Path) -> None:
    start = make_policy(initializer_range=0.1)
    frozen, _ = fit(tmp_path, preferences(32), learning_rate=1e-30, head_learning_rate=1e-2)
    assert frozen.model.score.weight.abs().max() > 1e-3
    assert same_weights(frozen.model.model, start.model.model, tolerance=1e-20)


def test_lora_learns_with_its_head_and_reloads(tmp_path: Path) -> None:
    rows = preferences()
    model, log = fit(tmp_path, rows, num_train_epochs=10, learning_rate=1e-2, lora=LoraConfig(r=8))
    assert log.values("train_accuracy")[0] > 0.85
    assert not any("lora" in name for name in model.model.state_dict())
    model.save(tmp_path / "saved")
    again = BradleyTerryRewardModel.load(tmp_path / "saved", make_context(tmp_path)[0])
    assert isinstance(again, RewardModel)
    instructions = [r.pair.instruction for r in rows[:10]]
    outputs = [r.pair.output_1 for r in rows[:10]]
    assert [s.value for s in again.score(instructions, outputs)] == pytest.approx(
        [s.value for s in model.score(instructions, outputs)], abs=1e-5
    )


def test_same_seed_same_weights(tmp_path: Path) -> None:
    one, _ = fit(tmp_path / "1", preferences(32))
    two, _ = fit(tmp_path / "2", preferences(32))
    assert same_weights(one.model, two.model)


@pytest.mark.parametrize("lora", [None, LoraConfig(r=2)])
def test_goes_on_from_a_checkpoint_to_the_same_weights(tmp_path: Path, lora: Any) -> None:
    rows = preferences(64)
    whole, _ = fit(tmp_path / "whole", rows, save_steps=2, lora=lora)
    asked = 0

    def stop_after_three() -> bool:
        nonlocal asked
        asked += 1
        return asked >= 3

    context, _ = make_context(tmp_path / "cut", should_stop=stop_after_three)
    start = make_policy(initializer_range=0.1)
    with pytest.raises(KeyboardInterrupt):
        BradleyTerryRewardModel.fit(rows, start, config(save_steps=2, lora=lora), context)
    resumed, log = fit(tmp_path / "cut", rows, save_steps=2, lora=lora)
    assert min(step for step, metrics in log.lines if "loss" in metrics) == 4
    assert same_weights(resumed.model, whole.model)
