"""Quark: learning from one's own samples, sorted into quantiles by reward. The settings and the registration."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from afarm import Config, LoraConfig, Register, hookimpl, setting


class QuarkConfig(Config):
    """The defaults are AlpacaFarm's for LLaMA-7B, and of five quantiles as in Lu et al. 2022."""

    variant: Literal["top", "all"] = setting(
        "top",
        "top: learn from the best quantile alone; all: from each, with a control token in front of its prompts that "
        "names it, and sample with the best one's",
    )
    num_quantiles: int = setting(5, "quantiles that responses are sorted into by reward", ge=2)
    pool: Literal["reset", "keep"] = setting(
        "reset", "reset: a step learns from its own responses; keep: from those of all steps so far"
    )
    total_steps: int = setting(
        390,
        "rollouts collected and trained on; the learning rate falls to 0 over them (390: 10 passes of 20k prompts)",
        gt=0,
    )
    rollout_batch_size: int = setting(512, "responses sampled a step", gt=0)
    mini_batch_size: int = setting(256, "responses an optimiser step; the last of a pass may be smaller", gt=0)
    num_epochs: int = setting(
        2, "passes a step over what it learns from, each of at most rollout_batch_size responses", gt=0
    )
    per_device_train_batch_size: int = setting(
        8, "responses a forward and backward pass; bounds memory", changes_result=False, gt=0
    )
    per_device_rollout_batch_size: int = setting(
        32, "responses sampled at once; bounds memory", changes_result=False, gt=0
    )
    gradient_checkpointing: bool = setting(
        False, "recompute activations in the backward pass: less memory, more time", changes_result=False
    )
    learning_rate: float = setting(3e-6, "peak learning rate", gt=0)
    warmup_steps: int = setting(5, "steps over which the learning rate rises", ge=0)
    adam_epsilon: float = setting(1e-5, "Adam's ε", gt=0)
    max_grad_norm: float = setting(1.0, "L2 norm that gradients are clipped to", gt=0)
    kl_coef: float = setting(0.05, "weight of the exact KL to the start policy at each token", ge=0)
    entropy_coef: float = setting(0.0, "weight of the entropy bonus at each token", ge=0)
    max_kl: float | None = setting(
        200.0, "training stops where the KL exceeds it, in nats a response; the last checkpoint counts", gt=0
    )
    temperature: float = setting(1.0, "temperature of rollouts", gt=0)
    max_prompt_length: int = setting(192, "tokens; longer prompts are left out and counted", gt=0)
    response_length: int = setting(300, "tokens after which a response is cut off", gt=0)
    lora: LoraConfig | None = setting(
        None, "train low-rank adapters (and control tokens' embeddings) instead of all weights (unset: all weights)"
    )
    save_steps: int = setting(20, "steps between checkpoints to resume from", changes_result=False, gt=0)

    @model_validator(mode="after")
    def _sizes_fit(self) -> QuarkConfig:
        if self.mini_batch_size > self.rollout_batch_size:
            raise ValueError(
                f"mini_batch_size ({self.mini_batch_size}) exceeds rollout_batch_size ({self.rollout_batch_size})"
            )
        if self.warmup_steps >= self.total_steps:
            raise ValueError(
                f"warmup_steps ({self.warmup_steps}) must be below total_steps ({self.total_steps}): "
                f"--set quark.warmup_steps={self.total_steps // 10}"
            )
        if self.lora is not None and self.lora.dropout:
            raise ValueError("lora.dropout has no effect here: dropout is off throughout")
        return self


@hookimpl
def register_methods(register: Register) -> None:
    register(
        "quark",
        "afarm_plugins.quark.quark:Quark",
        config=QuarkConfig,
        summary="trains on the samples of the best quantile by reward, with the exact KL to the start policy",
    )
