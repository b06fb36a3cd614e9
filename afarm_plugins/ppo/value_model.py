"""The value model: where it starts, and how it is read."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn

from afarm.backend import (
    CheckpointPolicy,
    TokenBatch,
    TorchRewardModel,
    add_adapter,
    merge_adapter,
    response_scatter,
    token_scores,
)
from afarm.errors import TrainingError
from afarm.interfaces import RewardModel
from afarm_plugins.ppo import PPOConfig


def start_value_model(policy: CheckpointPolicy, reward_model: RewardModel, config: PPOConfig) -> Any:
    """A classifier with the reward model's trunk (or the policy's) and a head, read at every position by `values`."""
    if config.value_init == "sft":
        model = TorchRewardModel.classifier_from(policy)
    elif isinstance(reward_model, TorchRewardModel) and same_tokens(reward_model, policy):
        model = merge_adapter(copy.deepcopy(reward_model.model))
    else:
        raise TrainingError(
            f"{type(reward_model).__name__} has no trunk over the policy's tokens for a value model to start from: "
            "use --set ppo.value_init=sft"
        )
    head = nn.Linear(model.score.in_features, 1).to(model.score.weight)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    if config.value_head_init == "reward_model" and isinstance(reward_model, TorchRewardModel):
        head.weight.data.copy_(model.score.weight.data / reward_model.std)
        head.bias.data.fill_(-reward_model.mean / reward_model.std)
    model.score = head
    model.requires_grad_(True)
    return model if config.lora is None else add_adapter(model, config.lora, train_also=["score"])


def values(model: nn.Module, batch: TokenBatch) -> Tensor:
    """The value of the state before each response token: [b, r], left-aligned as log-probabilities are, 0 at pads."""
    rows, columns = batch.response_mask.nonzero(as_tuple=True)
    at_tokens = token_scores(model, batch.input_ids, batch.attention_mask)[rows, columns - 1]
    return response_scatter(at_tokens, batch.response_mask)


def same_tokens(reward_model: RewardModel, policy: CheckpointPolicy) -> bool:
    """Whether the reward model reads tokens at all, and prompts and responses exactly as the policy writes them."""
    if not isinstance(reward_model, TorchRewardModel):
        return False
    ours, theirs = policy.tokenizer, reward_model.tokenizer
    return (
        ours.get_vocab() == theirs.get_vocab()
        and ours.chat_template == theirs.chat_template
        and policy.template.name == reward_model.template.name
    )
