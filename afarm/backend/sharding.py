"""Models sharded among the processes of one launch (FSDP2).

If the launch asks for it, each process keeps its part of the transformer's layers, which hold nearly all weights of a
large model: of the weights between their uses, of their gradients and of the optimiser's state. Embeddings and heads
are kept whole, since losses read them past the model's own forward pass. Gradients are sums over processes, as
`all_reduce_sum` makes them.

Whole weights are on the host: a launch that shards loads models there, memory-mapped, so that all processes of a
machine read one copy in the page cache. Only shards, and one layer at a time, come to the device. If the launch
offloads, shards wait on the host too, with their gradients and the optimiser's state: one layer at a time comes to the
device, and its gradient goes back. Then a model has weights on both, and no arithmetic may join the two.
"""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from afarm.backend.distributed import all_gather_object, all_reduce_sum, rank, world_size
from afarm.core.interfaces import ModelBackend

M = TypeVar("M", bound=nn.Module)
T = TypeVar("T")


def shard_model(models: nn.Module, backend: ModelBackend) -> None:
    """Have each process keep its shard of every layer of the transformers in `models`, in place, for good.

    On the device, or on the host if the launch offloads; what is in no layer goes to the device. Weights are no longer
    shared with another model. From then on all processes must use the layers equally often.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard, share_comm_ctx

    kind = backend.device.type
    mesh = init_device_mesh(kind, (world_size(),))
    place = CPUOffloadPolicy(pin_memory=kind != "cpu") if backend.offloads else OffloadPolicy()
    layers = list(transformer_layers(models))
    for layer in layers:
        fully_shard(
            layer,
            mesh=mesh,
            reshard_after_forward=True,  # else each, a root of its own, would stay gathered
            offload_policy=place,
        )
        layer.set_force_sum_reduction_for_comms(True)  # gloo knows no other
        layer.set_gradient_divide_factor(1.0)
        # By itself a layer would have the one gathered that was used before it, also in a pass of this process alone
        layer.set_modules_to_backward_prefetch([layer])
    share_comm_ctx(layers)  # else each would hold its whole gradient, as it is sent, to the end of the backward pass
    move_ends(models, layers, backend.device)


def move_ends(models: nn.Module, layers: Iterable[nn.Module], device: torch.device | str) -> None:
    """Move to `device` what is in none of the `layers`. By `models.to` their shards would leave the host."""
    inside = {module for layer in layers for module in layer.modules()}
    for module in models.modules():
        if module not in inside:
            module._apply(lambda tensor: tensor.to(device), recurse=False)


def is_sharded(model: nn.Module) -> bool:
    """Tell if this process holds but its shard of a model's layers."""
    return any(isinstance(parameter, DTensor) for parameter in model.parameters())


@contextmanager
def on_device(model: nn.Module, backend: ModelBackend) -> Iterator[None]:
    """Hold on the device a model that a launch that shards keeps whole on the host; then there again."""
    if not backend.sharded or backend.device.type == "cpu" or is_sharded(model):
        yield
        return
    model.to(backend.device)
    try:
        yield
    finally:
        model.to("cpu")


@contextmanager
def unsharded_weights(*models: nn.Module) -> Iterator[None]:
    """Hold all weights of `models` in every process, which then need not use them in step: for sampling."""
    from torch.distributed.fsdp import FSDPModule

    layers = [module for model in models for module in model.modules() if isinstance(module, FSDPModule)]
    for layer in layers:
        layer.set_reshard_after_forward(False)
        layer.unshard()
    try:
        yield
    finally:
        for layer in layers:
            layer.set_reshard_after_forward(True)
            layer.reshard()


def in_step(model: nn.Module, batches: Sequence[T], filler: T) -> list[T]:
    """Return `batches`, with fillers so that all processes have as many if `model` is sharded."""
    if not is_sharded(model):
        return list(batches)
    most = max(all_gather_object(len(batches)))
    return [*batches, *([filler] * (most - len(batches)))]


def empty_copy(model: M) -> M:
    """Copy the modules of `model` with weights that take no memory, to be filled by `whole_model`."""
    weights = {id(p): nn.Parameter(torch.empty_like(p, device="meta"), p.requires_grad) for p in model.parameters()}
    return copy.deepcopy(model, {**weights, **{id(buffer): buffer for buffer in model.buffers()}})


