"""What a training loop of our own goes on from: its trained weights and its optimiser, whole, in one file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from afarm.backend import sharding
from afarm.core.errors import TrainingError
from afarm.core.interfaces import Checkpoints

STATE = "trainer.pt"
"""The file, in a checkpoint."""


def training_state(
    trained: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer, **more: Any
) -> dict[str, Any]:
    """The "weights" by name, the "optimizer", and what `more` a method must keep. Every process must ask."""
    weights = {name: sharding.whole(parameter.data) for name, parameter in trained.items()}
    return {"weights": weights, "optimizer": sharding.whole_state(optimizer), **more}


def take_up(
    checkpoints: Checkpoints, trained: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer
) -> tuple[int, Path, dict[str, Any]] | None:
    """Put the newest checkpoint's state into `trained` and `optimizer`, if there is one.

    Returns its step, its directory and the whole state. Raises `TrainingError` where it is of other weights.
    """
    latest = checkpoints.latest()
    if latest is None:
        return None
    done, directory = latest
    device = next(iter(trained.values())).device
    state = torch.load(directory / STATE, map_location=device, weights_only=True)
    if state["weights"].keys() != trained.keys():
        raise TrainingError(f"{directory} holds a checkpoint of another model or of other settings: remove it")
    with torch.no_grad():
        for name, parameter in trained.items():
            sharding.put(state["weights"][name], parameter)
    sharding.put_state(state["optimizer"], optimizer)
    return done, directory, state
