"""Training state in checkpoints, and contexts for several trainings in one stage."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from afarm.backend.distributed import barrier, rank
from afarm.backend.sharding import first_row, local_part, shard_like
from afarm.core.errors import TrainingError
from afarm.core.interfaces import Checkpoints, TrainContext

_STATE_FILE = "trainer.pt"

SHARDS = "shards"
"""In a checkpoint of sharded models: a file per process with the rows that it held of each tensor."""

Rows = Mapping[str, tuple[list[int], int, Tensor]]
"""By the name of each tensor its whole shape, the number of the first row that is held, and the rows."""


def training_state(
    trained: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer, **more: Any
) -> dict[str, Any]:
    """Collect the state to resume from: "weights" and "optimizer" by name, and `more` of a method's own.

    Of models that are whole; for those that are sharded see `write_checkpoint`.
    """
    weights = {name: parameter.data for name, parameter in trained.items()}
    state = {name: dict(optimizer.state.get(parameter, {})) for name, parameter in trained.items()}
    return {"weights": weights, "optimizer": state, **more}


def write_training_state(state: Mapping[str, Any], directory: Path) -> None:
    """Write a `training_state` into the directory of a new checkpoint, for `restore`."""
    torch.save(dict(state), directory / _STATE_FILE)


def write_checkpoint(
    directory: Path, trained: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer, **more: Any
) -> None:
    """Write into a new `directory` all that `restore` needs, and `more` of a method's own.

    A collective: every process must call it. If weights are sharded each process writes what it holds, and any number
    of processes can restore it; else the main process writes all.
    """
    if rank() == 0:
        shutil.rmtree(directory / SHARDS, ignore_errors=True)  # of one that was killed while it wrote
        directory.mkdir(parents=True, exist_ok=True)
    barrier()
    if not any(isinstance(parameter, DTensor) for parameter in trained.values()):
        if rank() == 0:
            write_training_state(training_state(trained, optimizer, **more), directory)
        return
    if rank() == 0:
        write_training_state(more, directory)
    (directory / SHARDS).mkdir(exist_ok=True)
    torch.save(_collect_rows(trained, optimizer), directory / SHARDS / f"{rank():05d}.pt")


def move_into(directory: Path, unpublished: Path) -> None:
    """Move what `write_checkpoint` wrote into the directory of a new checkpoint."""
    for path in unpublished.iterdir():
        shutil.move(path, directory)
    unpublished.rmdir()


def restore(
    checkpoints: Checkpoints, trained: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer
) -> tuple[int, Path, dict[str, Any]] | None:
    """Restore `trained` and `optimizer` from the newest checkpoint, if there is one.

    Returns its step, its directory and what else was kept. Raises `TrainingError` as `restore_checkpoint` does.
    """
    latest = checkpoints.latest()
    return None if latest is None else (*latest, restore_checkpoint(latest[1], trained, optimizer))


def restore_checkpoint(
    directory: Path, trained: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer
) -> dict[str, Any]:
    """Restore `trained` and `optimizer` from a checkpoint that any number of processes wrote.

    Both may be sharded or whole. Returns the checkpoint's other values. Raises `TrainingError` if it is damaged or
    holds other weights.
    """
    with _damage_named(directory / _STATE_FILE):
        state = torch.load(directory / _STATE_FILE, map_location="cpu", weights_only=True)
    if (directory / SHARDS).is_dir():
        _load_shards(directory / SHARDS, trained, optimizer)
        return dict(state)
    if state["weights"].keys() != trained.keys():
        raise _of_other_weights(directory)
    with torch.no_grad():
        for name, parameter in trained.items():
            parameter.copy_(shard_like(state["weights"][name], parameter))
    by_parameter = {
        trained[name]: {key: shard_like(x, trained[name]) if x.dim() else x for key, x in of.items()}
        for name, of in state["optimizer"].items()
    }
    _load_optimizer(by_parameter, optimizer)
    return dict(state)


def _load_shards(shards: Path, trained: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer) -> None:
    with _damage_named(shards):
        # Mapped into memory: of the other processes' files only the rows that are wanted here are read.
        files: list[Rows] = [
            torch.load(path, map_location="cpu", mmap=True, weights_only=True) for path in sorted(shards.glob("*.pt"))
        ]
        saved = {key: (torch.Size(shape), rows.dtype) for held in files for key, (shape, _, rows) in held.items()}
        shapes = {key.removeprefix("weights."): x for key, (x, _) in saved.items() if key.startswith("weights.")}
    if shapes != {name: parameter.shape for name, parameter in trained.items()}:
        raise _of_other_weights(shards.parent)
    by_parameter: dict[nn.Parameter, dict[str, Tensor]] = {parameter: {} for parameter in trained.values()}
    with _damage_named(shards), torch.no_grad():
        for key, (shape, dtype) in saved.items():
            kind, _, path = key.partition(".")
            if kind == "weights":
                _fill(trained[path].data, key, files)
                continue
            name, _, what = path.partition(":")
            parameter = trained[name]
            is_like = shape == parameter.shape
            empty = torch.zeros_like(parameter.data, dtype=dtype) if is_like else torch.zeros(shape, dtype=dtype)
            by_parameter[parameter][what] = _fill(empty, key, files)
    _load_optimizer(by_parameter, optimizer)


def _collect_rows(trained: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer) -> Rows:
    """Collect the rows of this process's shard; the main process adds the tensors that are not sharded."""
    return {
        key: (list(tensor.shape), first_row(tensor), torch.atleast_1d(local_part(tensor)))
        for key, tensor in _flat(trained, optimizer)
        if isinstance(tensor, DTensor) or rank() == 0
    }


def _fill(tensor: Tensor, key: str, files: Sequence[Rows]) -> Tensor:
    """Copy into `tensor` the rows that this process holds of it, and return it.

    Raises `RuntimeError` if some are in no file.
    """
    own, first = torch.atleast_1d(local_part(tensor)), first_row(tensor)
    missing = len(own)
    for shape, begin, rows in (held[key] for held in files if key in held):
        start, end = max(first, begin), min(first + len(own), begin + len(rows))
        if start < end and torch.Size(shape) == tensor.shape and rows.shape[1:] == own.shape[1:]:
            own[start - first : end - first] = rows[start - begin : end - begin]
            missing -= end - start
    if missing:
        raise RuntimeError(f"{missing} rows of {key} are missing")
    return tensor


def _flat(trained: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor]]:
    for name, parameter in trained.items():
        yield f"weights.{name}", parameter.data
        for key, tensor in optimizer.state.get(parameter, {}).items():
            yield f"optimizer.{name}:{key}", tensor


def _load_optimizer(
    by_parameter: Mapping[nn.Parameter, Mapping[str, Tensor]], optimizer: torch.optim.Optimizer
) -> None:
    """Give the optimiser the state of each parameter, in its own order; rates and groups stay as they are."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state = {number: by_parameter[p] for number, p in enumerate(parameters) if by_parameter.get(p)}
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, EOFError, UnpicklingError, FileNotFoundError, LookupError, ValueError, TypeError) as error:
        cause = str(error).strip().partition("\n")[0].partition(".")[0] or "it is empty"
        remedy = "remove that directory, and the same command trains from the start"
        raise TrainingError(f"{path} is truncated or damaged ({cause}): {remedy}") from error


def _of_other_weights(directory: Path) -> TrainingError:
    return TrainingError(f"{directory} holds a checkpoint of another model or of other settings: remove it")


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
