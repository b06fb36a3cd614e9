"""A key-value cache that grows in place; transformers' copies all keys and values at every token."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

ROOM = 16
"""Positions that a full cache grows by."""


class GrowingLayer(DynamicLayer):
    """A layer of `DynamicCache` with room for tokens to come: most are appended without a copy."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append keys and values [B, H, T, D]; return all."""
        length, states = self.get_seq_length(), (key_states, value_states)
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.buffers = [new[:, :, :0] for new in states]
        end = length + key_states.shape[-2]
        if end > self.buffers[0].shape[-2]:
            self.buffers = [_larger(buffer, length, end) for buffer in self.buffers]
        for buffer, new in zip(self.buffers, states, strict=True):
            buffer[:, :, length:end] = new
        self._show(end)
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows of the batch, which may repeat."""
        length = self.get_seq_length()
        self.buffers = [buffer.index_select(0, indices) for buffer in self.buffers]
        self._show(length)

    def _show(self, length: int) -> None:
        self.keys, self.values = (buffer[:, :, :length] for buffer in self.buffers)


def _larger(buffer: Tensor, length: int, end: int) -> Tensor:
    """Copy `length` positions into a buffer with zeros behind `end`, which products may read over."""
    batch, heads, _, width = buffer.shape
    larger = buffer.new_empty(batch, heads, end + ROOM, width)
    larger[:, :, :length] = buffer[:, :, :length]
    larger[:, :, end:] = 0
    return larger


def growing_cache(model: PreTrainedModel) -> DynamicCache:
    """Make an empty cache for `model`, whose layers of plain attention grow in place."""
    cache = DynamicCache(config=model.config)
    cache.layers = [GrowingLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache
