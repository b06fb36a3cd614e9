"""The networks of PPO (policy, reference, value model) and how they share memory.

separate: networks of their own, as in the paper. With LoRA the frozen weights are those of the start policy and of the
reward model, not copies.

shared: one frozen backbone, the start policy's own weights. The policy is an adapter on it, the reference is the
backbone with no adapter, and the value model is a linear head: on the policy's hidden states (`shared_value=backbone`,
one forward and backward pass for both losses) or on those of a second adapter (`adapter`, which learns nothing of the
policy's and costs a pass of its own). The reward model stays apart: what is loaded of one is merged weights.

Every quantity is of response tokens, flat and row after row: [n].
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn
from transformers import PreTrainedModel

from afarm import RewardModel, TrainingError
from afarm.backend import (
    CheckpointPolicy,
    TokenBatch,
    TorchRewardModel,
    active_adapter,
    add_adapter,
    head_scores,
    plain_copy,
    states_before,
    token_logprobs,
    token_loss,
)
from afarm_plugins.ppo import PPOConfig

VALUE = "value"
"""The name of the value model's adapter."""


class Losses(NamedTuple):
    """The losses of some rows, as functions of predictions for their response tokens at a slice of them."""

    policy: Callable[[Tensor, slice], Tensor]
    value: Callable[[Tensor, slice], Tensor]


Learner = Callable[[TokenBatch, Losses], None]
"""Adds the gradient of the losses of some rows."""


class Networks(ABC):
    """The networks that a step reads and trains. `independent` readers and learners may run side by side."""

    independent: bool
    value: nn.Module | None
    """The network trained beside the policy; None for a run without values."""

    def __init__(self, policy: CheckpointPolicy, config: PPOConfig):
        self.policy = policy
        self.temperature = config.temperature

    @abstractmethod
    def ref_logprobs(self, batch: TokenBatch) -> Tensor:
        """Log-probabilities under the start policy."""

    @abstractmethod
    def values(self, batch: TokenBatch) -> Tensor:
        """The value of the state before each token."""

    @abstractmethod
    def learners(self) -> Sequence[Learner]:
        """Learners that together take all losses."""

    def logprobs(self, batch: TokenBatch) -> Tensor:
        """Log-probabilities under the policy."""
        return self.read(self.policy.model, batch)

    def read(self, model: PreTrainedModel, batch: TokenBatch) -> Tensor:
        """Log-probabilities under `model`, with the adapters that are active."""
        return token_logprobs(model, *states_before(model, batch), temperature=self.temperature)

    def policy_loss(self, hidden: Tensor, targets: Tensor, losses: Losses) -> Tensor:
        """The policy loss of response tokens `targets` [n] behind hidden states [n, H], a chunk at a time."""
        return token_loss(self.policy.model, hidden, targets, losses.policy, temperature=self.temperature)


class SeparateNetworks(Networks):
    """Policy, reference and value model apart."""

    independent = True

    def __init__(self, policy: CheckpointPolicy, reference: PreTrainedModel, value_model: Any, config: PPOConfig):
        super().__init__(policy, config)
        self.reference = reference
        self.value = value_model

    def ref_logprobs(self, batch: TokenBatch) -> Tensor:
        return self.read(self.reference, batch)

    def values(self, batch: TokenBatch) -> Tensor:
        model: Any = self.value
        return head_values(model.score, states_before(model, batch)[0])

    def learners(self) -> Sequence[Learner]:
        return (self.learn_policy,) if self.value is None else (self.learn_policy, self.learn_values)

    def learn_policy(self, batch: TokenBatch, losses: Losses) -> None:
        """Add the gradient of the policy loss."""
        self.policy_loss(*states_before(self.policy.model, batch), losses).backward()

    def learn_values(self, batch: TokenBatch, losses: Losses) -> None:
        """Add the gradient of the value loss."""
        losses.value(self.values(batch), slice(None)).backward()


class SharedNetworks(Networks):
    """Adapters and a value head on the start policy's own weights, which stay as they are."""

    independent = False  # they switch adapters on one model
    value: nn.Module

    def __init__(self, policy: CheckpointPolicy, config: PPOConfig):
        super().__init__(policy, config)
        assert config.lora is not None  # the configuration says so
        model = policy.model
        self.value_adapter = VALUE if config.shared_value == "adapter" else None
        if self.value_adapter:
            add_adapter(model, config.lora, name=VALUE)
        self.value = zero_head(model.config.get_text_config().hidden_size).to(model.device)  # in float32

    def ref_logprobs(self, batch: TokenBatch) -> Tensor:
        with active_adapter(self.policy.model, None):
            return self.read(self.policy.model, batch)

    def values(self, batch: TokenBatch) -> Tensor:
        if not self.value_adapter:
            return self.head_values(batch)
        with active_adapter(self.policy.model, VALUE):
            return self.head_values(batch)

    def head_values(self, batch: TokenBatch) -> Tensor:
        """The head on the hidden states of the adapter that is active."""
        return head_values(self.value, states_before(self.policy.model, batch)[0])

    def learners(self) -> Sequence[Learner]:
        return (self.learn_in_turn if self.value_adapter else self.learn_together,)

    def learn_together(self, batch: TokenBatch, losses: Losses) -> None:
        """Add the gradient of both losses of one forward pass."""
        hidden, targets = states_before(self.policy.model, batch)
        values = head_values(self.value, hidden)
        (self.policy_loss(hidden, targets, losses) + losses.value(values, slice(None))).backward()

    def learn_in_turn(self, batch: TokenBatch, losses: Losses) -> None:
        """Add the gradient of the policy loss, then with the value's adapter that of the value loss."""
        self.policy_loss(*states_before(self.policy.model, batch), losses).backward()
        with active_adapter(self.policy.model, VALUE):  # around the backward pass too, which may recompute
            losses.value(self.head_values(batch), slice(None)).backward()


def start_value_model(start: CheckpointPolicy, reward_model: RewardModel, config: PPOConfig) -> Any:
    """A classifier with the reward model's backbone (or the policy's) and a head, read before every token.

    Raises `TrainingError` if it is to start from a reward model that has no backbone over the policy's tokens.
    """
    if config.value_init == "sft":
        model = TorchRewardModel.classifier_from(start, share_weights=config.lora is not None)
    elif isinstance(reward_model, TorchRewardModel) and reward_model.reads_tokens_of(start):
        model = plain_copy(reward_model.model, share_weights=config.lora is not None)
    else:
        raise TrainingError(
            f"{type(reward_model).__name__} has no backbone over the policy's tokens for a value model to start from: "
            "use --set ppo.value_init=sft"
        )
    head = zero_head(model.score.in_features).to(model.score.weight)
    if config.value_head_init == "reward_model" and isinstance(reward_model, TorchRewardModel):
        weight, bias = reward_model.scalar_head()
        head.weight.data.copy_(weight)
        head.bias.data.copy_(bias)
    model.score = head
    model.requires_grad_(True)
    return model if config.lora is None else add_adapter(model, config.lora, train_also=["score"])


def zero_head(width: int) -> nn.Linear:
    """A value head that says 0."""
    head = nn.Linear(width, 1)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head


def head_values(head: nn.Module, hidden: Tensor) -> Tensor:
    """Values [n] of hidden states [n, H]."""
    return head_scores(head, hidden).squeeze(-1)
