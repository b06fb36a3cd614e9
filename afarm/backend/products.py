"""Matrix products in float32 on an AMD CPU, by oneDNN.

torch gives bfloat16 to oneDNN and float32 to MKL, which is the slower of the two on AMD's CPUs: by a tenth to a third,
most where the inner dimension is small, as in the output head of a small model. `docs/notes/benchmarks.md` has figures.
On others neither was measured, and torch's choice stands.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

LARGE = 2**23
"""Multiplications from which oneDNN's way into a product is worth its cost."""


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x` [..., K] by the transpose of `weight` [N, K], and `bias` [N] added: [..., N]. Without a gradient."""
    if by_onednn(x, weight):
        found: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return found
    return nn.functional.linear(x, weight, bias)


def by_onednn(x: Tensor, weight: Tensor) -> bool:
    """Whether `product` of these is oneDNN's: large, in float32, on an AMD CPU, and not under autocast."""
    return (
        x.numel() * weight.shape[0] >= LARGE
        and x.device.type == weight.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")
        and _is_amd()
        and _has_onednn()
    )


@functools.cache
def _is_amd() -> bool:
    """Linux says who made the CPU."""
    told = Path("/proc/cpuinfo")
    return told.exists() and "AuthenticAMD" in told.read_text()


@functools.cache
def _has_onednn() -> bool:
    """torch's name for it is private: where it has gone or changed, torch's public product serves."""
    try:
        one = torch.ones(1, 1)
        return bool(torch.ops.mkldnn._linear_pointwise(one, one, None, "none", [], "") == 1)
    except (AttributeError, RuntimeError, TypeError):
        return False


class Linear(nn.Linear):
    """torch's layer, by `product`."""

    def forward(self, input: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return product(input, self.weight, self.bias)
        if not by_onednn(input, self.weight):
            return super().forward(input)
        found: Tensor = _Product.apply(input, self.weight, self.bias)
        return found


def quick_linears(model: nn.Module) -> None:
    """Have the linear layers of `model` multiply by `product`. Their weights, names and files stay as they are."""
    for module in model.modules():
        if type(module) is nn.Linear and module.weight.device.type == "cpu":
            module.__class__ = Linear


class _Product(torch.autograd.Function):
    """`product` and its gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x if weight.requires_grad else None, weight)  # a frozen layer keeps no activations
        return product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        (above,) = upstream
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        rows = above.reshape(-1, above.shape[-1])
        return (
            product(above, weight.T) if of_x else None,
            rows.T @ x.reshape(-1, x.shape[-1]) if of_weight else None,  # summed over rows, MKL is not slower
            rows.sum(0) if of_bias else None,
        )
