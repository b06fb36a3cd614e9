"""Models from GGUF files: parsed once, and unpacked into a model that can be trained and saved."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from afarm.storage.weight_files import forget_gguf, read_gguf


@contextmanager
def parsed_once() -> Iterator[None]:
    """Have gguf parse a file once: most of a small model's loading time."""
    try:
        import gguf
    except ImportError:  # transformers reports it
        yield
        return
    before = gguf.GGUFReader, gguf.get_tensor_name_map
    gguf.GGUFReader, gguf.get_tensor_name_map = read_gguf, cache(before[1])
    try:
        yield
    finally:
        gguf.GGUFReader, gguf.get_tensor_name_map = before
        forget_gguf()


def dequantized(model: Any, kind: Any, dtype: torch.dtype) -> Any:
    """Copy a GGUF file's model, which transformers refuses to save, into a fresh model of class `kind`."""
    from transformers.initialization import no_init_weights

    config = type(model.config).from_dict(
        {k: v for k, v in model.config.to_dict().items() if k != "quantization_config"}
    )
    with no_init_weights():  # all are copied
        fresh = kind.from_config(config, dtype=dtype)
    fresh.tie_weights()  # which no_init_weights leaves apart: a tied head would be saved beside the embeddings
    fresh.load_state_dict(model.state_dict())
    fresh.generation_config = model.generation_config
    return fresh
