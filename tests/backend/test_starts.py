"""What has no weights of its own to train a copy of, a sampler around a checkpoint say, is refused by what trains."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tiny_models import judged, make_context, make_instructions

from afarm.core.errors import TrainingError
from afarm.core.interfaces import Decoding, Method, MethodInputs, Policy, TrainContext
from afarm.core.records import Instruction, Output, Sample
from afarm.testing import tiny_reward_model
from afarm_plugins.dpo import DPO, DPOConfig
from afarm_plugins.expert_iteration import ExpertIteration, ExpertIterationConfig
from afarm_plugins.feedme import FeedME, FeedMEConfig
from afarm_plugins.ppo import PPO, PPOConfig
from afarm_plugins.quark import Quark, QuarkConfig
from afarm_plugins.reward_conditioning import RewardConditioning, RewardConditioningConfig
from afarm_plugins.reward_model import RewardModelConfig
from afarm_plugins.reward_model.bradley_terry import BradleyTerryRewardModel
from afarm_plugins.sft import SFT, SFTConfig, SFTOnAllSplits

INSTRUCTIONS = make_instructions(4)
PREFERENCES = [judged(instruction, "w1", "w2", 1.0) for instruction in INSTRUCTIONS]


class Sampler(Policy):
    def sample(self, instructions: Sequence[Instruction], decoding: Decoding, *, seed: int) -> Iterator[Sample]:
        return iter(())

    def save(self, directory: Path) -> None: ...

    @classmethod
    def load(cls, directory: Path, context: TrainContext) -> Policy:
        return cls()


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("sft", SFT(SFTConfig())),
        ("sft_all", SFTOnAllSplits(SFTConfig())),
        ("feedme", FeedME(FeedMEConfig())),
        ("reward_conditioning", RewardConditioning(RewardConditioningConfig())),
        ("dpo", DPO(DPOConfig())),
        ("expert_iteration", ExpertIteration(ExpertIterationConfig())),
        ("ppo", PPO(PPOConfig())),
        ("quark", Quark(QuarkConfig())),
    ],
)
def test_a_start_without_weights_is_refused(tmp_path: Path, name: str, method: Method) -> None:
    inputs = MethodInputs(
        Sampler(),
        preferences=PREFERENCES,
        reward_model=tiny_reward_model(),
        unlabeled=INSTRUCTIONS,
        demonstrations=[Output(instruction, "w1") for instruction in INSTRUCTIONS],
    )
    with pytest.raises(TrainingError, match=f"^{name} trains the weights of a checkpoint.* from a Sampler"):
        method.train(inputs, make_context(tmp_path)[0])


def test_a_reward_model_needs_weights_to_start_from_too(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"^bradley_terry trains the weights of a checkpoint.* from a Sampler"):
        BradleyTerryRewardModel.fit(PREFERENCES, Sampler(), RewardModelConfig(), make_context(tmp_path)[0])
