"""Binary reward conditioning: one policy for good and bad outputs, chosen by a control in prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Self

from pydantic import model_validator

from afarm import (
    CheckpointChoice,
    Method,
    MethodInputs,
    Policy,
    Register,
    RewardModel,
    TrainContext,
    TrainerConfig,
    hookimpl,
    setting,
)


class RewardConditioningConfig(CheckpointChoice, TrainerConfig):
    """Binary reward conditioning. The defaults are the paper's for SFT (App. B, on LLaMA-7B)."""

    control: Literal["token", "text"] = setting(
        "token",
        "token adds two tokens to the vocabulary; text uses the two texts below, for a vocabulary that is fixed",
    )
    positive_text: str = setting(
        "Write a good response.\n\n", "in front of the prompts of preferred outputs, and of sampling", min_length=1
    )
    negative_text: str = setting(
        "Write a bad response.\n\n", "in front of the prompts of outputs that were not preferred", min_length=1
    )

    @model_validator(mode="after")
    def _texts_differ(self) -> Self:
        if self.positive_text == self.negative_text:
            raise ValueError("positive_text and negative_text are the same: nothing would tell good from bad outputs")
        return self


class RewardConditioning(Method):
    """SFT from `inputs.start` on both outputs of `inputs.preferences`, each behind its control."""

    config: RewardConditioningConfig
    needs = frozenset({"preferences"})
    samples = False
    search_space = {"learning_rate": (1e-6, 1e-3), "num_train_epochs": [1, 2, 3]}

    def check(self, reward_model: type[RewardModel] | None = None) -> Sequence[str]:
        if self.config.lora is None or self.config.control == "text":
            return ()
        return (
            "LoRA freezes the embeddings, so new control tokens would never be learned; "
            "use --set reward_conditioning.control=text",
        )

    def train(self, inputs: MethodInputs, context: TrainContext) -> Policy:
        from afarm_plugins.reward_conditioning.reward_conditioning import train_with_controls

        return train_with_controls(self.config, inputs, context)


@hookimpl
def register_methods(register: Register) -> None:
    register(
        "reward_conditioning",
        RewardConditioning,
        config=RewardConditioningConfig,
        summary="supervised fine-tuning on both outputs behind a control, sampled with the positive one",
    )
