"""Every component that any installed plugin registers keeps the promises of its interface.

A component registered tomorrow is checked tomorrow, without a line here. What knows only a world of its own is given
that world; what cannot run here is named with the reason.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from afarm import LoraConfig
from afarm.core.plugins import discover
from afarm.core.records import Instruction
from afarm.core.registry import Component
from afarm.experiment.components import Components
from afarm.experiment.recipe import Settings
from afarm.experiment.settings import RunConfig
from afarm.storage.named_code import name_code
from afarm.testing import (
    check_component,
    make_instructions,
    tiny_reward_model,
)
from afarm_plugins.judges.vendor_table import VENDORS

PLUGINS = discover()

CANNOT_RUN_HERE = {
    "datasets/alpaca_farm": "needs the Hugging Face Hub",
    "launchers/ray": "needs Ray: tests/plugins/ray, run by make test-cluster",
    "samplers/vllm": "needs a server that holds the policy: tests/plugins/vllm",
}
"""Components that are left out, each with the reason."""

TOY_WORLD_ONLY = {"annotators/crowd", "reward_models/gold", "evaluators/gold"}
"""Components that refuse every instruction but the toy world's."""

RANDOM_WITHOUT_A_JUDGE = {"annotators/crowd", "annotators/fitted"}
"""Annotators whose labels differ from seed to seed though they ask no judge."""

HERE = Path(__file__).parent

SPECS = {
    "launchers/local": "2",
    "annotators/reward": "any",
    "annotators/alpaca_eval": str(HERE / "letters"),
    "judges/openai": "gpt-4o",
    "judges/anthropic": "claude-opus-4-8",
    **{f"judges/{name}": vendor.example for name, vendor in VENDORS.items()},
    "judges/local": "pkg:afarm_plugins.toy/base2",
    "judges/openai-compatible": "llama3:8b@http://localhost:11434/v1",
    "judges/replay": str(HERE / "judged.jsonl"),
    "reward_models/fitted": "",
    "reward_models/function": f"{HERE.parent / 'support' / 'named_rewards.py'}:terse",
    "reward_models/sum": "one=1,other=-0.5",
}
"""The text after the name and a colon, for components that need one."""

name_code(SPECS)  # as a command line does

SETTINGS = {
    "annotators/alpaca_eval": {"draws": "pair"},
    "studies/sweep": {"values": ["dpo.beta=0.03,0.1", "dpo.loss_type=sigmoid,ipo"]},
}
"""Settings other than the defaults: AlpacaEval's own draws hang on the instruction alone, and mirror nothing."""

LORA = {"lora": LoraConfig(r=2)}

VARIANTS: dict[str, list[dict[str, Any]]] = {
    "methods/sft": [LORA],
    "methods/reward_conditioning": [{"control": "text", "positive_text": "w1", "negative_text": "w2", **LORA}],
    "methods/ppo": [LORA, {"layout": "shared", "shared_value": "adapter", "value_init": "sft", **LORA}],
    "methods/quark": [{"variant": "all", "pool": "keep", **LORA}],
    "reward_models/bradley_terry": [LORA],
}
"""Other settings under which what is trained keeps the same promises."""

TOY_OUTPUTS = ["it is big.", "it is big. it looks old.", "oak. it is quiet", "", "a a a", "fox, bear. they look soft."]


def toy_instructions() -> list[Instruction]:
    dataset = PLUGINS.get("datasets", "toy")
    settings = dataset.settings({"sft": 0, "preference": 24, "unlabeled": 0, "validation": 0, "evaluation": 0})
    return [row.instruction for row in dataset.load()(settings).load("preference")]


def key(component: Component) -> str:
    return f"{component.kind}/{component.full_name}"


def variants(component: Component, directory: Path) -> list[dict[str, Any]]:
    """The settings it is checked under: the defaults, and others that keep the same promises."""
    values = dict(SETTINGS.get(key(component), {}))
    if component.full_name == "files":
        rows = [{"instruction": i.instruction, "input": i.input, "output": "ok"} for i in make_instructions(100)]
        (directory / "rows.json").write_text(json.dumps(rows), encoding="utf-8")
        values["path"] = str(directory / "rows.json")
    if component.full_name == "prompts":
        rows = [{"prompt": i.instruction, "chosen": "ok", "rejected": "no"} for i in make_instructions(100)]
        (directory / "own.json").write_text(json.dumps(rows), encoding="utf-8")
        values["path"] = str(directory / "own.json")
    if component.full_name in ("dialogues", "summaries"):
        asked = [i.instruction for i in make_instructions(100)]
        turns = [[{"role": "user", "content": one}, {"role": "assistant", "content": "ok"}] for one in asked]
        shapes = {"dialogues": [{"messages": chat} for chat in turns], "summaries": [{"text": one} for one in asked]}
        (directory / "tasks.json").write_text(json.dumps(shapes[component.full_name]), encoding="utf-8")
        values["path"] = str(directory / "tasks.json")
    return [values, *({**values, **own} for own in VARIANTS.get(key(component), []))]


def spec(component: Component, directory: Path) -> str:
    if component.kind == "reward_models" and component.spec and key(component) not in SPECS:
        tiny_reward_model().save(directory / "reward")
        return str(directory / "reward")
    return SPECS.get(key(component), "")


@pytest.mark.parametrize("component", list(PLUGINS.registry), ids=key)
def test_component_keeps_the_promises_of_its_interface(component: Component, tmp_path: Path) -> None:
    if reason := CANNOT_RUN_HERE.get(key(component)):
        pytest.skip(f"{key(component)}: {reason}")
    own = key(component) in TOY_WORLD_ONLY
    check_component(
        component,
        tmp_path,
        spec=spec(component, tmp_path),
        variants=variants(component, tmp_path),
        instructions=toy_instructions() if own else (),
        outputs=TOY_OUTPUTS if own else (),
        is_random=key(component) in RANDOM_WITHOUT_A_JUDGE,
    )


def test_no_installed_plugin_is_broken() -> None:
    assert {p.name: p.error for p in PLUGINS.broken} == {}


def test_the_tables_name_registered_components_only() -> None:
    known = {key(component) for component in PLUGINS.registry}
    assert {*CANNOT_RUN_HERE, *TOY_WORLD_ONLY, *RANDOM_WITHOUT_A_JUDGE, *SPECS, *SETTINGS, *VARIANTS} <= known


def test_the_builder_accepts_the_defaults_of_every_component() -> None:
    """What a recipe leaves out must still make a component, so that `--method NAME` alone works."""
    components = Components(PLUGINS, Settings("test", RunConfig(model="nothing"), {}))
    assert all(components.identity(component)["name"] == component.full_name for component in PLUGINS.registry)
