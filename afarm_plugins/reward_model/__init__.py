"""Reward models: one learned from preferences, and any sequence classifier that others have trained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import model_validator

from afarm import (
    Config,
    Instruction,
    JudgedPair,
    Policy,
    Register,
    RewardModel,
    Scheduler,
    Score,
    TrainContext,
    TrainerConfig,
    hookimpl,
    setting,
)


class RewardModelConfig(TrainerConfig):
    """A Bradley–Terry reward model. The defaults are the paper's (App. B, on LLaMA-7B)."""

    learning_rate: float = setting(3e-6, "peak learning rate of AdamW", gt=0)
    head_learning_rate: float | None = setting(None, "peak learning rate of the new head (unset: learning_rate)", gt=0)
    lr_scheduler_type: Scheduler = setting("cosine", "how the learning rates fall after warm-up")
    num_train_epochs: float = setting(1.0, "passes over the preferences", gt=0)
    per_device_train_batch_size: int = setting(
        64, "pairs in one forward pass; times gradient_accumulation_steps it is the batch of one step", ge=1
    )
    head_init_std: float | None = setting(
        None,
        "standard deviation of the new heads' weights at the start (unset: 0, or 1/√(width + 1) in an ensemble)",
        ge=0,
    )
    keep_draws: bool = setting(False, "learn from draws as even preferences (p2 = 0.5) instead of dropping them")
    eval_fraction: float = setting(0.05, "share of the instructions held out to measure on", ge=0, lt=1)
    eval_steps: int = setting(0, "steps between measurements on the held-out pairs; 0 measures at the end only", ge=0)
    early_stopping_patience: int | None = setting(
        None,
        "stop after so many measurements without a lower held-out loss, and keep the weights of the lowest "
        "(unset: train to the end, keep the last)",
        ge=1,
    )
    standardize_outputs: int = setting(
        2000, "outputs of the preferences whose rewards are made mean 0, std 1; 0 leaves rewards as they are", ge=0
    )
    ensemble: int = setting(1, "members, each fitted to preferences weighted by its own bootstrap", ge=1)
    members: Literal["heads", "adapters"] = setting(
        "heads", "what members have of their own: a head on one backbone, or an adapter (lora) and a head each"
    )
    aggregate: Literal["mean", "min", "penalised"] = setting(
        "mean",
        "the members' rewards as one: mean, min, or penalised, their mean less spread_penalty times their spread",
    )
    spread_penalty: float = setting(1.0, "reward taken off for each standard deviation over members", ge=0)

    @model_validator(mode="after")
    def _fit_together(self) -> RewardModelConfig:
        if self.early_stopping_patience and not (self.eval_steps and self.eval_fraction):
            raise ValueError(
                "early_stopping_patience needs eval_steps and eval_fraction above 0: it looks at held-out pairs"
            )
        if self.members == "adapters" and self.lora is None:
            raise ValueError("members=adapters needs adapters: set lora (lora={r: 16, alpha: 32}), or members=heads")
        return self


class ClassifierConfig(Config):
    """A sequence classifier trained by others: its template and limits."""

    template: Literal["auto", "chat", "alpaca", "pair"] = setting(
        "auto",
        "what it reads: chat (its tokenizer's chat template around both turns), alpaca (headed sections), or pair "
        "(instruction and output as two texts); auto: what it was saved with here, else its chat template, else pair",
    )
    max_length: int = setting(
        2048,
        "tokens it reads at most; the excess is cut from the instruction's beginning, and counted",
        ge=2,
    )
    per_device_batch_size: int = setting(16, "outputs scored in one forward pass", ge=1, changes_result=False)


class UnfittedBradleyTerry(RewardModel):
    """A reward model to be fitted to preferences; a fitted one is a `BradleyTerryRewardModel`."""

    has_backbone: ClassVar[bool] = True

    @classmethod
    def fit(
        cls, preferences: Sequence[JudgedPair], start: Policy, config: RewardModelConfig, context: TrainContext
    ) -> RewardModel:
        from afarm_plugins.reward_model.bradley_terry import BradleyTerryRewardModel

        return BradleyTerryRewardModel.fit(preferences, start, config, context)

    @classmethod
    def load(cls, directory: Path, context: TrainContext) -> RewardModel:
        from afarm_plugins.reward_model.bradley_terry import BradleyTerryRewardModel

        return BradleyTerryRewardModel.load(directory, context)

    def score(self, instructions: Sequence[Instruction], outputs: Sequence[str]) -> Sequence[Score]:
        raise NotImplementedError("only a fitted reward model scores")


@hookimpl
def register_reward_models(register: Register) -> None:
    register(
        "bradley_terry",
        UnfittedBradleyTerry,
        config=RewardModelConfig,
        summary="Bradley–Terry on preferences, from the SFT model with a scalar head",
    )
    register(
        "classifier",
        "afarm_plugins.reward_model.classifier:ClassifierRewardModel",
        config=ClassifierConfig,
        summary="any sequence classifier: classifier:ORG/NAME of the Hub, or classifier:DIRECTORY",
        spec="MODEL",
    )
