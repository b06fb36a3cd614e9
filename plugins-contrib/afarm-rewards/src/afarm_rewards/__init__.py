"""Reward models: by strength, by scores, of several attributes, generative, with uncertainty."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import model_validator

from afarm import (
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


class FittedConfig(TrainerConfig):
    """What all reward models of this package are fitted by."""

    learning_rate: float = setting(3e-6, "peak learning rate of AdamW", gt=0)
    lr_scheduler_type: Scheduler = setting("cosine", "how the learning rates fall after warm-up")
    num_train_epochs: float = setting(1.0, "passes over the preferences", gt=0)
    per_device_train_batch_size: int = setting(
        64, "pairs in one forward pass; times gradient_accumulation_steps it is the batch of one step", ge=1
    )
    eval_fraction: float = setting(0.05, "share of the instructions held out to measure on", ge=0, lt=1)
    standardize_outputs: int = setting(
        2000, "outputs of the preferences whose rewards are made mean 0, std 1; 0 leaves rewards as they are", ge=0
    )
    conservatism: float = setting(
        0.0, "k in the reward mean − k · std, where the model knows how unsure it is of an output", ge=0
    )

    @cached_property
    def section(self) -> str:
        """The name that the reward model is registered under."""
        return "reward_model"  # until `model_post_init` says

    def model_post_init(self, context: Any, /) -> None:
        vars(self).update(context or {})


class HeadsConfig(FittedConfig):
    """Heads on the policy's backbone, by one of several losses, perhaps with their uncertainty."""

    head_learning_rate: float | None = setting(None, "peak learning rate of the new heads (unset: learning_rate)", gt=0)
    loss: Literal["bradley_terry", "margin", "scaled", "ordinal", "regression"] = setting(
        "bradley_terry",
        "bradley_terry; margin: by at least the pair's strength; scaled: times the strength; ordinal: the strength as "
        "a probability; regression: squared error of the outputs' own numbers",
    )
    strength: Literal["auto", "strength", "scores", "votes"] = setting(
        "auto",
        "where a pair's strength is from: its column, the difference of the outputs' scores, how far its label is from "
        "even; auto: the first of these that the pairs have",
    )
    strength_scale: float = setting(1.0, "factor of strengths: in margin in log odds, in scaled of a pair's loss", gt=0)
    weights: dict[str, float] = setting(
        {}, "regression: a head for each of these numbers, and its weight in the reward; {}: every attribute, 1 each"
    )
    on_missing: Literal["error", "drop", "plain"] = setting(
        "error", "pairs without a strength or a number: an error, left out, or (strength only) plain Bradley–Terry"
    )
    uncertainty: Literal["none", "ensemble", "laplace"] = setting(
        "none",
        "ensemble: heads fitted to bootstraps of the pairs; laplace: a Gaussian around the head, by the curvature of "
        "the loss",
    )
    members: int = setting(8, "heads of an ensemble", ge=2)

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if self.conservatism and self.uncertainty == "none":
            raise ValueError("conservatism needs uncertainty: set it to laplace or ensemble")
        if self.loss == "regression" and self.on_missing == "plain":
            raise ValueError("on_missing=plain is for strengths; regression has error, or drop")
        if self.loss != "regression" and self.weights:
            raise ValueError("weights are those of numbers to predict: set loss=regression")
        if self.weights and not any(self.weights.values()):
            raise ValueError(f"weights {self.weights} are all 0: every reward would be 0")
        return self


class GenerativeConfig(FittedConfig):
    """A language model that says if an answer is good; the reward is the log odds of its verdict."""

    per_device_train_batch_size: int = setting(
        64, "outputs in one forward pass; times gradient_accumulation_steps it is the batch of one step", ge=1
    )
    verdicts: tuple[str, str] = setting(("Yes", "No"), "the words for a good answer and for a bad one")
    reasons: int = setting(0, "reasons that are written before a verdict, which is averaged over them; 0: none", ge=0)
    reason_tokens: int = setting(64, "tokens of a reason at most", ge=1)
    reason_temperature: float = setting(0.7, "temperature at which reasons are written", gt=0)
    per_device_score_batch_size: int = setting(64, "outputs scored in one forward pass", ge=1, changes_result=False)

    @model_validator(mode="after")
    def _words_differ(self) -> Self:
        good, bad = (word.strip() for word in self.verdicts)
        if good == bad or not (good and bad):
            raise ValueError(f"verdicts are {good!r} and {bad!r}: give two different words")
        if self.conservatism and self.reasons < 2:
            raise ValueError("conservatism needs reasons=2 or more: it is their verdicts that differ")
        return self


