"""PPO on one frozen backbone (`layout=shared`), the start policy's own: what differs from `ppo.py`.

The policy is an adapter on the backbone. The value model is a linear head: on the policy's hidden states
(`shared_value=backbone`, one pass for both losses) or on a second adapter's (`adapter`, which shares nothing with the
policy's and needs a pass of its own). Reference and reward model are as in the separate layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from afarm import Sample
from afarm.backend import (
    TokenBatch,
    Training,
    add_adapter,
    head_scores,
    micro_batches,
    states_before,
    token_loss,
)
from afarm_plugins.ppo import PPOConfig

VALUE = "value"
"""The name of the value model's adapter."""


def add_value_head(model: Any, config: PPOConfig) -> nn.Linear:
    """Make a value head in float32, and add the value's adapter to the policy's `model` if configured."""
    assert config.lora is not None  # the configuration says so
    if config.shared_value == "adapter":
        add_adapter(model, config.lora, name=VALUE)
    return zero_head(model.config.get_text_config().hidden_size).to(model.device)


def zero_head(width: int) -> nn.Linear:
    """Make a value head whose values are 0."""
    head = nn.Linear(width, 1)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head


@contextmanager
def value_adapter(model: Any, config: PPOConfig) -> Iterator[None]:
    """Activate the value's adapter for the block, if it has one. Whatever was trainable stays so."""
    if config.shared_value != "adapter":
        yield
        return
    before, trainable = model.active_adapter, [p for p in model.parameters() if p.requires_grad]
    model.set_adapter(VALUE)
    try:
        yield
    finally:
        model.set_adapter(before)
        for parameter in trainable:
            parameter.requires_grad_(True)


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
    """Add the gradients of both losses like `ppo.add_gradients_apart`, in one pass or one after the other."""
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
