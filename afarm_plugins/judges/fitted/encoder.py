"""Sentence embeddings of texts by any encoder that transformers loads. Loads torch on first use."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from afarm import ModelError, PluginError, local_path, model_identity, require_local, require_on_hub
from afarm_plugins.judges.fitted.logistic import Array

MAX_TOKENS = 256
"""Tokens of a text that are read, as sentence-transformers does with MiniLM."""
BATCH = 32


class SentenceEncoder:
    """Mean of the last layer's states over a text's tokens, at length 1."""

    def __init__(self, model: str, option: str = "--embeddings MODEL"):
        """Check that `model`, a directory or Hub id, is there. If not, a `ModelError` names `option`."""
        try:
            require_local(model)
            require_on_hub(model)
        except ModelError as error:
            cause = str(error).partition(": ")[2].partition(";")[0]
            raise ModelError(f"the sentence encoder {model!r}: {cause}; name one that is there: {option}") from error
        self.model = model
        self._known: dict[str, Array] = {}

    @cached_property
    def identity(self) -> str:
        """Digest of its files, or its Hub id with the commit."""
        return model_identity(self.model)

    @cached_property
    def _loaded(self) -> tuple[Any, Any]:
        try:
            from transformers import AutoModel, AutoTokenizer
        except ImportError as error:
            raise PluginError(f"sentence embeddings need {error.name!r}: pip install 'afarm[train]'") from error
        path = str(local_path(self.model) or self.model)
        try:
            return AutoTokenizer.from_pretrained(path), AutoModel.from_pretrained(path).eval()
        except (OSError, ValueError) as error:
            raise ModelError(f"the sentence encoder {self.model!r} cannot be loaded: {error}") from error

    def embed(self, texts: Sequence[str]) -> list[Array]:
        """Return one vector per text, in order; zeros for a text without tokens. Each text is encoded once."""
        fresh = sorted({text for text in texts if text not in self._known}, key=lambda text: (len(text), text))
        for start in range(0, len(fresh), BATCH):
            batch = fresh[start : start + BATCH]
            self._known.update(zip(batch, self._encode(batch), strict=True))
        return [self._known[text] for text in texts]

    def _encode(self, batch: Sequence[str]) -> Array:
        import torch

        tokenizer, model = self._loaded
        readable = [text.encode("utf-8", "replace").decode() for text in batch]
        tokens = tokenizer(readable, padding=True, truncation=True, max_length=MAX_TOKENS, return_tensors="pt")
        with torch.inference_mode():
            states = model(**tokens).last_hidden_state.double()
        mask = tokens["attention_mask"].unsqueeze(-1)
        means = (states * mask).sum(1) / mask.sum(1).clamp(min=1)
        vectors: Array = torch.nn.functional.normalize(means, dim=1).numpy()
        return vectors


def relatedness(asked: Array, answered: Array) -> float:
    """Cosine of two vectors of length 1, or 0 for one of zeros."""
    return float(np.dot(asked, answered))
