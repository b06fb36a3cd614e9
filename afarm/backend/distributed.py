"""One piece of work over several processes, as `accelerate launch` starts them; alone, each function does nothing.

Rows are dealt out in turn and gathered in their order, so that every process holds the same whole, and statistics over
it do not depend on how many processes there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")


def world_size() -> int:
    """How many processes work together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Which of them this one is, from 0."""
    return dist.get_rank() if world_size() > 1 else 0


def own(rows: Sequence[T]) -> Sequence[T]:
    """This process's share of `rows`: every so manieth."""
    return rows[rank() :: world_size()]


def everyones(value: T) -> list[T]:
    """What each process brings, by rank."""
    count = world_size()
    if count == 1:
        return [value]
    values: list[T] = [value] * count
    dist.all_gather_object(values, value)
    return values


def gather(share: Sequence[T]) -> list[T]:
    """All rows, in the order that `own` dealt them out from, for the `share` that each process brings."""
    shares = everyones(share)
    count = len(shares)
    return [shares[row % count][row // count] for row in range(sum(map(len, shares)))]


def add_up(tensors: Iterable[Tensor]) -> None:
    """Replace each tensor by its sum over all processes."""
    if world_size() > 1:
        for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
            work.wait()


def average(tensors: Iterable[Tensor]) -> None:
    """Replace each tensor by its mean over all processes."""
    shared = list(tensors) if world_size() > 1 else []
    add_up(shared)
    for tensor in shared:
        tensor /= world_size()


def added_up(sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Numbers by name, each summed over the processes that have one of that name."""
    if world_size() == 1:
        return dict(sums)
    total: dict[str, Tensor] = {}
    for part in everyones({name: float(value) for name, value in sums.items()}):
        for name, value in part.items():
            total[name] = total.get(name, torch.zeros((), dtype=torch.float64)) + value
    return total


def agree(value: T) -> T:
    """What the first process brings, for all of them."""
    return everyones(value)[0]


def barrier() -> None:
    """Return when every process has come here."""
    if world_size() > 1:
        dist.barrier()
