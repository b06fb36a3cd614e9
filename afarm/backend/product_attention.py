"""Attention as two batched products, for models in half precision on a CPU.

For short sequences torch's kernel takes twice the time for a single query, and ten times for gradients. Scores are
rounded to half precision, as keys and queries are. Long sequences, whose scores need much memory, and float32 stay with
torch's kernel.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

HALVES = (torch.bfloat16, torch.float16)

NAME = "afarm_products"
"""The name of `product_attention` among transformers' attention functions."""

SCORES_BUDGET = 2**22
"""Scores of one layer up to which they are held at once (8 MiB)."""

FURTHER_TERMS = ("softcap", "position_bias", "s_aux", "cache")
"""Arguments of transformers' attention functions that ask for more than a softmax of scaled products."""


def product_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend from queries [B, Hq, Q, D] to keys and values [B, H, T, D]: [B, Q, Hq, D]. Differentiable.

    Query heads that share a head of keys are rows of one product. torch's kernel handles dropout, further terms and
    scores beyond the budget.
    """
    batch, heads, length, width = key.shape
    queries = query.shape[2]
    plain = attention_mask is None or attention_mask.dtype == torch.bool
    if (
        not plain
        or dropout
        or batch * query.shape[1] * queries * length > SCORES_BUDGET
        or any(kwargs.get(name) is not None for name in FURTHER_TERMS)
    ):
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, is_causal=is_causal, **kwargs
        )
    if (
        attention_mask is None
        and queries > 1
        and (getattr(module, "is_causal", True) if is_causal is None else is_causal)
    ):
        attention_mask = torch.ones(queries, length, dtype=torch.bool, device=key.device).tril(length - queries)
    rows = query.reshape(batch * heads, -1, width) * (width**-0.5 if scaling is None else scaling)
    scores = torch.bmm(rows, _with_its_room(key).mT)[..., :length].view(batch, -1, queries, length)
    if attention_mask is not None:
        scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
    weights = scores.softmax(-1).view(batch * heads, -1, length)
    values = _with_its_room(value)
    if room := values.shape[1] - length:
        weights = torch.nn.functional.pad(weights, (0, room))
    mixed = torch.bmm(weights, values).view(batch, -1, queries, value.shape[-1])
    return mixed.transpose(1, 2), None


def _with_its_room(states: Tensor) -> Tensor:
    """View keys or values [B, H, T, D] with the room behind them in a growing cache: [B * H, C, D]."""
    batch, heads, _, width = states.shape
    row, step, last = states.stride()[1:]
    in_a_cache = (step, last, states.stride(0)) == (width, 1, heads * row) and not states.requires_grad
    if (
        not in_a_cache
        or states.storage_offset() + batch * heads * row > states.untyped_storage().nbytes() // states.itemsize
    ):
        return states.flatten(0, 1)
    return states.as_strided((batch * heads, row // width, width), (row, width, 1))


AttentionInterface.register(NAME, product_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)


def is_half_on_cpu(module: torch.nn.Module) -> bool:
    """Tell if the weights of `module` are in half precision on a CPU."""
    weights = next(module.parameters())
    return weights.device.type == "cpu" and weights.dtype in HALVES


def use_product_attention(model: PreTrainedModel) -> None:
    """Switch a `model` in half precision on a CPU from torch's kernel to `product_attention`."""
    for module in model.modules():
        if isinstance(module, PreTrainedModel) and is_half_on_cpu(module):
            config = module.config.get_text_config()
            if config._attn_implementation == "sdpa":
                config._attn_implementation = NAME
