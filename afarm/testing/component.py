"""Conformance of a registered component, whatever its kind, as `afarm plugins --check` asks for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from afarm.core.errors import attribute_failures
from afarm.core.records import Instruction
from afarm.core.registry import Component
from afarm.testing.annotators import check_annotator
from afarm.testing.conformance import require
from afarm.testing.contexts import judge_context
from afarm.testing.datasets import check_dataset
from afarm.testing.evaluators import check_evaluator
from afarm.testing.examples import evaluation_inputs
from afarm.testing.judges import check_judge
from afarm.testing.launchers import check_launcher
from afarm.testing.methods import check_method
from afarm.testing.models import tiny_config
from afarm.testing.reward_models import check_fitted_reward_model, check_reward_model
from afarm.testing.samplers import check_sampler
from afarm.testing.studies import check_study

FITTED: Mapping[str, Any] = {"num_train_epochs": 4, "per_device_train_batch_size": 16}
"""Settings with which a reward model learns tiny pairs."""


def check_component(
    component: Component,
    directory: Path,
    *,
    spec: str = "",
    variants: Sequence[Mapping[str, Any]] = ({},),
    instructions: Sequence[Instruction] = (),
    outputs: Sequence[str] = (),
    is_random: bool = False,
) -> None:
    """Check a component by the conformance check of its kind.

    It may write into `directory`, an empty one. `spec` is the text after its name and a colon; `variants` are settings
    to check it under, over its defaults and, if it trains, over tiny ones. `instructions` and `outputs` are for a
    component that accepts no others, `is_random` for an annotator whose labels differ by seed though it asks no judge.
    Raises `ConformanceError` naming the broken promise, and `PluginError` naming component and line if it fails.
    """
    cls = component.load()
    with attribute_failures(component.kind, component.full_name, cls):
        if component.kind in ("databases", "stores", "recipes"):  # the rest shows on a server, or in a run
            lacking = sorted(getattr(cls, "__abstractmethods__", ()))
            require(not lacking, f"it does not define {', '.join(lacking)}")
            return
        is_fitted_model = component.kind == "reward_models" and cls.is_fitted()
        if component.kind == "methods" or is_fitted_model:
            fields = component.config.model_fields if component.config and is_fitted_model else {}
            shared = {name: value for name, value in FITTED.items() if name in fields}
            configs = [tiny_config(component.config, **component.defaults, **{**shared, **own}) for own in variants]
            if is_fitted_model:
                check_fitted_reward_model(cls, configs, directory)
            else:
                check_method([cls() if config is None else cls(config) for config in configs], directory)
            return
        for values in variants:
            config = component.settings(values)
            if component.kind == "judges":
                check_judge(cls(spec, config, judge_context()), instructions=instructions)
                continue
            takes_spec = component.spec or component.kind in ("launchers", "samplers")
            made = cls(*((config, spec, judge_context()) if takes_spec else () if config is None else (config,)))
            if component.kind == "launchers":
                check_launcher(made, directory)
            elif component.kind == "samplers":
                check_sampler(made)
            elif component.kind == "annotators":
                check_annotator(made, instructions=instructions, outputs=outputs, is_random=is_random)
            elif component.kind == "reward_models":
                check_reward_model(made, instructions=instructions, outputs=outputs)
            elif component.kind == "evaluators":
                check_evaluator(made, evaluation_inputs(instructions[:12], outputs) if instructions else None)
            elif component.kind == "studies":
                check_study(made)
            else:
                check_dataset(made)
