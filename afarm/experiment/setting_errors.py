"""Wrong settings in plain words: the setting, the fault and the nearest name that there is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pydantic import BaseModel, ValidationError

from afarm.core.errors import did_you_mean

SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "lr": ("learning_rate",),
    **dict.fromkeys(["kl", "beta", "kl_coeff", "kl_penalty"], ("kl_coef",)),
    "bs": ("rollout_batch_size", "per_device_train_batch_size"),
    "batch": ("rollout_batch_size", "per_device_train_batch_size", "per_device_batch_size"),
    "batch_size": ("rollout_batch_size", "per_device_train_batch_size", "per_device_batch_size"),
    "epochs": ("num_train_epochs", "num_ppo_epochs", "num_epochs"),
    "num_epochs": ("num_train_epochs", "num_ppo_epochs"),
    "steps": ("total_steps", "max_steps"),
    "num_steps": ("total_steps", "max_steps"),
    "warmup": ("warmup_steps", "warmup_ratio"),
    "wd": ("weight_decay",),
    "grad_clip": ("max_grad_norm",),
    "clip": ("cliprange", "max_grad_norm"),
    "clip_range": ("cliprange",),
    "grad_accum": ("gradient_accumulation_steps",),
    "scheduler": ("lr_scheduler_type",),
    "temp": ("temperature",),
    "max_tokens": ("max_new_tokens", "response_length", "max_length"),
    "max_len": ("max_length",),
    "noise": ("label_noise",),
    "num_samples": ("n",),
}
"""Settings by what other software calls them."""

PLAIN: Mapping[str, str] = {
    **dict.fromkeys(["int_parsing", "int_type", "int_from_float"], "must be a whole number"),
    **dict.fromkeys(["float_parsing", "float_type", "finite_number"], "must be a number"),
    **dict.fromkeys(["bool_parsing", "bool_type"], "must be true or false"),
    "string_type": "must be text",
    **dict.fromkeys(["dict_type", "mapping_type"], "must map names to values, such as {name: value}"),
    **dict.fromkeys(["model_type", "model_attributes_type"], "must be a section of settings"),
    **dict.fromkeys(["list_type", "tuple_type"], "must be a list, such as [one, two]"),
}
"""Sentences for the findings of pydantic whose own are about Python's types."""


def nearest_setting(name: str, known: Iterable[str]) -> str:
    """Suggest the setting that is called `name` elsewhere, or else the nearest of the `known` ones."""
    known = set(known)
    meant = [setting for setting in SYNONYMS.get(name.lower(), ()) if setting in known]
    return f" Did you mean {' or '.join(map(repr, meant))}?" if meant else did_you_mean(name, known)


def list_fields(model: type[BaseModel], path: Iterable[int | str]) -> list[str]:
    """List the fields of the config at `path` inside `model`; empty if there is no config."""
    for name in path:
        field = model.model_fields.get(str(name))
        inner = field.annotation if field else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return []
        model = inner
    return list(model.model_fields)


def explain_validation_error(
    error: ValidationError, model: type[BaseModel], prefix: str = "", *, unknown: str, missing: str = "is missing"
) -> list[str]:
    """Explain each finding of pydantic in a sentence: `prefix`, the field and what is wrong.

    `unknown` and `missing` word a field that `model` does not have, and one that it needs ("{field}" is its name).
    """
    problems = []
    for finding in error.errors():
        path, kind = finding["loc"], finding["type"]
        field = ".".join(map(str, path))
        if kind == "extra_forbidden":
            problem = f"{unknown}.{nearest_setting(str(path[-1]), list_fields(model, path[:-1]))}"
        elif kind == "missing":
            problem = missing.format(field=f"{prefix}{field}")
        elif kind == "value_error":  # a check of our own says it all
            problem = str(finding["ctx"]["error"])
        else:
            said = PLAIN.get(kind) or finding["msg"].replace("Input should be", "must be")
            problem = f"{said} (given: {finding['input']!r:.200})"
        place = f"{prefix}{field}" if field else prefix.rstrip(".: ")
        problems.append(f"{place}: {problem}" if place else problem)
    return problems
