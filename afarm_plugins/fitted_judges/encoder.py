"""Sentence embeddings of texts by any encoder that transformers loads. Loads torch on first use."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from afarm import ModelError, PluginError, local_path, model_identity, require_local, require_on_hub
from afarm_plugins.fitted_judges.logistic import Array

MAX_TOKENS = 256
"""Tokens of a text that are read, as sentence-transformers does with MiniLM."""
BATCH = 32

EXAMPLE = "sentence-transformers/all-MiniLM-L6-v2"

FAILURES = (OSError, ValueError, KeyError, RuntimeError, ImportError)
"""Errors of transformers for a directory that holds something else."""


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
        self._option = option
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
            tokenizer = AutoTokenizer.from_pretrained(path)
        except FAILURES as error:
            raise self._unusable("no tokenizer can be loaded from it") from error
        if len(tokenizer) <= len(tokenizer.all_special_ids):  # made up from the config alone
            raise self._unusable("it has no tokenizer")
        if tokenizer.pad_token is None:
            raise self._unusable("its tokenizer has no padding token: it is of a model that writes")
        try:
            model = AutoModel.from_pretrained(path).eval()
        except FAILURES as error:
            cause = str(error).partition("\n")[0].rstrip(". ")
            raise self._unusable(f"no model can be loaded from it ({cause})") from error
        if model.config.is_encoder_decoder:
            raise self._unusable("it has a decoder too")
        return tokenizer, model

    def _unusable(self, cause: str) -> ModelError:
        return ModelError(
            f"the sentence encoder {self.model!r} cannot be used: {cause}. Name another ({self._option}): a directory "
            f"with its config, tokenizer and weights, as `hf download {EXAMPLE} --local-dir minilm` makes one, or a "
            "Hub id"
        )

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
        return torch.nn.functional.normalize(means, dim=1).numpy()


def relatedness(asked: Array, answered: Array) -> float:
    """Cosine of two vectors of length 1, or 0 for one of zeros."""
    return float(np.dot(asked, answered))
