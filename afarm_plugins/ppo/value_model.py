"""The value model and where it starts."""

from __future__ import annotations

from typing import Any

from torch import nn

from afarm import RewardModel, TrainingError
from afarm.backend import CheckpointPolicy, TorchRewardModel, add_adapter, backbone, plain_copy, sharing_copy
from afarm_plugins.ppo import PPOConfig


def start_value_model(policy: CheckpointPolicy, reward_model: RewardModel, config: PPOConfig) -> Any:
    """A classifier with the reward model's backbone (or the policy's) and a head, read before every token."""
    if config.value_init == "sft":
        model = TorchRewardModel.classifier_from(policy)
        if config.lora is not None and not hasattr(policy.model, "merge_and_unload"):
            setattr(model, model.base_model_prefix, backbone(sharing_copy(policy.model)))
    elif isinstance(reward_model, TorchRewardModel) and reward_model.reads_tokens_of(policy):
        model = plain_copy(reward_model.model, share_weights=config.lora is not None)
    else:
        raise TrainingError(
            f"{type(reward_model).__name__} has no backbone over the policy's tokens for a value model to start from: "
            "use --set ppo.value_init=sft"
        )
    head = nn.Linear(model.score.in_features, 1).to(model.score.weight)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    if config.value_head_init == "reward_model" and isinstance(reward_model, TorchRewardModel):
        weight, bias = reward_model.scalar_head()
        head.weight.data.copy_(weight)
        head.bias.data.copy_(bias)
    model.score = head
    model.requires_grad_(True)
    return model if config.lora is None else add_adapter(model, config.lora, train_also=["score"])
