"""A model's special tokens, read from its tokenizer's files without a tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from afarm.storage.disk import decode_json
from afarm.storage.model_files import cached_file, local_path
from afarm.storage.weight_files import plain_gguf_reader

CONTROL = 3
"""The type of control tokens in a GGUF file."""


@cache
def special_tokens(spec: str) -> frozenset[str]:
    """Return the special tokens of the model at `spec`, as texts; empty if it has no files to tell.

    They frame what a model reads and mean no text: `<|im_start|>`, `</s>`. Raises `ModelError` for a path to nothing.
    """
    path = local_path(spec)
    if path is not None and path.suffix == ".gguf":
        with suppress(Exception):  # loading says what is wrong with a damaged file, or that gguf is not installed
            return frozenset(_of_gguf(path))
        return frozenset()
    files = [path / name if path else cached_file(spec, name) for name in ("tokenizer.json", "tokenizer_config.json")]
    tokens: set[str] = set()
    for file in files:
        with suppress(OSError, ValueError, AttributeError):
            if file is not None and file.is_file():
                tokens |= set(_of_json(decode_json(file.read_text(encoding="utf-8"))))
    return frozenset(token for token in tokens if token.strip())


def _of_json(values: dict[str, Any]) -> Iterator[str]:
    """Yield the special tokens that `tokenizer.json` or `tokenizer_config.json` declares."""
    named = [value for name, value in values.items() if name.endswith("_token") and value]
    lists = [values.get(name) or () for name in ("additional_special_tokens", "extra_special_tokens")]
    listed = [token for one in lists for token in (one.values() if isinstance(one, dict) else one)]
    added = [*(values.get("added_tokens") or ()), *(values.get("added_tokens_decoder") or {}).values()]
    for token in (*named, *listed, *(token for token in added if token.get("special"))):
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str):
            yield text


def _of_gguf(path: Path) -> Iterator[str]:
    fields = plain_gguf_reader()(path).fields
    types, texts = (fields.get(f"tokenizer.ggml.{name}") for name in ("token_type", "tokens"))
    if types is not None and texts is not None:
        for kind, text in zip(types.data, texts.data, strict=True):
            if types.parts[kind][0] == CONTROL:
                yield bytes(texts.parts[text]).decode("utf-8", "replace")
