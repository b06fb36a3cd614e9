"""Collectives over the processes of one launch, and models sharded among them (FSDP2).

If one process works alone, each function does nothing. Rows are dealt out in turn and gathered in their order, so that
every process holds the same whole, and statistics over it do not depend on how many processes there are.

If the launch asks for FSDP2, the transformer's layers are sharded, which hold nearly all weights of a large model: what
they are between their uses, their gradients and the optimiser's state. Embeddings and heads are kept whole, since
losses read them past the model's own forward pass. Gradients are sums over processes, as `all_reduce_sum` makes them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from afarm.core.errors import ConfigError

T = TypeVar("T")


def world_size() -> int:
    """Count the processes that work together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Return the number of this process among them, from 0."""
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


def all_reduce_mean(tensors: Iterable[Tensor]) -> None:
    """Replace each tensor by its mean over all processes."""
    shared = list(tensors) if world_size() > 1 else []
    all_reduce_sum(shared)
    for tensor in shared:
        tensor /= world_size()


def all_reduce_by_name(sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Sum scalars by name over the processes that have one of that name."""
    if world_size() == 1:
        return dict(sums)
    total: dict[str, Tensor] = {}
    for own in all_gather_object({name: float(value) for name, value in sums.items()}):
        for name, value in own.items():
            total[name] = total.get(name, torch.zeros((), dtype=torch.float64)) + value
    return total


def broadcast(value: T) -> T:
    """Return the main process's value in all processes."""
    return all_gather_object(value)[0]


def barrier() -> None:
    """Wait until every process has come here."""
    if world_size() > 1:
        dist.barrier()


# ------------------------------------------------------------------------------------- sharded models


def shard_model(models: nn.Module, even: Mapping[str, int]) -> None:
    """Have each process keep its shard of every layer of the transformers in `models`.

    In place, and for good. From then on all must use them equally often. So sizes that are divided among processes must
    divide: raises `ConfigError` naming those settings of `even` that do not.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    if uneven := [f"{name} ({size})" for name, size in even.items() if size % world_size()]:
        raise ConfigError([f"{name} must be divisible by the {world_size()} processes of FSDP2" for name in uneven])
    device = next(models.parameters()).device
    mesh = init_device_mesh(device.type, (world_size(),))
    for layer in list(_layers(models)):
        fully_shard(layer, mesh=mesh)
        layer.set_force_sum_reduction_for_comms(True)  # gloo knows no other
        layer.set_gradient_divide_factor(1.0)


@contextmanager
def unsharded_weights(models: nn.Module) -> Iterator[None]:
    """Hold all weights of `models` in every process, which then need not use them in step: for sampling."""
    from torch.distributed.fsdp import FSDPModule

    layers = [module for module in models.modules() if isinstance(module, FSDPModule)]
    for layer in layers:
        layer.set_reshard_after_forward(False)
        layer.unshard()
    try:
        yield
    finally:
        for layer in layers:
            layer.set_reshard_after_forward(True)
            layer.reshard()


def full_tensor(tensor: Tensor) -> Tensor:
    """Return all of a tensor that may be sharded. A collective: every process must call it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def load_full_tensor(values: Tensor, into: Tensor) -> None:
    """Replace a tensor, or this process's shard of it, by `values`, which are whole."""
    into.copy_(_like(values, into))


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Check that all numbers of all tensors are finite, in every process's shard."""
    tensors = list(tensors)
    bad = sum((~torch.isfinite(_local(tensor))).any().float() for tensor in tensors)
    total = torch.as_tensor(bad, dtype=torch.float32, device=tensors[0].device)
    all_reduce_sum([total])
    return not total.item()


def all_reduce_gradients(parameters: Collection[nn.Parameter]) -> None:
    """Sum each gradient over the processes, a missing one being 0. Those of shards are summed already."""
    if world_size() == 1:
        return
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    all_reduce_sum(p.grad for p in parameters if p.grad is not None and not isinstance(p.grad, DTensor))


def clip_gradients(parameters: Collection[nn.Parameter], max_norm: float) -> float:
    """Scale the gradients down to an L2 norm of `max_norm` together. Returns the norm they had."""
    if not any(isinstance(p, DTensor) for p in parameters):
        return float(nn.utils.clip_grad_norm_(parameters, max_norm))
    gradients = [p.grad for p in parameters if p.grad is not None]
    squares = torch.zeros(2, dtype=torch.float64, device=gradients[0].device)
    for gradient in gradients:
        squares[int(isinstance(gradient, DTensor))] += _local(gradient).double().pow(2).sum()
    all_reduce_sum([squares[1:]])
    norm = float(squares.sum().sqrt())
    for gradient in gradients:
        gradient.mul_(min(1.0, max_norm / (norm + 1e-6)))
    return norm


def full_optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the optimiser's state, whole if it is sharded.

    A collective: every process must call it.
    """
    state = optimizer.state_dict()
    full = {number: {name: full_tensor(x) for name, x in of.items()} for number, of in state["state"].items()}
    return {**state, "state": full}


def load_optimizer_state(state: Mapping[str, Any], into: torch.optim.Optimizer) -> None:
    """Load a `full_optimizer_state` into an optimiser, or this process's shard of it."""
    parameters = [p for group in into.param_groups for p in group["params"]]
    own_shard = {
        number: {name: _like(x, parameters[number]) if x.dim() else x for name, x in of.items()}
        for number, of in state["state"].items()
    }
    into.load_state_dict({**state, "state": own_shard})


def _like(values: Tensor, model: Tensor) -> Tensor:
    if not isinstance(model, DTensor):
        return values
    return distribute_tensor(values.to(model.device), model.device_mesh, model.placements, src_data_rank=None)


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _layers(models: nn.Module) -> Iterator[Any]:
    """Yield the repeated blocks, by the names that transformers gives them to be placed whole."""
    names = {name for module in models.modules() for name in getattr(module, "_no_split_modules", None) or ()}
    return (module for module in models.modules() if type(module).__name__ in names)
