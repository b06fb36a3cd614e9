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

from torch import Tensor, nn
from transformers import PreTrainedModel

from afarm import RewardModel
from afarm.backend import (
    CheckpointPolicy,
    TokenBatch,
    active_adapter,
    add_adapter,
    before_responses,
    enable_gradient_checkpointing,
    head_scores,
    token_logprobs,
    token_loss,
    trainable_copy,
)
from afarm_plugins.ppo import PPOConfig
from afarm_plugins.ppo.rollout import Losses
from afarm_plugins.ppo.value_model import start_value_model

Learner = Callable[[TokenBatch, Losses], None]
"""Adds the gradient of the losses of some rows."""

VALUE = "value"
"""The name of the value model's adapter."""


class Networks(ABC):
    """What a step reads and trains. `independent` readers and learners may run side by side."""

    independent: bool
    policy: CheckpointPolicy
    models: nn.ModuleDict
    """All that is trained."""

    def __init__(self, config: PPOConfig):
        self.temperature = config.temperature
        self.gradient_checkpointing = config.gradient_checkpointing

    def ready(self) -> dict[str, nn.Parameter]:
        """In eval mode, since dropout stays off throughout; returns the trained parameters by name."""
        self.models.eval()
        if self.gradient_checkpointing:
            enable_gradient_checkpointing(self.models)
        return {name: p for name, p in self.models.named_parameters() if p.requires_grad}

    @abstractmethod
    def logprobs(self, batch: TokenBatch) -> Tensor:
        """The policy's log-probabilities."""

    @abstractmethod
    def ref_logprobs(self, batch: TokenBatch) -> Tensor:
        """The start policy's log-probabilities."""

    @abstractmethod
    def values(self, batch: TokenBatch) -> Tensor:
        """The value of the state before each token."""

    @abstractmethod
    def learners(self) -> Sequence[Learner]:
        """Together they take both losses."""

    def read(self, model: PreTrainedModel, batch: TokenBatch) -> Tensor:
        return token_logprobs(model, *hidden_before(model, batch), temperature=self.temperature)

    def policy_loss(self, hidden: Tensor, targets: Tensor, losses: Losses) -> Tensor:
        return token_loss(self.policy.model, hidden, targets, losses.policy, temperature=self.temperature)


class SeparateNetworks(Networks):
    """Policy, reference and value model apart."""

    independent = True

    def __init__(self, start: CheckpointPolicy, reward_model: RewardModel, config: PPOConfig):
        super().__init__(config)
        self.reference = start.model.eval()  # never touched: what is trained is a copy
        self.policy = trainable_copy(start, config.lora)
        self.value_model = start_value_model(start, reward_model, config)
        self.models = nn.ModuleDict({"policy": self.policy.model, "value": self.value_model})

    def logprobs(self, batch: TokenBatch) -> Tensor:
        return self.read(self.policy.model, batch)

    def ref_logprobs(self, batch: TokenBatch) -> Tensor:
        return self.read(self.reference, batch)

    def values(self, batch: TokenBatch) -> Tensor:
        return head_values(self.value_model.score, hidden_before(self.value_model, batch)[0])

    def learners(self) -> Sequence[Learner]:
        return self.learn_policy, self.learn_values

    def learn_policy(self, batch: TokenBatch, losses: Losses) -> None:
        self.policy_loss(*hidden_before(self.policy.model, batch), losses).backward()

    def learn_values(self, batch: TokenBatch, losses: Losses) -> None:
        losses.value(self.values(batch)).backward()


class SharedNetworks(Networks):
    """Adapters and a value head on the start policy's own weights, which stay as they are."""

    independent = False  # they switch adapters on one model

    def __init__(self, start: CheckpointPolicy, config: PPOConfig):
        super().__init__(config)
        assert config.lora is not None  # the configuration says so
        self.policy = trainable_copy(start, config.lora)
        model = self.policy.model
        self.value_adapter = VALUE if config.shared_value == "adapter" else None
        if self.value_adapter:
            add_adapter(model, config.lora, name=VALUE)
        self.head = nn.Linear(model.config.get_text_config().hidden_size, 1, device=model.device)  # in float32
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.models = nn.ModuleDict({"policy": model, "value": self.head})

    def logprobs(self, batch: TokenBatch) -> Tensor:
        return self.read(self.policy.model, batch)

    def ref_logprobs(self, batch: TokenBatch) -> Tensor:
        with active_adapter(self.policy.model, None):
            return self.read(self.policy.model, batch)

    def values(self, batch: TokenBatch) -> Tensor:
        if not self.value_adapter:
            return head_values(self.head, hidden_before(self.policy.model, batch)[0])
        with active_adapter(self.policy.model, VALUE):
            return head_values(self.head, hidden_before(self.policy.model, batch)[0])

    def learners(self) -> Sequence[Learner]:
        return (self.learn_in_turn if self.value_adapter else self.learn_together,)

    def learn_together(self, batch: TokenBatch, losses: Losses) -> None:
        hidden, targets = hidden_before(self.policy.model, batch)
        (self.policy_loss(hidden, targets, losses) + losses.value(head_values(self.head, hidden))).backward()

    def learn_in_turn(self, batch: TokenBatch, losses: Losses) -> None:
        self.policy_loss(*hidden_before(self.policy.model, batch), losses).backward()
        with active_adapter(self.policy.model, VALUE):  # around the backward pass too, which may recompute
            losses.value(head_values(self.head, hidden_before(self.policy.model, batch)[0])).backward()


def build_networks(start: CheckpointPolicy, reward_model: RewardModel, config: PPOConfig) -> Networks:
    if config.layout == "shared":
        return SharedNetworks(start, config)
    return SeparateNetworks(start, reward_model, config)


def hidden_before(model: PreTrainedModel, batch: TokenBatch) -> tuple[Tensor, Tensor]:
    """(hidden states [n, H] before the response tokens, those tokens [n])."""
    return before_responses(model, batch.input_ids, batch.attention_mask, batch.response_mask)


def head_values(head: nn.Module, hidden: Tensor) -> Tensor:
    return head_scores(head, hidden).squeeze(-1)
