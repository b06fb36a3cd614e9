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

from afarm.backend.distributed import barrier, rank, require_alike
from afarm.backend.sharding import first_row, local_part
from afarm.core.errors import TrainingError
from afarm.core.interfaces import Checkpoints, TrainContext

_STATE_FILE = "trainer.pt"

SHARDS = "shards"
"""The folder of a sharded checkpoint with a file per process: its rows of each tensor."""

Rows = Mapping[str, tuple[list[int], int, Tensor]]
"""By tensor name: the whole shape, the number of the first row held, and the rows."""


def training_state(
    trained: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer, **more: Any
) -> dict[str, Any]:
    """Collect the state to resume from: "weights" and "optimizer" by name, and a method's own `more`.

    For whole models; for sharded ones see `write_checkpoint`.
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
    """Write into a new `directory` what `restore` needs, and a method's own `more`.

    A collective. Each process writes its shards, which any number of processes can restore; the main process writes
    what is not sharded. Raises `TrainingError` if that differs among the processes.
    """
    require_alike(trained)
    if rank() == 0:
        shutil.rmtree(directory / SHARDS, ignore_errors=True)  # from a process killed while writing
        directory.mkdir(parents=True, exist_ok=True)
    barrier()
    if not any(isinstance(parameter, DTensor) for parameter in trained.values()):
        if rank() == 0:
            write_training_state(training_state(trained, optimizer, **more), directory)
        return
    if rank() == 0:
        write_training_state(more, directory)
    (directory / SHARDS).mkdir(exist_ok=True)
    rows: Rows = {
        key: (list(tensor.shape), first_row(tensor), torch.atleast_1d(local_part(tensor)))
        for key, tensor in _flat(training_state(trained, optimizer)).items()
        if isinstance(tensor, DTensor) or rank() == 0
    }
    torch.save(rows, directory / SHARDS / f"{rank():05d}.pt")


def move_into(directory: Path, unpublished: Path) -> None:
    """Move what `write_checkpoint` wrote into the directory of a new checkpoint."""
    for path in unpublished.iterdir():
        shutil.move(path, directory)
    unpublished.rmdir()


def restore(
    checkpoints: Checkpoints, trained: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer
) -> tuple[int, Path, dict[str, Any]] | None:
    """Restore `trained` and `optimizer` from the newest checkpoint: (step, directory, other state).

    None without a checkpoint. Raises `TrainingError` if it is damaged or holds other weights.
    """
    latest = checkpoints.latest()
    return None if latest is None else (*latest, restore_checkpoint(latest[1], trained, optimizer))


def restore_checkpoint(
    directory: Path, trained: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer
) -> dict[str, Any]:
    """Restore `trained` and `optimizer`, sharded or whole, from a checkpoint of any number of processes.

    Returns the checkpoint's other values. Raises `TrainingError` if it is damaged or holds other weights.
    """
    file, shards = directory / _STATE_FILE, directory / SHARDS
    files: list[Rows] = []
    with _damage_named(file):
        state = torch.load(file, map_location="cpu", weights_only=True)
        if not shards.is_dir():
            files = [{key: (list(x.shape), 0, torch.atleast_1d(x)) for key, x in _flat(state).items()}]
    with _damage_named(shards if shards.is_dir() else file):
        for path in sorted(shards.glob("*.pt")):
            # Memory-mapped, so only the rows needed here are read.
            files.append(torch.load(path, map_location="cpu", mmap=True, weights_only=True))
        saved = {key: (torch.Size(shape), rows.dtype) for held in files for key, (shape, _, rows) in held.items()}
        shapes = {key.removeprefix("weights."): x for key, (x, _) in saved.items() if key.startswith("weights.")}
    if shapes != {name: parameter.shape for name, parameter in trained.items()}:
        raise TrainingError(f"{directory} holds a checkpoint of another model or of other settings: remove it")
    by_parameter: dict[nn.Parameter, dict[str, Tensor]] = {parameter: {} for parameter in trained.values()}
    with _damage_named(shards if shards.is_dir() else file), torch.no_grad():
        for key, (shape, dtype) in saved.items():
            kind, _, path_and_name = key.partition(".")
            if kind == "weights":
                _fill(trained[path_and_name].data, key, files)
                continue
            name, _, what = path_and_name.partition(":")
            parameter = trained[name]
            is_like = shape == parameter.shape
            empty = torch.zeros_like(parameter.data, dtype=dtype) if is_like else torch.zeros(shape, dtype=dtype)
            by_parameter[parameter][what] = _fill(empty, key, files)
    # In the optimiser's own order; rates and groups stay as they are
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    own = {number: by_parameter[p] for number, p in enumerate(parameters) if by_parameter.get(p)}
    optimizer.load_state_dict({**optimizer.state_dict(), "state": own})
    return dict(state)


def _flat(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """Name the tensors of a `training_state` in one dictionary."""
    tensors = {f"weights.{name}": tensor for name, tensor in state["weights"].items()}
    for name, of_parameter in state["optimizer"].items():
        tensors |= {f"optimizer.{name}:{key}": tensor for key, tensor in of_parameter.items()}
    return tensors


def _fill(tensor: Tensor, key: str, files: Sequence[Rows]) -> Tensor:
    """Fill this process's rows of `tensor` from `files`. Raises `RuntimeError` if some are missing."""
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


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, EOFError, UnpicklingError, FileNotFoundError, LookupError, ValueError, TypeError) as error:
        cause = str(error).strip().partition("\n")[0].partition(".")[0] or "it is empty"
        remedy = "remove that directory, and the same command trains from the start"
        raise TrainingError(f"{path} is truncated or damaged ({cause}): {remedy}") from error


def continued_context(context: TrainContext, steps: int, *, seed: int) -> TrainContext:
    """Derive the context of a training that follows `steps` earlier steps and counts its own from 1.

    For members of an ensemble, or rounds: logged and saved steps go on from the earlier ones, and it sees only its own
    checkpoints.
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
