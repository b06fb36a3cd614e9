"""Training state in checkpoints, and contexts for several trainings in one stage."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from afarm.backend.distributed import (
    full_optimizer_state,
    full_tensor,
    load_full_tensor,
    load_optimizer_state,
)
from afarm.core.errors import TrainingError
from afarm.core.interfaces import Checkpoints, TrainContext

_STATE_FILE = "trainer.pt"


def training_state(
    trained: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer, **more: Any
) -> dict[str, Any]:
    """Collect the state to resume from: "weights" by name, "optimizer", and `more` of a method's own.

    Weights and optimiser are whole, also if they are sharded. A collective: every process must call it.
    """
    weights = {name: full_tensor(parameter.data) for name, parameter in trained.items()}
    return {"weights": weights, "optimizer": full_optimizer_state(optimizer), **more}


def write_training_state(state: Mapping[str, Any], directory: Path) -> None:
    """Write a `training_state` into the directory of a new checkpoint, for `restore`."""
    torch.save(dict(state), directory / _STATE_FILE)


def restore(
    checkpoints: Checkpoints, trained: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer
) -> tuple[int, Path, dict[str, Any]] | None:
    """Restore `trained` and `optimizer` from the newest checkpoint, if there is one.

    Returns its step, its directory and the whole state. Raises `TrainingError` if it is damaged or of other weights.
    """
    latest = checkpoints.latest()
    if latest is None:
        return None
    done, directory = latest
    device = next(iter(trained.values())).device
    try:
        state = torch.load(directory / _STATE_FILE, map_location=device, weights_only=True)
    except (RuntimeError, EOFError, pickle.UnpicklingError, FileNotFoundError) as error:
        cause = str(error).partition(".")[0] or "it is empty"
        remedy = "remove that directory, and the same command trains from the start"
        raise TrainingError(f"{directory / _STATE_FILE} is truncated or damaged ({cause}): {remedy}") from error
    if state["weights"].keys() != trained.keys():
        raise TrainingError(f"{directory} holds a checkpoint of another model or of other settings: remove it")
    with torch.no_grad():
        for name, parameter in trained.items():
            load_full_tensor(state["weights"][name], parameter)
    load_optimizer_state(state["optimizer"], optimizer)
    return done, directory, state


def continued_context(context: TrainContext, steps: int, *, seed: int) -> TrainContext:
    """Derive the context of a training that follows `steps` steps of others and counts its own from 1.

    For members of an ensemble, or rounds, in one stage: in the log and in the checkpoints its steps come after those of
    the others, and it is shown no checkpoint of theirs.
    """

    def log_metrics(step: int, metrics: Mapping[str, float]) -> None:
        context.log_metrics(steps + step, metrics)

    checkpoints = _LaterCheckpoints(context.checkpoints, steps)
    return replace(context, seed=seed, checkpoints=checkpoints, log_metrics=log_metrics)


@dataclass
class _LaterCheckpoints:
    whole: Checkpoints
    steps: int

    def save(self, step: int, write: Callable[[Path], None]) -> None:
        self.whole.save(self.steps + step, write)

    def latest(self) -> tuple[int, Path] | None:
        latest = self.whole.latest()
        return (latest[0] - self.steps, latest[1]) if latest and latest[0] > self.steps else None
