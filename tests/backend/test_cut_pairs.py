"""What is trained on after the cut to `max_length`: pairs that became equal, prompts that are gone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_models import Recorder, judged, make_context, make_policy

from afarm.core.errors import DataError
from afarm.core.interfaces import MethodInputs
from afarm.core.records import Instruction, JudgedPair, Output
from afarm_plugins.dpo import DPO, DPOConfig
from afarm_plugins.feedme import FeedME, FeedMEConfig
from afarm_plugins.reward_conditioning import RewardConditioning, RewardConditioningConfig
from afarm_plugins.reward_model import RewardModelConfig
from afarm_plugins.reward_model.bradley_terry import BradleyTerryRewardModel
from afarm_plugins.sft import SFT, SFTConfig

LENGTH = 12
LONG = "w1 w2 w3 w4 w5 w6 w7 w8 w9 w10 w11 w12"  # fills LENGTH by itself
DIFFERENT = [judged(Instruction(f"w{n} w20"), "w1", "w2", n % 2) for n in range(6)]
EQUAL = [judged(Instruction(f"w{n} w21"), f"{LONG} w13", f"{LONG} w14 w15", n % 2) for n in range(6)]
SETTINGS: dict[str, Any] = {
    "max_length": LENGTH,
    "num_train_epochs": 1,
    "per_device_train_batch_size": 4,
    "save_steps": 0,
    "learning_rate": 1e-3,
}


def fit(preferences: list[JudgedPair], directory: Path) -> Recorder:
    context, metrics = make_context(directory)
    BradleyTerryRewardModel.fit(preferences, make_policy(), RewardModelConfig(**SETTINGS), context)
    return metrics


def training(method: Any, config: Any) -> Callable[[list[JudgedPair], Path], Recorder]:
    def train(preferences: list[JudgedPair], directory: Path) -> Recorder:
        context, metrics = make_context(directory)
        method(config(**SETTINGS)).train(MethodInputs(make_policy(), preferences=preferences), context)
        return metrics

    return train


LEARNERS = {
    "dpo": training(DPO, DPOConfig),
    "feedme": training(FeedME, FeedMEConfig),
    "reward_conditioning": training(RewardConditioning, RewardConditioningConfig),
    "the reward model": fit,
}


@pytest.mark.parametrize("learner", LEARNERS)
def test_pairs_that_are_equal_after_the_cut_are_left_out_counted_and_refused_if_all_are(
    learner: str, tmp_path: Path
) -> None:
    metrics = LEARNERS[learner]([*DIFFERENT, *EQUAL], tmp_path / "some")
    counts = ("pairs_decided", "pairs_left_out", "pairs_equal_after_cut")
    assert [metrics.values(name) for name in counts] == [[12.0], [6.0], [6.0]]
    with pytest.raises(DataError, match=rf"{learner} has nothing to learn from.* 6 pairs.*{LENGTH} tokens.*max_length"):
        LEARNERS[learner](EQUAL, tmp_path / "all")
    unaffected = LEARNERS[learner](DIFFERENT, tmp_path / "none")
    assert unaffected.values("pairs_equal_after_cut") == []
    assert unaffected.values("prompts_cut_to_nothing") == []


@pytest.mark.parametrize("learner", LEARNERS)
def test_prompts_that_are_cut_to_nothing_are_counted_and_said(
    learner: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    long = [judged(Instruction(f"w{n} w22"), f"w30 {LONG}", f"w31 {LONG}", n % 2) for n in range(3)]
    [count] = LEARNERS[learner]([*DIFFERENT, *long], tmp_path).values("prompts_cut_to_nothing")
    assert count == {"feedme": 3}.get(learner, 6)  # of 3 pairs
    assert f"{count:.0f} of {'9' if learner == 'feedme' else '18'} outputs fill max_length" in caplog.text


def test_demonstrations_without_their_prompts_or_rendered_already_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    context, metrics = make_context(tmp_path)
    rows = [Output(Instruction("w1 w2"), LONG), Output(Instruction("w3 w4"), "w5 <eos>")]
    SFT(SFTConfig(**SETTINGS)).train(MethodInputs(make_policy(), demonstrations=rows), context)
    assert metrics.values("prompts_cut_to_nothing") == [1.0]
    assert "1 of 2 demonstrations hold special tokens of the model" in caplog.text
