"""PPO on one frozen backbone, the start policy's own weights (`layout=shared`): what differs from `ppo.py`.

The policy is an adapter on the backbone. The value model is a linear head: on the policy's hidden states
(`shared_value=backbone`, one forward and backward pass for both losses) or on those of a second adapter (`adapter`,
which learns nothing of the policy's and costs a pass of its own). The reference is the start policy, as ever, and the
reward model stays apart: what is loaded of one is merged weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from torch import Tensor, nn

from afarm import Sample
from afarm.backend import (
    TokenBatch,
    Training,
    active_adapter,
    add_adapter,
    head_scores,
    micro_batches,
    states_before,
    token_loss,
)
from afarm_plugins.ppo import PPOConfig

VALUE = "value"
"""The name of the value model's adapter."""

T = TypeVar("T")


def add_value_head(model: Any, config: PPOConfig) -> nn.Linear:
    """Make a head that says 0, in float32, and add the value's adapter to the policy's `model` if it has its own."""
    assert config.lora is not None  # the configuration says so
    if config.shared_value == "adapter":
        add_adapter(model, config.lora, name=VALUE)
    return zero_head(model.config.get_text_config().hidden_size).to(model.device)


def zero_head(width: int) -> nn.Linear:
    """Make a value head that says 0."""
    head = nn.Linear(width, 1)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head


def value_adapter(model: Any, config: PPOConfig) -> AbstractContextManager[None]:
    """Activate the adapter whose states the head reads, if it is not the policy's."""
    return active_adapter(model, VALUE) if config.shared_value == "adapter" else nullcontext()


def head_values(training: Training, head: nn.Module, batch: TokenBatch) -> Tensor:
    """Compute the value [n] of the state before each response token of a batch."""
    model = training.policy.model
    with value_adapter(model, training.config):
        return head_scores(head, states_before(model, batch)[0]).squeeze(-1)


def add_gradients(
    training: Training,
    head: nn.Module,
    samples: Sequence[Sample],
    rows: Sequence[int],
    policy_share: Callable[..., Tensor],
    value_share: Callable[..., Tensor],
    *tensors: Tensor,
) -> None:
    """Add the gradients of both losses, as `ppo.add_gradients_apart` does: in one pass, or one after the other."""
    model, config = training.policy.model, training.config
    for batch, (old, advantages, values, returns, mask) in micro_batches(training, samples, rows, *tensors):
        hidden, targets = states_before(model, batch)
        loss = token_loss(model, hidden, targets, policy_share, old, advantages, mask, temperature=config.temperature)
        if config.shared_value == "backbone":
            new = head_scores(head, hidden).squeeze(-1)
            (loss + value_share(new, values, returns, mask)).backward()
            continue
        loss.backward()
        with value_adapter(model, config):  # around the backward pass too, which may recompute
            value_share(head_values(training, head, batch), values, returns, mask).backward()


def in_turn(*calls: Callable[[], T]) -> list[T]:
    """Return the results of `calls`, which switch adapters on one model."""
    return [call() for call in calls]
