"""LoRA in half precision on a CPU: float32 adapters, multiplied in the layer's precision.

PEFT multiplies in float32; casting each layer's activations there and back costs more than the layer itself.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from peft.tuners.lora import Linear as LoraLinear
from torch import Tensor, nn

from afarm.backend.product_attention import HALVES, is_half_on_cpu


class HalfLoraLinear(LoraLinear):
    """A linear layer with LoRA that rounds its adapter for products; gradients are float32."""

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        name = self._adapter() if x.dtype in HALVES and not (args or kwargs) else None
        if name is None:
            return super().forward(x, *args, **kwargs)
        base: Tensor = cast(nn.Module, self.base_layer)(x)
        down, up = self.lora_A[name].weight, self.lora_B[name].weight * self.scaling[name]
        low = nn.functional.linear(x, down.to(x.dtype))
        rows = torch.addmm(base.flatten(0, -2), low.flatten(0, -2), up.to(x.dtype).T)
        return rows.view_as(base)

    def _adapter(self) -> str | None:
        """Name the active adapter if it is the only one and a plain product of two matrices."""
        active = [name for name in self.active_adapters if name in self.lora_A]
        if self.disable_adapters or self.merged or len(active) != 1:
            return None
        (name,) = active
        plain = name not in self.lora_variant and self.lora_B[name].bias is None
        without_dropout = isinstance(self.lora_dropout[name], nn.Identity)
        return name if plain and without_dropout and not torch.is_autocast_enabled("cpu") else None


def multiply_in_half(model: nn.Module) -> None:
    """Have the LoRA layers of `model` whose own weights are in half precision on a CPU multiply in it."""
    for module in model.modules():
        if type(module) is LoraLinear and is_half_on_cpu(cast(LoraLinear, module).base_layer):
            module.__class__ = HalfLoraLinear
