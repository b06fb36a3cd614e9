"""Gradient checkpointing for training loops of our own: activations are computed again in the backward pass."""

from __future__ import annotations

from torch import nn
from transformers import PreTrainedModel


def enable_gradient_checkpointing(models: nn.Module) -> None:
    """Have every transformer in `models` recompute its layers' activations in the backward pass."""
    for module in models.modules():
        if isinstance(module, PreTrainedModel):
            # transformers is renaming it, and warns of the older name
            enable = getattr(module, "activation_checkpointing_enable", None) or module.gradient_checkpointing_enable
            enable({"use_reentrant": False})


def set_checkpointing_layers_to_train(models: nn.Module) -> None:
    """Layers recompute in training mode only, and sampling leaves eval mode behind. Dropout, inside them, stays off."""
    for module in models.modules():
        if getattr(module, "gradient_checkpointing", False):
            module.training = True
