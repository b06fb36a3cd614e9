"""Quark: learning from one's own samples, sorted into quantiles by reward. Settings and registration."""

from __future__ import annotations

from typing import ClassVar, Literal

from afarm import (
    LoraConfig,
    Method,
    MethodInputs,
    OnPolicyConfig,
    Policy,
    Register,
    TrainContext,
    hookimpl,
    setting,
)


class QuarkConfig(OnPolicyConfig):
    """Defaults of AlpacaFarm for LLaMA-7B, with five quantiles as in Lu et al. 2022."""

    method_name: ClassVar[str] = "Quark"
    even_sizes: ClassVar[tuple[str, ...]] = ("rollout_batch_size",)
    """Processes that shard need not divide minibatches: `quark.read_divergence` fills up."""

    variant: Literal["top", "all"] = setting(
        "top",
        "top: learn from the best quantile alone; all: from each, with a control token in front of its prompts that "
        "names it, and sample with the best one's",
    )
    num_quantiles: int = setting(5, "quantiles that responses are sorted into by reward", ge=2)
    pool: Literal["reset", "keep"] = setting(
        "reset", "reset: a step learns from its own responses; keep: from those of all steps so far"
    )
    num_epochs: int = setting(
        2, "passes per step over what it learns from, each of at most rollout_batch_size responses", gt=0
    )
    learning_rate: float = setting(3e-6, "peak learning rate", gt=0)
    kl_coef: float = setting(0.05, "weight of the exact KL to the start policy at each token", ge=0)
    entropy_coef: float = setting(0.0, "weight of the entropy bonus at each token", ge=0)
    lora: LoraConfig | None = setting(
        None, "train low-rank adapters (and control tokens' embeddings) instead of all weights (unset: all weights)"
    )


class Quark(Method):
    """Quark, which returns the policy after the last step."""

    config: QuarkConfig
    needs = frozenset({"reward_model", "unlabeled"})
    measures_kl = True
    search_space = {"learning_rate": (1e-6, 1e-3), "kl_coef": (0.01, 1.0), "num_quantiles": [3, 5, 10]}

    def train(self, inputs: MethodInputs, context: TrainContext) -> Policy:
        """Raises `TrainingError` if it diverges before a checkpoint, `DataError` if all prompts are too long."""
        from afarm_plugins.quark.quark import train_quark

        return train_quark(self.config, inputs, context)


@hookimpl
def register_methods(register: Register) -> None:
    register(
        "quark",
        Quark,
        config=QuarkConfig,
        summary="trains on the samples of the best quantile by reward, with the exact KL to the start policy",
    )
