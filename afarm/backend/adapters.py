"""LoRA adapters: add them to a model, switch between them, merge them, and keep what was merged."""

from __future__ import annotations

import copy
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from afarm.backend.models import MODEL_CARD, quiet_transformers, require_finite
from afarm.backend.sharding import full_tensor
from afarm.core.config import LoraConfig
from afarm.core.errors import ModelError

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel


def add_adapter(
    model: PreTrainedModel,
    config: LoraConfig,
    train_also: Sequence[str] = (),
    train_tokens: Sequence[int] = (),
    name: str = "default",
) -> PeftModel:
    """Add fresh trainable adapters to `model` in place and return the PEFT model.

    All else is frozen except the modules `train_also` (a new head, say) and the embeddings of `train_tokens` (new
    control tokens, say). A model that has adapters gets another one under `name`: the earlier one stays active, and
    both stay trainable. Raises `ModelError` if `target_modules` matches nothing in the model.
    """
    from peft import LoraConfig as PeftLoraConfig
    from peft import get_peft_model

    from afarm.backend.half_adapters import multiply_in_half

    settings = PeftLoraConfig(
        r=config.r,
        lora_alpha=config.alpha,
        lora_dropout=config.dropout,
        target_modules=config.target_modules,
        modules_to_save=list(train_also) or None,
        trainable_token_indices=list(train_tokens) or None,
        bias="none",
    )
    try:
        with quiet_transformers():
            if not hasattr(model, "merge_and_unload"):
                adapted = get_peft_model(model, settings, adapter_name=name)
                multiply_in_half(adapted)
                return adapted
            trainable = [p for p in model.parameters() if p.requires_grad]
            earlier = set(model.parameters())
            model.add_adapter(name, settings)
            for parameter in [*trainable, *(p for p in model.parameters() if p not in earlier)]:
                parameter.requires_grad_(True)
            return model
    except ValueError as error:
        raise ModelError(f"LoRA: {error}; check lora.target_modules ({config.target_modules!r})") from error


@dataclass(frozen=True, slots=True)
class LowRankUpdate:
    """Products B·A added to weights, scaled: A [r, in] and B [out, r] by the module's path."""

    factors: Mapping[str, tuple[Tensor, Tensor]]

    @classmethod
    def of(cls, model: PeftModel) -> LowRankUpdate | None:
        """Copy the active adapter to the CPU; None if it holds more than low-rank products of weights.

        A collective if the model is sharded.
        """
        (active,) = model.active_adapters
        config = model.peft_config[active]
        if config.modules_to_save or config.trainable_token_indices or config.use_dora or config.bias != "none":
            return None
        factors = {}
        for path, module in model.named_modules():
            if active in getattr(module, "lora_A", ()):
                down, up = (full_tensor(part[active].weight.detach()) for part in (module.lora_A, module.lora_B))
                up = up * module.scaling[active]
                factors[path.removeprefix("base_model.model.")] = (down.cpu().clone(), up.cpu())
        return cls(factors)

    def __add__(self, other: LowRankUpdate) -> LowRankUpdate:
        """Add both to the same weights: ranks add up."""
        factors = dict(self.factors)
        for path, (down, up) in other.factors.items():
            if path in factors:
                below = factors[path]
                down, up = torch.cat([below[0], down]), torch.cat([below[1], up], dim=1)
            factors[path] = (down, up)
        return LowRankUpdate(factors)

    def save(self, directory: Path) -> None:
        """Save it in PEFT's format, which PEFT and servers load."""
        from peft import LoraConfig as PeftLoraConfig
        from safetensors.torch import save_file

        rank = max(len(down) for down, _ in self.factors.values())
        tensors = {}
        for path, (down, up) in self.factors.items():
            missing = rank - len(down)  # PEFT wants one rank for all modules
            for part, weight in (
                ("A", torch.nn.functional.pad(down, (0, 0, 0, missing))),
                ("B", torch.nn.functional.pad(up, (0, missing))),
            ):
                tensors[f"base_model.model.{path}.lora_{part}.weight"] = weight.contiguous()
        modules = sorted({path.rpartition(".")[2] for path in self.factors})
        config = PeftLoraConfig(r=rank, lora_alpha=rank, target_modules=modules, task_type="CAUSAL_LM")
        config.target_modules = modules  # a set's order differs between processes
        directory.mkdir(parents=True, exist_ok=True)
        config.save_pretrained(directory)
        save_file(tensors, directory / "adapter_model.safetensors")

    @classmethod
    def load(cls, directory: Path) -> LowRankUpdate:
        """Load what `save` wrote."""
        from safetensors.torch import load_file

        tensors = load_file(directory / "adapter_model.safetensors")
        factors = {}
        for name, down in tensors.items():
            if name.endswith(".lora_A.weight"):
                path = name.removesuffix(".lora_A.weight")
                factors[path.removeprefix("base_model.model.")] = down, tensors[f"{path}.lora_B.weight"]
        return cls(factors)


