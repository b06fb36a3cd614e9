"""Networks of which each process keeps a shard (FSDP2), where the launch asks for it; else each function does nothing.

The transformer's layers are sharded, which hold nearly all weights of a large model: what they are between their uses,
their gradients and the optimiser's state. Embeddings and heads are kept whole, since losses read them past the model's
own forward pass. Gradients are sums over processes, as those that `processes.add_up` makes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from afarm.backend.distributed import add_up, world_size
from afarm.core.errors import ConfigError


def shard(models: nn.Module, even: Mapping[str, int]) -> None:
    """Have each process keep its part of every layer of the transformers in `models`. In place, and for good.

    From then on all must use them equally often. So sizes that are shared among processes must divide: raises
    `ConfigError` naming those settings of `even` that do not.
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
def whole_weights(models: nn.Module) -> Iterator[None]:
    """With all weights of `models` in every process, which then need not use them in step: for sampling."""
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


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor that may be sharded. Every process must ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def put(values: Tensor, into: Tensor) -> None:
    """Replace a tensor, or this process's shard of it, by `values`, which are whole."""
    into.copy_(_like(values, into))


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether all numbers of all tensors are finite, in every process's shard."""
    tensors = list(tensors)
    bad = sum((~torch.isfinite(_local(tensor))).any().float() for tensor in tensors)
    total = torch.as_tensor(bad, dtype=torch.float32, device=tensors[0].device)
    add_up([total])
    return not total.item()


def add_up_gradients(parameters: Collection[nn.Parameter]) -> None:
    """Sum each gradient over the processes, a missing one being 0. Those of shards are summed already."""
    if world_size() == 1:
        return
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    add_up(p.grad for p in parameters if p.grad is not None and not isinstance(p.grad, DTensor))


def clip_gradients(parameters: Collection[nn.Parameter], max_norm: float) -> float:
    """Scale the gradients down to an L2 norm of `max_norm` together. Returns the norm they had."""
    if not any(isinstance(p, DTensor) for p in parameters):
        return float(nn.utils.clip_grad_norm_(parameters, max_norm))
    gradients = [p.grad for p in parameters if p.grad is not None]
    squares = torch.zeros(2, dtype=torch.float64, device=gradients[0].device)
    for gradient in gradients:
        squares[int(isinstance(gradient, DTensor))] += _local(gradient).double().pow(2).sum()
    add_up([squares[1:]])
    norm = float(squares.sum().sqrt())
    for gradient in gradients:
        gradient.mul_(min(1.0, max_norm / (norm + 1e-6)))
    return norm


def whole_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The optimiser's state, with all of what is sharded."""
    state = optimizer.state_dict()
    kept = {number: {name: whole(x) for name, x in of.items()} for number, of in state["state"].items()}
    return {**state, "state": kept}


def put_state(state: Mapping[str, Any], into: torch.optim.Optimizer) -> None:
    """Give an optimiser a `whole_state`, or this process's shard of it."""
    parameters = [p for group in into.param_groups for p in group["params"]]
    own = {
        number: {name: _like(x, parameters[number]) if x.dim() else x for name, x in of.items()}
        for number, of in state["state"].items()
    }
    into.load_state_dict({**state, "state": own})


def _like(values: Tensor, model: Tensor) -> Tensor:
    if not isinstance(model, DTensor):
        return values
    return distribute_tensor(values.to(model.device), model.device_mesh, model.placements, src_data_rank=None)


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _layers(models: nn.Module) -> Iterator[Any]:
    """The repeated blocks, by the names that transformers gives them to be placed whole."""
    names = {name for module in models.modules() for name in getattr(module, "_no_split_modules", None) or ()}
    return (module for module in models.modules() if type(module).__name__ in names)