def whole_model(empty: M, weights: Mapping[str, Tensor]) -> M:
    """Copy an `empty_copy`, made before its model was sharded, with these weights by name."""
    filled = {id(p): nn.Parameter(weights[name], p.requires_grad) for name, p in empty.named_parameters()}
    return copy.deepcopy(empty, {**filled, **{id(buffer): buffer for buffer in empty.buffers()}})


@torch.no_grad()
def gathered_weights(parameters: Mapping[str, Tensor], *, by_all: bool = True) -> dict[str, Tensor]:
    """Gather weights that may be sharded, on the host; without `by_all` in the main process alone.

    A collective. No device ever holds more than one of them whole.
    """
    wanted = by_all or rank() == 0
    gathered = {}
    for name, parameter in parameters.items():
        whole = full_tensor(parameter.detach())
        if wanted:
            gathered[name] = whole.to("cpu", copy=True)
    return gathered


def full_tensor(tensor: Tensor) -> Tensor:
    """Return all of a tensor that may be sharded. A collective: every process must call it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Check that all numbers of all tensors are finite, in every process's shard."""
    tensors = list(tensors)
    bad = sum((~torch.isfinite(local_part(tensor))).any().float() for tensor in tensors)
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


def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Replace each gradient by its mean over the processes."""
    learned = [parameter for parameter in parameters if parameter.grad is not None]
    all_reduce_gradients(learned)
    for gradient in [parameter.grad for parameter in learned if parameter.grad is not None]:
        gradient /= world_size()


def clip_gradients(parameters: Collection[nn.Parameter], max_norm: float) -> float:
    """Scale the gradients down to an L2 norm of `max_norm` together. Returns the norm they had."""
    if not any(isinstance(p, DTensor) for p in parameters):
        return float(nn.utils.clip_grad_norm_(parameters, max_norm))
    gradients = [p.grad for p in parameters if p.grad is not None]
    whole = [gradient for gradient in gradients if not isinstance(gradient, DTensor)]
    shards = [gradient.to_local() for gradient in gradients if isinstance(gradient, DTensor)]
    of_whole, of_shards = (_sum_of_squares(some) for some in (whole, shards))  # each on the device that they are on
    all_reduce_sum([of_shards] if shards else [])
    norm = math.sqrt(float(of_whole) + float(of_shards))
    for gradient in gradients:
        gradient.mul_(min(1.0, max_norm / (norm + 1e-6)))
    return norm


def _sum_of_squares(tensors: Sequence[Tensor]) -> Tensor:
    norms = [torch.linalg.vector_norm(tensor, dtype=torch.float32) for tensor in tensors]  # which takes no memory
    return torch.stack(norms).double().square().sum() if norms else torch.zeros((), dtype=torch.float64)


def parameter_groups(groups: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Split an optimiser's groups into shards and whole weights: its arithmetic cannot mix them."""
    split = []
    for group in groups:
        by_kind: dict[bool, list[nn.Parameter]] = defaultdict(list)
        for parameter in group["params"]:
            by_kind[isinstance(parameter, DTensor)].append(parameter)
        split += [{**group, "params": parameters} for parameters in by_kind.values()]
    return split


def local_part(tensor: Tensor) -> Tensor:
    """Return the rows that this process holds of a tensor that may be sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def first_row(tensor: Tensor) -> int:
    """Return the number of the first row that this process holds of a tensor that may be sharded."""
    return -(-len(tensor) // world_size()) * rank() if isinstance(tensor, DTensor) else 0


def outside_layers(model: nn.Module) -> list[nn.Parameter]:
    """List the weights that `shard_model` leaves whole: embeddings, norms outside layers, heads."""
    inside = {id(parameter) for layer in transformer_layers(model) for parameter in layer.parameters()}
    return [parameter for parameter in model.parameters() if id(parameter) not in inside]


def transformer_layers(models: nn.Module) -> Iterator[Any]:
    """Yield the repeated blocks, by the names that transformers gives them to be placed whole."""
    names = {name for module in models.modules() for name in getattr(module, "_no_split_modules", None) or ()}
    return (module for module in models.modules() if type(module).__name__ in names)
