"""Expert iteration: best-of-n, then SFT on the best. The settings and the registration."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from afarm import (
    CheckpointChoice,
    Method,
    MethodInputs,
    Policy,
    Register,
    TrainContext,
    TrainerConfig,
    hookimpl,
    setting,
)


class ExpertIterationConfig(CheckpointChoice, TrainerConfig):
    """Best-of-n, then SFT on the best. Defaults: AlpacaFarm's for LLaMA-7B, one round of 16 (App. B)."""

    n: int = setting(16, "samples per instruction, of which the one with the highest reward is learned from", ge=1)
    temperature: float = setting(1.0, "temperature of those samples", gt=0)
    response_length: int = setting(300, "tokens after which a response is cut off", gt=0)
    rounds: int = setting(
        1,
        "rounds; each samples what the one before it made, and trains the start policy anew on the best",
        ge=1,
    )
    pool: Literal["replace", "accumulate"] = setting(
        "replace",
        "replace: a round learns from its own best responses; accumulate: also from those of all rounds before it, "
        "which is what keeps many rounds from collapsing",
    )
    per_device_rollout_batch_size: int = setting(
        32, "responses sampled and scored at once; bounds memory", changes_result=False, gt=0
    )

    @model_validator(mode="after")
    def _there_is_room_for_prompts(self) -> ExpertIterationConfig:
        if self.response_length >= self.max_length:
            raise ValueError(
                f"response_length ({self.response_length}) leaves no room for a prompt in max_length "
                f"({self.max_length}): --set expert_iteration.max_length={2 * self.response_length}"
            )
        return self


class ExpertIteration(Method):
    """Rounds of best-of-n and SFT; returns the policy of the last round."""

    config: ExpertIterationConfig
    needs = frozenset({"reward_model", "unlabeled"})
    search_space = {"learning_rate": (1e-6, 1e-3), "n": [4, 8, 16], "num_train_epochs": [1, 2, 3]}

    def train(self, inputs: MethodInputs, context: TrainContext) -> Policy:
        from afarm_plugins.expert_iteration.expert_iteration import train_in_rounds

        return train_in_rounds(self.config, inputs, context)


@hookimpl
def register_methods(register: Register) -> None:
    register(
        "expert_iteration",
        ExpertIteration,
        config=ExpertIterationConfig,
        summary="best-of-n on the unlabeled instructions, then supervised fine-tuning on the best",
    )
