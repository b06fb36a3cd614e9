"""PPO: reinforcement learning from a reward model, as in AlpacaFarm. Settings and registration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import model_validator

from afarm import (
    Method,
    MethodInputs,
    OnPolicyConfig,
    Policy,
    Register,
    RewardModel,
    TrainContext,
    hookimpl,
    setting,
)


class PPOConfig(OnPolicyConfig):
    """Defaults of the paper for LLaMA-7B with simulated preferences; a recipe adapts them to its model."""

    method_name: ClassVar[str] = "PPO"
    has_values: ClassVar[bool] = True
    """A value model is trained beside the policy: `afarm memory` counts both."""

    num_ppo_epochs: int = setting(2, "passes over each rollout", gt=0)
    learning_rate: float = setting(1e-5, "peak learning rate of policy and value model", gt=0)
    value_head_learning_rate: float | None = setting(
        None, "peak learning rate of the value model's head (unset: learning_rate)", gt=0
    )
    max_grad_norm: float = setting(1.0, "L2 norm that gradients (policy and value together) are clipped to", gt=0)
    kl_coef: float = setting(0.002, "weight of the per-token KL penalty to the start policy", ge=0)
    kl_penalty: Literal["k1", "clamped"] = setting(
        "k1",
        "what a token is charged kl_coef for: k1, its log ratio to the start policy, whose mean is the KL; clamped, "
        "that but never below 0, as in the reference implementation",
    )
    kl_controller: Literal["fixed", "adaptive"] = setting(
        "fixed", "fixed: kl_coef stays, as in the paper; adaptive: it follows the KL to kl_target from there"
    )
    kl_target: float = setting(6.0, "the KL that adaptive aims at, in nats per response", gt=0)
    kl_horizon: int = setting(10000, "responses within which adaptive changes the coefficient by a fifth at most", gt=0)
    target_approx_kl: float | None = setting(
        None,
        "the rest of a rollout's passes is left out once a minibatch's approximate KL to the policy that sampled it "
        "exceeds this, in nats per token",
        gt=0,
    )
    cliprange: float = setting(0.2, "how far the ratio π/π_old may move before it is clipped", gt=0, lt=1)
    cliprange_value: float = setting(0.2, "how far a value may move from the collected one before it is clipped", gt=0)
    vf_coef: float = setting(0.1, "weight of the value loss", ge=0)
    gamma: float = setting(1.0, "discount per token", ge=0, le=1)
    lam: float = setting(1.0, "λ of generalised advantage estimation", ge=0, le=1)
    temperature: float = setting(1.0, "temperature of rollouts, and of all log-probabilities", gt=0)
    missing_eos_penalty: float | None = setting(
        None, "taken off the score of a response that was cut off; none leaves the reward model's score as it is", ge=0
    )
    whiten_rewards: Literal["scale", "shift", "none"] = setting(
        "scale",
        "scale: divide a rollout's rewards by their standard deviation; shift: standardise over response_length "
        "positions of each response, pads included, and add the mean back, as the reference implementation does (needs "
        "gamma=1 and lam=1); none",
    )
    whiten_advantages: Literal["rollout", "minibatch"] = setting(
        "rollout", "standardise advantages over the whole rollout, as the paper does, or within each minibatch"
    )
    value_init: Literal["reward_model", "sft"] = setting(
        "reward_model",
        "where the value model's backbone comes from; sft if the reward model has no backbone of its own",
    )
    value_head_init: Literal["zero", "reward_model"] = setting(
        "zero", "the value head at the start: values of 0, or the reward model's head, so that values start as scores"
    )
    layout: Literal["separate", "shared"] = setting(
        "separate",
        "separate: policy, reference and value model apart, as in the paper; shared: adapters and a value head on one "
        "frozen backbone, which needs lora",
    )
    shared_value: Literal["backbone", "adapter"] = setting(
        "backbone",
        "what the value head of the shared layout reads: the policy's own hidden states, or those of a second adapter",
    )
    checkpoint: Literal["best", "last"] = setting(
        "best", "best: of the checkpoints, that with the highest win rate over the start policy on the validation split"
    )

    @model_validator(mode="after")
    def _settings_fit(self) -> PPOConfig:
        if self.kl_controller == "adaptive" and (self.kl_coef == 0 or self.kl_horizon < self.rollout_batch_size):
            raise ValueError(
                f"kl_controller=adaptive multiplies kl_coef ({self.kl_coef:g}), which must be above 0, over kl_horizon "
                f"({self.kl_horizon}) responses, at least rollout_batch_size ({self.rollout_batch_size})"
            )
        if self.whiten_rewards == "shift" and (self.gamma, self.lam) != (1, 1):
            raise ValueError(
                f"whiten_rewards=shift is known for gamma=1 and lam=1 only (they are {self.gamma:g} and {self.lam:g}): "
                "it pays for pads, which have no value here; use whiten_rewards=scale"
            )
        if self.value_head_init == "reward_model" and self.value_init != "reward_model":
            raise ValueError("value_head_init=reward_model needs value_init=reward_model: the head reads that backbone")
        if self.layout == "shared" and (self.lora is None or self.value_init != "sft"):
            raise ValueError(
                "layout=shared trains adapters on the start policy: it needs --set ppo.lora={} "
                "and --set ppo.value_init=sft"
            )
        return self


class PPO(Method):
    """PPO, which returns the policy of the best or the last step."""

    config: PPOConfig
    needs = frozenset({"reward_model", "unlabeled"})
    measures_kl = True
    search_space = {
        "learning_rate": (1e-6, 1e-3),
        "value_head_learning_rate": (1e-4, 3e-2),
        "kl_coef": (1e-3, 1.0),
        "num_ppo_epochs": [1, 2, 4],
    }

    def check(self, reward_model: type[RewardModel] | None = None) -> Sequence[str]:
        if reward_model is None or reward_model.has_backbone or self.config.value_init == "sft":
            return ()
        return (f"{reward_model.__name__} has no backbone for a value model to start from: --set ppo.value_init=sft",)

    def train(self, inputs: MethodInputs, context: TrainContext) -> Policy:
        """Raises `TrainingError` if it diverges before a checkpoint, `DataError` if no prompt is short enough."""
        from afarm_plugins.ppo.ppo import train_ppo

        return train_ppo(self.config, inputs, context)


@hookimpl
def register_methods(register: Register) -> None:
    register(
        "ppo",
        PPO,
        config=PPOConfig,
        summary="proximal policy optimisation against the reward model, with a KL penalty to the start policy",
    )
