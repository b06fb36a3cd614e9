"""PPO: reinforcement learning from a reward model, as in AlpacaFarm. The settings and the registration."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from afarm.backend.config import LoraConfig
from afarm.config import Config, setting
from afarm.hookspecs import Register, hookimpl


class PPOConfig(Config):
    """The defaults are the paper's for LLaMA-7B with simulated preferences; a recipe adapts them to its model."""

    total_steps: int = setting(
        390,
        "rollouts collected and trained on; the learning rate falls to 0 over them (390: 10 passes of 20k prompts)",
        gt=0,
    )
    rollout_batch_size: int = setting(512, "responses sampled a step", gt=0)
    mini_batch_size: int = setting(256, "responses an optimiser step", gt=0)
    num_ppo_epochs: int = setting(2, "passes over each rollout", gt=0)
    per_device_train_batch_size: int = setting(
        8, "responses a forward and backward pass; bounds memory", changes_result=False, gt=0
    )
    per_device_rollout_batch_size: int = setting(
        32, "responses sampled or scored at once; bounds memory", changes_result=False, gt=0
    )
    gradient_checkpointing: bool = setting(
        False, "recompute activations in the backward pass: less memory, more time", changes_result=False
    )
    learning_rate: float = setting(1e-5, "peak learning rate of policy and value model", gt=0)
    warmup_steps: int = setting(5, "steps over which the learning rate rises", ge=0)
    adam_epsilon: float = setting(1e-5, "Adam's ε", gt=0)
    max_grad_norm: float = setting(1.0, "L2 norm that gradients (policy and value together) are clipped to", gt=0)
    kl_coef: float = setting(0.002, "weight of the per-token KL penalty to the start policy; it stays fixed", ge=0)
    cliprange: float = setting(0.2, "how far the ratio π/π_old may move before it is clipped", gt=0, lt=1)
    cliprange_value: float = setting(0.2, "how far a value may move from the collected one before it is clipped", gt=0)
    vf_coef: float = setting(0.1, "weight of the value loss", ge=0)
    gamma: float = setting(1.0, "discount a token", ge=0, le=1)
    lam: float = setting(1.0, "λ of generalised advantage estimation", ge=0, le=1)
    temperature: float = setting(1.0, "temperature of rollouts, and of all log-probabilities", gt=0)
    max_prompt_length: int = setting(192, "tokens; longer prompts are left out and counted", gt=0)
    response_length: int = setting(300, "tokens after which a response is cut off", gt=0)
    missing_eos_penalty: float | None = setting(
        None, "taken off the score of a response that was cut off; none leaves the reward model's score as it is", ge=0
    )
    whiten_rewards: Literal["scale", "shift", "none"] = setting(
        "scale",
        "scale: divide a rollout's rewards by their standard deviation; shift: standardise, then add the mean back, as "
        "the reference implementation does (pays or charges a constant for each token); none",
    )
    whiten_advantages: Literal["rollout", "minibatch"] = setting(
        "rollout", "standardise advantages over the whole rollout, as the paper does, or within each minibatch"
    )
    value_init: Literal["reward_model", "sft"] = setting(
        "reward_model", "where the value model's trunk comes from; sft where the reward model has no trunk of its own"
    )
    value_head_init: Literal["zero", "reward_model"] = setting(
        "zero", "the value head at the start: values of 0, or the reward model's head, so that values start as scores"
    )
    lora: LoraConfig | None = setting(
        None,
        "train low-rank adapters instead of all weights: less memory for gradients and optimiser, not for weights",
    )
    save_steps: int = setting(20, "steps between checkpoints to resume from", changes_result=False, gt=0)

    @model_validator(mode="after")
    def _sizes_fit(self) -> PPOConfig:
        if self.mini_batch_size > self.rollout_batch_size:
            raise ValueError(
                f"mini_batch_size ({self.mini_batch_size}) exceeds rollout_batch_size ({self.rollout_batch_size})"
            )
        if self.warmup_steps >= self.total_steps:
            raise ValueError(
                f"warmup_steps ({self.warmup_steps}) must be below total_steps ({self.total_steps}): "
                f"--set ppo.warmup_steps={self.total_steps // 10}"
            )
        if self.value_head_init == "reward_model" and self.value_init != "reward_model":
            raise ValueError("value_head_init=reward_model needs value_init=reward_model: the head reads that trunk")
        return self


@hookimpl
def register_methods(register: Register) -> None:
    register(
        "ppo",
        "afarm_plugins.ppo.ppo:PPO",
        config=PPOConfig,
        summary="proximal policy optimisation against the reward model, with a KL penalty to the start policy",
    )
