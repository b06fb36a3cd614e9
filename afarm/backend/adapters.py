"""LoRA adapters: putting them on a model, and folding them into its weights."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from afarm.backend.config import LoraConfig
from afarm.backend.runtime import quiet
from afarm.errors import ModelError

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel


def peft_config(config: LoraConfig, train_also: Sequence[str] = ()) -> Any:
    """PEFT's config for `config`. `train_also` names modules trained whole beside the adapters, such as a new head."""
    from peft import LoraConfig as PeftLoraConfig

    return PeftLoraConfig(
        r=config.r,
        lora_alpha=config.alpha,
        lora_dropout=config.dropout,
        target_modules=config.target_modules,
        modules_to_save=list(train_also) or None,
        bias="none",
    )


def add_adapter(model: PreTrainedModel, config: LoraConfig, train_also: Sequence[str] = ()) -> PeftModel:
    """`model` (changed in place) with fresh trainable adapters, everything else frozen but `train_also`.

    Raises `ModelError` where `target_modules` matches nothing in the model.
    """
    from peft import get_peft_model

    try:
        with quiet():
            return get_peft_model(model, peft_config(config, train_also))
    except ValueError as error:
        raise ModelError(f"LoRA: {error}; check lora.target_modules ({config.target_modules!r})") from error


def merge_adapter(model: PreTrainedModel) -> PreTrainedModel:
    """A plain model with the adapters folded into the weights (in place); `model` itself where it has none."""
    if not hasattr(model, "merge_and_unload"):
        return model
    merged = model.merge_and_unload()
    return merged.requires_grad_(True)


def merged_copy(model: PreTrainedModel) -> PreTrainedModel:
    """Like `merge_adapter`, but `model` keeps its adapters: `model` itself where it has none."""
    return merge_adapter(copy.deepcopy(model)) if hasattr(model, "merge_and_unload") else model
