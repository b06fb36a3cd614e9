"""Models from GGUF files: parsed once, and unpacked into a model that can be trained and saved."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import torch


@contextmanager
def parsed_once() -> Iterator[None]:
    """Have gguf parse each file once, as a plain array: most of a small model's loading time."""
    try:
        import gguf
    except ImportError:  # transformers reports it
        yield
        return
    before = gguf.GGUFReader, gguf.get_tensor_name_map
    data = property(lambda self: vars(self)["data"], lambda self, mapped: vars(self).update(data=np.asarray(mapped)))
    reader = type("GGUFReader", before[:1], {"data": data})  # each slice of a memmap costs ten of a plain array
    gguf.GGUFReader, gguf.get_tensor_name_map = cache(reader), cache(before[1])
    try:
        yield
    finally:
        gguf.GGUFReader, gguf.get_tensor_name_map = before


def dequantized(model: Any, kind: Any, dtype: torch.dtype) -> Any:
    """Copy a GGUF file's model, which transformers refuses to save, into a fresh model of class `kind`."""
    from transformers.initialization import no_init_weights

    config = type(model.config).from_dict(
        {k: v for k, v in model.config.to_dict().items() if k != "quantization_config"}
    )
    with no_init_weights():  # all are copied
        fresh = kind.from_config(config, dtype=dtype)
    fresh.load_state_dict(model.state_dict())
    fresh.generation_config = model.generation_config
    return fresh
