"""The engine that samples: in the keys of what is sampled, and refused before a run starts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import light_plugin
import pytest
from light_farm import Make

from afarm.core.errors import AfarmError, ConfigError
from afarm.experiment.farm import Farm
from afarm.experiment.tasks import list_stages
from afarm.experiment.training_stages import may_sample

NOBODY = "vllm@http://127.0.0.1:9"


def samplers(farm: Farm) -> Mapping[str, Any]:
    """The engine in the key of each stage that has one, by its kind."""
    stages = list_stages(farm.workspace, "nudge").values()
    return {stage.kind: stage.key_fields["sampler"] for stage in stages if stage.key_fields.get("sampler")}


def test_the_engine_and_its_version_are_in_the_keys_of_what_is_sampled(
    farm: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, elsewhere = (samplers(farm("backend.sampler=light@" + place)) for place in ("here", "elsewhere"))
    assert set(first) == {"train", "sample", "outputs"}
    assert first == elsewhere, "where an engine runs changes no result"
    assert first["sample"]["version"] == "light 1"
    assert set(samplers(farm()).values()) == {"torch"}
    monkeypatch.setattr(light_plugin.LightEngine, "version", "light 2")
    assert samplers(farm("backend.sampler=light@here"))["sample"] != first["sample"]


def test_methods_that_sample_nothing_have_no_engine_in_their_keys(tmp_path: Path) -> None:
    """So the model that a server is to be started with can be trained before there is a server."""
    components = Farm(
        "toy", settings=["backend.sampler=" + NOBODY], method="dpo", output_dir=tmp_path
    ).workspace.components
    sampling = {name for name in ("sft", "dpo", "ppo", "quark", "feedme") if may_sample(components.method(name))}
    assert sampling == {"ppo", "quark"}


def test_an_engine_that_is_unknown_is_named_before_anything_runs(farm: Make) -> None:
    with pytest.raises(AfarmError, match=r"unknown sampler 'lihgt'\. Did you mean 'light'"):
        farm("backend.sampler=lihgt@here")


def test_weights_that_are_trained_whole_are_refused_before_anything_runs(tmp_path: Path) -> None:
    choices: Any = {"output_dir": tmp_path, "progress": False}
    with pytest.raises(ConfigError, match=rf"ppo trains every weight .* {NOBODY} takes adapters only: .*ppo.lora.r=16"):
        Farm("toy", settings=["backend.sampler=" + NOBODY], method="ppo", **choices)
    Farm("toy", settings=["backend.sampler=" + NOBODY, "ppo.lora.r=4"], method="ppo", **choices)