class _Unfitted(RewardModel):
    """A reward model to be fitted; loads torch when it is."""

    has_backbone: ClassVar[bool] = True

    def score(self, instructions: Sequence[Instruction], outputs: Sequence[str]) -> Sequence[Score]:
        raise NotImplementedError("only a fitted reward model scores")


class UnfittedHeads(_Unfitted):
    """See `afarm_rewards.heads`."""

    @classmethod
    def fit(
        cls, preferences: Sequence[JudgedPair], start: Policy, config: HeadsConfig, context: TrainContext
    ) -> RewardModel:
        from afarm_rewards.heads import HeadRewardModel

        return HeadRewardModel.fit(preferences, start, config, context)

    @classmethod
    def load(cls, directory: Path, context: TrainContext) -> RewardModel:
        from afarm_rewards.heads import HeadRewardModel

        return HeadRewardModel.load(directory, context)


class UnfittedGenerative(_Unfitted):
    """See `afarm_rewards.generative`."""

    has_backbone: ClassVar[bool] = False

    @classmethod
    def fit(
        cls, preferences: Sequence[JudgedPair], start: Policy, config: GenerativeConfig, context: TrainContext
    ) -> RewardModel:
        from afarm_rewards.generative import GenerativeRewardModel

        return GenerativeRewardModel.fit(preferences, start, config, context)

    @classmethod
    def load(cls, directory: Path, context: TrainContext) -> RewardModel:
        from afarm_rewards.generative import GenerativeRewardModel

        return GenerativeRewardModel.load(directory, context)


TOY: dict[str, Any] = {
    "learning_rate": 1e-4,
    "num_train_epochs": 2,
    "per_device_train_batch_size": 32,
    "gradient_accumulation_steps": 2,
    "max_length": 96,
}
SMOL: dict[str, Any] = {
    "learning_rate": 3e-4,
    "num_train_epochs": 1,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 2,
    "max_length": 256,
    "lora": {"r": 16, "alpha": 32},
}
HEADS: dict[str, Any] = {"head_learning_rate": 1e-3}
"""Under toy and smol, rates, passes and batches are bradley_terry's."""

KINDS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "margin_reward": (
        "Bradley–Terry with a margin: a pair's strength, or the difference of its scores",
        {"loss": "margin"},
        {"on_missing": "plain"},  # its pool says no strengths
    ),
    "scaled_reward": (
        "Bradley–Terry, each pair's loss times its strength",
        {"loss": "scaled"},
        {"on_missing": "plain"},
    ),
    "ordinal_reward": (
        "Bradley–Terry on ordinal strengths, as probabilities between even and certain",
        {"loss": "ordinal"},
        {"on_missing": "plain"},
    ),
    "regression_reward": (
        "predicts the score of an output, by squared error",
        {"loss": "regression", "weights": {"score": 1.0}},
        {"on_missing": "drop"},  # half of its flipped labels are coins, which have no scores
    ),
    "attributes_reward": (
        "predicts several attributes (helpfulness, verbosity …), weighted to one reward",
        {"loss": "regression"},
        {"on_missing": "drop"},
    ),
    "uncertain_reward": (
        "Bradley–Terry that knows how unsure it is, by Laplace or an ensemble: mean − k · std",
        {"uncertainty": "laplace", "conservatism": 1.0},
        {},
    ),
}
"""Reward models with heads: summary, own defaults, own settings under toy."""


@hookimpl
def register_reward_models(register: Register) -> None:
    for name, (summary, defaults, toy) in KINDS.items():
        recipes = {"toy": {**TOY, **HEADS, **toy}, "smol": {**SMOL, **HEADS}}
        register(name, UnfittedHeads, config=HeadsConfig, summary=summary, defaults=defaults, recipes=recipes)
    register(
        "generative_reward",
        UnfittedGenerative,
        config=GenerativeConfig,
        summary="a language model that says if an answer is good, with a reason or without: the odds of its verdict",
        recipes={"toy": {**TOY, "verdicts": ("yes", "no"), "max_length": 160}, "smol": SMOL},
    )
