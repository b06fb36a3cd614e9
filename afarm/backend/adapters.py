"""LoRA adapters: add them to a model, switch between them, merge them, and keep what was merged."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from afarm.backend.models import quiet_transformers
from afarm.backend.sharding import full_tensor
from afarm.core.config import LoraConfig
from afarm.core.errors import ModelError

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel


def peft_config(config: LoraConfig, train_also: Sequence[str] = (), train_tokens: Sequence[int] = ()) -> Any:
    """Translate `config` into PEFT's.

    `train_also` names modules trained whole beside the adapters, such as a new head; `train_tokens` are tokens whose
    embeddings are trained, such as new control tokens.
    """
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
    """Add fresh trainable adapters to `model` in place and return the PEFT model.

    All else is frozen except `train_also` and `train_tokens` (see `peft_config`). A model that has adapters gets
    another beside them under the given `name`; the earlier one stays active, and both stay to be trained. Raises
    `ModelError` if `target_modules` matches nothing in the model.
    """
    from peft import get_peft_model

    from afarm.backend.half_adapters import multiply_in_half

    settings = peft_config(config, train_also, train_tokens)
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
    """The products B·A that adapters add to weights: by the module's path, A [r, in] and B [out, r].

    LoRA's scaling is in B.
    """

    factors: Mapping[str, tuple[Tensor, Tensor]]

    @classmethod
    def of(cls, model: PeftModel) -> LowRankUpdate | None:
        """Copy that of the model's active adapter to the CPU; None if the adapter holds anything else.

        Embeddings, biases, whole modules or magnitudes, say. A collective if the model is sharded.
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
        """Save it as PEFT does, so that PEFT and servers load it on the weights that it is for."""
        from peft import LoraConfig as PeftLoraConfig
        from safetensors.torch import save_file

        rank = max(len(down) for down, _ in self.factors.values())
        tensors = {}
        for path, (down, up) in self.factors.items():
            missing = rank - len(down)  # all modules have one rank
            for part, weight in (
                ("A", torch.nn.functional.pad(down, (0, 0, 0, missing))),
                ("B", torch.nn.functional.pad(up, (0, missing))),
            ):
                tensors[f"base_model.model.{path}.lora_{part}.weight"] = weight.contiguous()
        modules = sorted({path.rpartition(".")[2] for path in self.factors})
        config = PeftLoraConfig(r=rank, lora_alpha=rank, target_modules=modules, task_type="CAUSAL_LM")
        config.target_modules = modules  # not a set, whose order no two processes need have in common
        directory.mkdir(parents=True, exist_ok=True)
        config.save_pretrained(directory)
        save_file(tensors, directory / "adapter_model.safetensors")

    @classmethod
    def load(cls, directory: Path) -> LowRankUpdate:
        """Load what `save` wrote."""
        from safetensors.torch import load_file

        tensors = load_file(directory / "adapter_model.safetensors")
        paths = [name.removesuffix(".lora_A.weight") for name in tensors if name.endswith(".lora_A.weight")]
        return cls(
            {
                path.removeprefix("base_model.model."): (
                    tensors[f"{path}.lora_A.weight"],
                    tensors[f"{path}.lora_B.weight"],
                )
                for path in paths
            }
        )


def switch_off_dropout(model: torch.nn.Module) -> None:
    """Set every dropout in `model` to 0, in place, but that of adapters (`lora.dropout`).

    As a layer or as a figure that attention reads.
    """
    for path, module in model.named_modules():
        if "lora_dropout" in path.split("."):
            continue
        names = [name for name, value in vars(module).items() if isinstance(value, float) and "drop" in name]
        for name in [*names, *(["p"] if isinstance(module, torch.nn.modules.dropout._DropoutNd) else [])]:
            setattr(module, name, 0.0)


@contextmanager
def active_adapter(model: PeftModel, name: str | None) -> Iterator[None]:
    """Run with another adapter of `model`, or with none; then restore the active one.

    PEFT freezes what it switches off: afterwards every parameter that was trainable is so again.
    """
    before, trainable = model.active_adapter, [p for p in model.parameters() if p.requires_grad]
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
        for parameter in trainable:
            parameter.requires_grad_(True)


def sharing_copy(model: PreTrainedModel, copied: Collection[torch.nn.Parameter] = ()) -> PreTrainedModel:
    """Copy the modules of `model` but share its weights, frozen, except those `copied`.

    Merging adapters into it would change `model`: use `merged_copy`.
    """
    own_ids = {id(p) for p in copied}
    shared = {
        id(p): torch.nn.Parameter(p.data, requires_grad=False) for p in model.parameters() if id(p) not in own_ids
    }
    return copy.deepcopy(model, {**shared, **{id(b): b for b in model.buffers()}})


def plain_copy(model: PreTrainedModel, *, share_weights: bool = False) -> PreTrainedModel:
    """Copy `model` without its adapters, which are merged into the copy.

    With `share_weights` the copy shares the weights of `model`, frozen, unless adapters must be merged: train adapters
    on it, and it costs no memory.
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
    """Merge the adapters into a copy on the host: `model` keeps them, and no card holds a second one.

    Returns `model` itself if it has none.
    """
    if not hasattr(model, "merge_and_unload"):
        return model
    on_host: dict[int, Any] = {id(buffer): buffer.to("cpu", copy=True) for buffer in model.buffers()}
    for parameter in model.parameters():
        weights = parameter.detach().to("cpu", copy=True)
        on_host[id(parameter)] = torch.nn.Parameter(weights, parameter.requires_grad)
    return merge_adapter(copy.deepcopy(model, on_host))