def switch_off_dropout(model: torch.nn.Module) -> None:
    """Set every dropout in `model` to 0, in place, except the adapters' (`lora.dropout`)."""
    for path, module in model.named_modules():
        if "lora_dropout" in path.split("."):
            continue
        names = [name for name, value in vars(module).items() if isinstance(value, float) and "drop" in name]
        for name in [*names, *(["p"] if isinstance(module, torch.nn.modules.dropout._DropoutNd) else [])]:
            setattr(module, name, 0.0)


def sharing_copy(model: PreTrainedModel, copied: Collection[torch.nn.Parameter] = ()) -> PreTrainedModel:
    """Copy the modules of `model` but share its weights, frozen; the parameters `copied` are copied.

    Merging adapters into it would change `model`: use `merged_copy`.
    """
    own_ids = {id(p) for p in copied}
    shared = {
        id(p): torch.nn.Parameter(p.data, requires_grad=False) for p in model.parameters() if id(p) not in own_ids
    }
    return copy.deepcopy(model, {**shared, **{id(b): b for b in model.buffers()}})


def plain_copy(model: PreTrainedModel, *, share_weights: bool = False) -> PreTrainedModel:
    """Copy `model` with its adapters merged.

    With `share_weights` the copy shares the frozen weights of `model` and costs no memory, unless adapters must be
    merged.
    """
    if share_weights and not hasattr(model, "merge_and_unload"):
        return sharing_copy(model)
    return merge_adapter(copy.deepcopy(model)).requires_grad_(True)


def merge_adapter(model: PreTrainedModel) -> PreTrainedModel:
    """Merge the adapters into the weights, in place. Returns `model` itself if it has none."""
    if not hasattr(model, "merge_and_unload"):
        return model
    merged = model.merge_and_unload()
    return merged.requires_grad_(True)


def merged_copy(model: PreTrainedModel) -> PreTrainedModel:
    """Merge the adapters into a copy on the host; without adapters return `model` itself."""
    if not hasattr(model, "merge_and_unload"):
        return model
    on_host: dict[int, Any] = {id(buffer): buffer.to("cpu", copy=True) for buffer in model.buffers()}
    for parameter in model.parameters():
        weights = parameter.detach().to("cpu", copy=True)
        on_host[id(parameter)] = torch.nn.Parameter(weights, parameter.requires_grad)
    return merge_adapter(copy.deepcopy(model, on_host))


def save_merged(model: PreTrainedModel, tokenizer: Any, card: Mapping[str, Any], directory: Path) -> None:
    """Save weights, adapters merged, and tokenizer as transformers does, and afarm's card beside them.

    Raises `TrainingError` if a weight is not finite.
    """
    require_finite(model)
    with quiet_transformers():
        merged_copy(model).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    (directory / MODEL_CARD).write_text(json.dumps(card) + "\n", "utf-8")
