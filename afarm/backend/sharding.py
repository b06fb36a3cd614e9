"""Models sharded among the processes of one launch (FSDP2).

Each process keeps its shard of the transformer's layers, their gradients and the optimiser's state. Embeddings and
heads stay whole, since losses read them outside the model's forward pass. Gradients are sums over processes, as from
`all_reduce_sum`.

A launch that shards loads whole models on the host, memory-mapped, so that all processes of a machine share one copy in
the page cache; shards go to the device. If it offloads, shards, gradients and the optimiser's state stay on the host,
and one layer at a time comes to the device. A model then has weights on both, which no arithmetic may mix.
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
    """Shard every layer of the transformers in `models` among the processes, in place, permanently.

    Shards are on the device, or on the host if the launch offloads; everything outside layers goes to the device. The
    weights are no longer shared with another model. From then on all processes must use the layers equally often.
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
            reshard_after_forward=True,  # each layer is a root, and would stay gathered
            offload_policy=place,
        )
        layer.set_force_sum_reduction_for_comms(True)  # gloo has no other
        layer.set_gradient_divide_factor(1.0)
        # By default a layer prefetches the one used before it, even in a pass of this process alone
        layer.set_modules_to_backward_prefetch([layer])
    share_comm_ctx(layers)  # else each would hold its whole gradient to the end of the backward pass
    move_ends(models, layers, backend.device)


def move_ends(models: nn.Module, layers: Iterable[nn.Module], device: torch.device | str) -> None:
    """Move everything outside `layers` to `device`; `models.to` would move offloaded shards too."""
    inside = {module for layer in layers for module in layer.modules()}
    for module in models.modules():
        if module not in inside:
            module._apply(lambda tensor: tensor.to(device), recurse=False)


def is_sharded(model: nn.Module) -> bool:
    """Tell if a model's layers are sharded."""
    return any(isinstance(parameter, DTensor) for parameter in model.parameters())


@contextmanager
def on_device(model: nn.Module, backend: ModelBackend) -> Iterator[None]:
    """Move a whole model of a launch that shards from the host to the device for the block."""
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
    """Gather all weights of `models` in every process for the block, so that each can sample on its own."""
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
    """Return `batches`, filled up so that all processes have equally many if `model` is sharded."""
    if not is_sharded(model):
        return list(batches)
    most = max(all_gather_object(len(batches)))
    return [*batches, *([filler] * (most - len(batches)))]


def empty_copy(model: M) -> M:
    """Copy the modules of `model` with weights that take no memory; `whole_model` fills them."""
    weights = {id(p): nn.Parameter(torch.empty_like(p, device="meta"), p.requires_grad) for p in model.parameters()}
    return copy.deepcopy(model, {**weights, **{id(buffer): buffer for buffer in model.buffers()}})


def whole_model(empty: M, weights: Mapping[str, Tensor]) -> M:
    """Copy an `empty_copy`, made before sharding, with these weights by name."""
    filled = {id(p): nn.Parameter(weights[name], p.requires_grad) for name, p in empty.named_parameters()}
    return copy.deepcopy(empty, {**filled, **{id(buffer): buffer for buffer in empty.buffers()}})


@torch.no_grad()
def gathered_weights(parameters: Mapping[str, Tensor], *, by_all: bool = True) -> dict[str, Tensor]:
    """Gather weights that may be sharded, on the host; only in the main process unless `by_all`.

    A collective. A device holds one whole tensor at a time.
    """
    wanted = by_all or rank() == 0
    gathered = {}
    for name, parameter in parameters.items():
        whole = full_tensor(parameter.detach())
        if wanted:
            gathered[name] = whole.to("cpu", copy=True)
    return gathered


def full_tensor(tensor: Tensor) -> Tensor:
    """Gather a tensor that may be sharded. A collective."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Check that all numbers in all tensors are finite, in all processes. A collective."""
    tensors = list(tensors)
    bad = sum((~torch.isfinite(local_part(tensor))).any().float() for tensor in tensors)
    total = torch.as_tensor(bad, dtype=torch.float32, device=tensors[0].device)
    all_reduce_sum([total])
    return not total.item()


def all_reduce_gradients(parameters: Collection[nn.Parameter]) -> None:
    """Sum each gradient over the processes; a missing one is 0. Gradients of shards are summed already."""
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
    """Scale the gradients down to a total L2 norm of `max_norm`. Returns their norm before."""
    if not any(isinstance(p, DTensor) for p in parameters):
        return float(nn.utils.clip_grad_norm_(parameters, max_norm))
    gradients = [p.grad for p in parameters if p.grad is not None]
    whole = [gradient for gradient in gradients if not isinstance(gradient, DTensor)]
    shards = [gradient.to_local() for gradient in gradients if isinstance(gradient, DTensor)]
    of_whole, of_shards = (_sum_of_squares(some) for some in (whole, shards))  # each on its device
    all_reduce_sum([of_shards] if shards else [])
    norm = math.sqrt(float(of_whole) + float(of_shards))
    for gradient in gradients:
        gradient.mul_(min(1.0, max_norm / (norm + 1e-6)))
    return norm


def _sum_of_squares(tensors: Sequence[Tensor]) -> Tensor:
    norms = [torch.linalg.vector_norm(tensor, dtype=torch.float32) for tensor in tensors]  # without a copy
    return torch.stack(norms).double().square().sum() if norms else torch.zeros((), dtype=torch.float64)


def parameter_groups(groups: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Split an optimiser's groups into shards and whole weights, which its arithmetic cannot mix."""
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
    """List the weights that `shard_model` does not shard: embeddings, norms outside layers, heads."""
    inside = {id(parameter) for layer in transformer_layers(model) for parameter in layer.parameters()}
    return [parameter for parameter in model.parameters() if id(parameter) not in inside]


def transformer_layers(models: nn.Module) -> Iterator[Any]:
    """Yield the transformers' repeated blocks, by transformers' `_no_split_modules`."""
    names = {name for module in models.modules() for name in getattr(module, "_no_split_modules", None) or ()}
    return (module for module in models.modules() if type(module).__name__ in names)
