"""LoRA adapters: putting them on a model, and folding them into its weights."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from afarm.backend.device import quiet
from afarm.core.config import LoraConfig
from afarm.core.errors import ModelError

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel


def peft_config(config: LoraConfig, train_also: Sequence[str] = (), train_tokens: Sequence[int] = ()) -> Any:
    """PEFT's config for `config`. `train_also` names modules trained whole beside the adapters, such as a new head;
    `train_tokens` are tokens whose embeddings are trained, such as new control tokens."""
    from peft import LoraConfig as PeftLoraConfig

    return PeftLoraConfig(
        r=config.r,
        lora_alpha=config.alpha,
        lora_dropout=config.dropout,
        target_modules=config.target_modules,
        modules_to_save=list(train_also) or None,
        trainable_token_indices=list(train_tokens) or None,
        bias="none",
    )


def add_adapter(
    model: PreTrainedModel,
    config: LoraConfig,
    train_also: Sequence[str] = (),
    train_tokens: Sequence[int] = (),
    name: str = "default",
) -> PeftModel:
    """`model` (changed in place) with fresh trainable adapters, all else frozen but `train_also` and `train_tokens`.

    A model that has adapters gets another beside them, under a `name` of its own; the one before stays active, and
    both stay to be trained. Raises `ModelError` where `target_modules` matches nothing in the model.
    """
    from peft import get_peft_model

    settings = peft_config(config, train_also, train_tokens)
    try:
        with quiet():
            if not hasattr(model, "merge_and_unload"):
                return get_peft_model(model, settings, adapter_name=name)
            trained = [p for p in model.parameters() if p.requires_grad]
            known = set(model.parameters())
            model.add_adapter(name, settings)
            for parameter in [*trained, *(p for p in model.parameters() if p not in known)]:
                parameter.requires_grad_(True)
            return model
    except ValueError as error:
        raise ModelError(f"LoRA: {error}; check lora.target_modules ({config.target_modules!r})") from error


@contextmanager
def active_adapter(model: PeftModel, name: str | None) -> Iterator[None]:
    """`model` with another of its adapters, or with none; then as before.

    PEFT freezes what it switches off: afterwards all that was to be trained is so again.
    """
    before, trained = model.active_adapter, [p for p in model.parameters() if p.requires_grad]
    try:
        if name is None:
            with model.disable_adapter():
                yield
        else:
            model.set_adapter(name)
            yield
    finally:
        if name is not None:
            model.set_adapter(before)
        for parameter in trained:
            parameter.requires_grad_(True)


def sharing_copy(model: PreTrainedModel, copied: Collection[torch.nn.Parameter] = ()) -> PreTrainedModel:
    """Copy the modules of `model` but share its weights, frozen, except those `copied`.

    Merging adapters into it would change `model`: use `merged_copy`.
    """
    own = {id(p) for p in copied}
    shared = {id(p): torch.nn.Parameter(p.data, requires_grad=False) for p in model.parameters() if id(p) not in own}
    return copy.deepcopy(model, {**shared, **{id(b): b for b in model.buffers()}})


def plain_copy(model: PreTrainedModel, *, share_weights: bool = False) -> PreTrainedModel:
    """Copy `model` without its adapters, which are merged. `share_weights` shares the weights, frozen, if it has none.

    Share weights to train adapters on them: the copy then costs no memory.
    """
    if share_weights and not hasattr(model, "merge_and_unload"):
        return sharing_copy(model)
    return merge_adapter(copy.deepcopy(model)).requires_grad_(True)


def merge_adapter(model: PreTrainedModel) -> PreTrainedModel:
    """A plain model with the adapters folded into the weights (in place); `model` itself where it has none."""
    if not hasattr(model, "merge_and_unload"):
        return model
    merged = model.merge_and_unload()
    return merged.requires_grad_(True)


def merged_copy(model: PreTrainedModel) -> PreTrainedModel:
    """Like `merge_adapter`, but `model` keeps its adapters: `model` itself where it has none."""
    return merge_adapter(copy.deepcopy(model)) if hasattr(model, "merge_and_unload") else model
