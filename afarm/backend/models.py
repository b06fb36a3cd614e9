"""Transformers models: loaded quietly, checked before they are saved, described in a line."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from afarm.core.errors import TrainingError

MODEL_CARD = "afarm.json"
"""A file beside a checkpoint's weights with what afarm needs to load it: its prompt template, its scale."""


def saved_by_afarm(directory: Path | None) -> bool:
    """Tell if `directory` holds a model that afarm saved, with its card."""
    return directory is not None and (directory / MODEL_CARD).is_file()


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence transformers' progress bars and deprecation notes for the block."""
    from transformers.utils import logging

    had_progress_bar = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        if had_progress_bar:
            logging.enable_progress_bar()


def enable_gradient_checkpointing(models: nn.Module) -> None:
    """Have every transformer in `models` recompute its layers' activations in the backward pass."""
    from transformers import PreTrainedModel

    for module in models.modules():
        if isinstance(module, PreTrainedModel):
            # transformers is renaming it, and warns about the older name
            enable = getattr(module, "activation_checkpointing_enable", None) or module.gradient_checkpointing_enable
            enable({"use_reentrant": False})


def set_checkpointing_layers_to_train(models: nn.Module) -> None:
    """Put the layers that recompute into training mode, which they need; dropout stays off."""
    for module in models.modules():
        if getattr(module, "gradient_checkpointing", False):
            module.training = True


def require_finite(model: torch.nn.Module) -> None:
    """Raise `TrainingError` if a weight is NaN or infinite."""
    broken = [name for name, weight in model.named_parameters() if not weight.isfinite().all()]
    if broken:
        raise TrainingError(
            f"nothing was saved: weights are not finite in {len(broken)} tensors, first in {broken[0]}; "
            "training diverged: lower its learning_rate"
        )


def describe_model(model: Any) -> str:
    """Describe a model in a few words: its class, its parameters and where they are."""
    first = next(model.parameters())
    count = sum(p.numel() for p in model.parameters())
    size = f"{count / 1e6:,.1f}M" if count >= 1e5 else f"{count:,}"
    return f"{type(model).__name__}, {size} parameters, {str(first.dtype).removeprefix('torch.')} on {first.device}"
