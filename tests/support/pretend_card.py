"""A card where there is none: its tensors hold their numbers on the CPU, and do not meet those of the CPU.

As on a card, a number of no dimensions may come from the CPU into elementwise arithmetic, and nothing else may.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

CARD = torch.device("meta")
"""The one other device of which torch without CUDA knows where it is."""

MOVES = {"_to_copy", "copy_"}
TAKES_NUMBERS = {"add", "add_", "mul", "mul_", "div", "div_", "sub"}


class OnCard(Tensor):
    """A tensor that says that it is on the card."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> OnCard:
        made: OnCard = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, held.shape, strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype, device=CARD
        )
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


class PretendCard(TorchDispatchMode):
    """While it is entered, tensors may be made on `CARD` and moved to it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


def compute(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Compute on the CPU. Raises `RuntimeError` for what a card refuses: tensors of both devices."""
    name = func._schema.name.partition("::")[2]
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    strangers = [x for x in tensors if not isinstance(x, OnCard)]
    on_card = len(strangers) < len(tensors)
    in_place = name.endswith("_") and not name.startswith("_")
    if on_card and name not in MOVES:
        changed_here = in_place and isinstance(args[0], Tensor) and not isinstance(args[0], OnCard)
        if changed_here or any(x.dim() or name not in TAKES_NUMBERS for x in strangers):
            raise RuntimeError(f"{name}: expected all tensors to be on the same device")
    asked = kwargs.get("device")
    if asked is not None:
        on_card, kwargs = torch.device(asked) == CARD, {**kwargs, "device": torch.device("cpu")}
    held_args, held_kwargs = tree_map(lambda x: x.held if isinstance(x, OnCard) else x, (args, dict(kwargs)))
    result = func(*held_args, **held_kwargs)
    if in_place:
        return args[0]
    return tree_map(lambda x: OnCard(x) if isinstance(x, Tensor) else x, result) if on_card else result
