"""Faster training on CPUs: bfloat16 where it pays, oneDNN on AMD, freed memory that is kept.

torch multiplies float32 by MKL, which on AMD's CPUs is a tenth to a third slower than oneDNN, most if the inner
dimension is small, as in the output head of a small model (figures: `docs/notes/benchmarks.md`). Other CPUs were not
measured and keep torch's choice. `backend.cpu_tuning=false` switches both off.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

LARGE = 2**23
"""Multiplications from which oneDNN's overhead pays."""

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # parameters of mallopt, from malloc.h
KEPT_BYTES = 2**27

_enabled = True


def switch(on: bool) -> None:
    """Turn the tuning of this module on or off, for the whole process."""
    global _enabled
    _enabled = on


def keep_freed_memory() -> None:
    """Have glibc, where there is one, keep up to `KEPT_BYTES` of freed memory for the next allocations.

    A training step frees what the next one allocates. Handing the pages back and having the kernel clear them again
    took a tenth of a PPO step's time.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if _enabled and sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(MMAP_THRESHOLD, KEPT_BYTES)


def native_dtype(device: str) -> str:
    """Return "bfloat16" if torch reports that `device` (`backend.device`) has it, else "float32"."""
    accelerator = torch.accelerator.current_accelerator(check_available=True) if device == "auto" else None
    kind = accelerator.type if accelerator else device.partition(":")[0]
    try:
        if kind == "cuda":
            reported = torch.cuda.is_bf16_supported(including_emulation=False)
        elif kind == "mps":
            reported = torch.backends.mps.is_macos_or_newer(14, 0)
        else:  # without instructions for it, a CPU takes more than ten times as long as in float32
            reported = kind not in ("auto", "cpu") or torch.ops.mkldnn._is_mkldnn_bf16_supported()
    except (AttributeError, RuntimeError, AssertionError):  # a private name; a device that is not there
        reported = False
    return "bfloat16" if reported else "float32"


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiply `x` [..., K] by the transpose of `weight` [N, K] and add `bias` [N]. Has no gradient."""
    if uses_onednn(x, weight):
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return nn.functional.linear(x, weight, bias)


def uses_onednn(x: Tensor, weight: Tensor) -> bool:
    """Tell if oneDNN multiplies: large float32 matrices on an AMD CPU, not under autocast."""
    return (
        _enabled
        and x.numel() * weight.shape[0] >= LARGE
        and x.device.type == weight.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")
        and _is_amd()
        and _has_onednn()
    )


@functools.cache
def _is_amd() -> bool:
    """Tell if this is an AMD CPU, by /proc/cpuinfo: False where there is none."""
    cpuinfo = Path("/proc/cpuinfo")
    return cpuinfo.exists() and "AuthenticAMD" in cpuinfo.read_text()


@functools.cache
def _has_onednn() -> bool:
    """Try oneDNN's product, which has a private name in torch that may change."""
    try:
        one = torch.ones(1, 1)
        return bool(torch.ops.mkldnn._linear_pointwise(one, one, None, "none", [], "") == 1)
    except (AttributeError, RuntimeError, TypeError):
        return False


class OneDNNLinear(nn.Linear):
    """A linear layer that multiplies by `product`."""

    def forward(self, input: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return product(input, self.weight, self.bias)
        if not uses_onednn(input, self.weight):
            return super().forward(input)
        return _Product.apply(input, self.weight, self.bias)


def use_onednn(model: nn.Module) -> None:
    """Have the linear layers of `model` multiply by `product`; weights, names and files stay."""
    for module in model.modules():
        if type(module) is nn.Linear and module.weight.device.type == "cpu":
            module.__class__ = OneDNNLinear


class _Product(torch.autograd.Function):
    """`product` with its gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x if weight.requires_grad else None, weight)  # a frozen layer keeps no activations
        return product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = upstream
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        rows = gradient.reshape(-1, gradient.shape[-1])
        return (
            product(gradient, weight.T) if needs_x else None,
            rows.T @ x.reshape(-1, x.shape[-1]) if needs_weight else None,  # MKL is not slower here
            rows.sum(0) if needs_bias else None,
        )
