"""Collectives over the processes of one launch; with a single process they do nothing.

Rows are dealt out in turn and gathered in their order, so statistics do not depend on the number of processes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from afarm.core.config import OnPolicyConfig, TrainerConfig
from afarm.core.errors import ConfigError, TrainingError

T = TypeVar("T")


def world_size() -> int:
    """Return the number of processes."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Return this process's number, from 0."""
    return dist.get_rank() if world_size() > 1 else 0


def shard(rows: Sequence[T]) -> Sequence[T]:
    """Return this process's shard of `rows`: every n-th row from its rank on, for n processes."""
    return rows[rank() :: world_size()]


def all_gather_object(value: T) -> list[T]:
    """Gather the value of each process, by rank, in all of them."""
    count = world_size()
    if count == 1:
        return [value]
    values: list[T] = [value] * count
    dist.all_gather_object(values, value)
    return values


def all_gather(rows: Sequence[T]) -> list[T]:
    """Gather every process's rows, in the order that `shard` dealt them out from, in all processes."""
    shards = all_gather_object(rows)
    count = len(shards)
    return [shards[row % count][row // count] for row in range(sum(map(len, shards)))]


def all_reduce_sum(tensors: Iterable[Tensor]) -> None:
    """Replace each tensor by its sum over all processes."""
    if world_size() > 1:
        for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
            work.wait()


def all_reduce_by_name(sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Sum scalars by name over the processes that have that name."""
    if world_size() == 1:
        return dict(sums)
    total: dict[str, Tensor] = {}
    for own in all_gather_object({name: float(value) for name, value in sums.items()}):
        for name, value in own.items():
            total[name] = total.get(name, torch.zeros((), dtype=torch.float64)) + value
    return total


def barrier() -> None:
    """Wait for all processes."""
    if world_size() > 1:
        dist.barrier()


def require_alike(weights: Mapping[str, Tensor]) -> None:
    """Raise `TrainingError` if the processes hold different weights. A collective."""
    bits = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    whole = {n: x.detach() for n, x in weights.items() if world_size() > 1 and not isinstance(x.data, DTensor)}
    sums = {name: int(x.view(bits[x.element_size()]).sum(dtype=torch.int64)) for name, x in whole.items()}
    gathered = all_gather_object(sums)
    for process, others in enumerate(gathered):
        if apart := [name for name, found in gathered[0].items() if found != others[name]]:
            raise TrainingError(
                f"{len(apart)} of {len(sums)} weights, such as {apart[0]}, differ between process 0 and process "
                f"{process}, and only the first's would be kept: draw the same rows in all processes, and sum "
                "gradients over them before each step (`optimizer_step` does, and `all_reduce_gradients`)"
            )


# ------------------------------------------------------------------------------------------ sizes that processes share

ON_POLICY_SIZES = ("rollout_batch_size", "mini_batch_size")
"""Sizes that the world size must divide if on-policy training shards; a config's `even_sizes` replace them.

A name is that of a setting, or of a property that follows from `rollout_batch_size`.
"""


def shared_batch(config: TrainerConfig, processes: int) -> tuple[int, int]:
    """Divide the batch among processes: (rows per forward pass, passes per step). Raises `ConfigError`."""
    size, accumulation = config.per_device_train_batch_size, config.gradient_accumulation_steps
    fewer = math.gcd(accumulation, processes)
    smaller = processes // fewer
    if size % smaller:
        raise ConfigError(
            f"a batch of per_device_train_batch_size {size} times gradient_accumulation_steps {accumulation} does "
            f"not divide by {processes} processes: choose figures whose product does"
        )
    return size // smaller, accumulation // fewer


def uneven_sizes(section: str, config: Any, processes: int, *, sharded: bool) -> list[str]:
    """List the settings of a section that the processes do not divide, as problems."""
    try:
        if isinstance(config, TrainerConfig):
            shared_batch(config, processes)
    except ConfigError as error:
        return [f"{section}: {problem}" for problem in error.problems]
    if not sharded or not isinstance(config, OnPolicyConfig):
        return []
    names: Iterable[str] = getattr(type(config), "even_sizes", ON_POLICY_SIZES)
    uneven = {name: size for name in names if (size := getattr(config, name)) % processes}
    problems = []
    for name, size in uneven.items():
        fields = type(config).model_fields
        what = f"{section}.{name}" if name in fields else f"{section}'s {name.replace('_', ' ')}"
        change = "" if name in fields else f": change {section}.rollout_batch_size"
        problems.append(f"{what} ({size}) must be divisible by the {processes} processes of FSDP2{change}")
    return problems
