"""A base model's config, read without its weights."""

from __future__ import annotations

from typing import Any

from transformers import AutoConfig, LlamaConfig

from afarm.core.errors import ModelError
from afarm.storage.model_files import local_path, model_identity, require_on_hub

SHAPES = {
    "huggyllama/llama-7b": (4096, 11008, 32, 32, 32, 32000),
    "meta-llama/Llama-2-70b-hf": (8192, 28672, 80, 64, 8, 32000),
}
"""Models whose config is known here: width, inner width, layers, heads, heads of keys, vocabulary."""


def read_model_config(spec: str) -> Any:
    """Read a model's config from its files or the Hub, or look it up in `SHAPES`. Raises `ModelError`."""
    if spec in SHAPES:
        width, inner, layers, heads, key_heads, vocabulary = SHAPES[spec]
        return LlamaConfig(
            hidden_size=width,
            intermediate_size=inner,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=key_heads,
            vocab_size=vocabulary,
        )
    path = local_path(spec)
    require_on_hub(spec)
    try:
        if path and path.suffix == ".gguf":
            return AutoConfig.from_pretrained(str(path.parent), gguf_file=path.name)
        if path:
            return AutoConfig.from_pretrained(str(path))
        # By its commit, a cached config is read without asking the Hub.
        return AutoConfig.from_pretrained(spec, revision=model_identity(spec).partition("@")[2] or "main")
    except (OSError, ValueError) as error:
        cause = str(error).partition("\n")[0].rstrip(".")
        raise ModelError(f"the config of {spec!r} cannot be read: {cause}; check --model") from error
