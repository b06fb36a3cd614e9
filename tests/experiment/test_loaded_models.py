"""What a method, a reward model or a user does to a model reaches no other stage: each loads its own."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from light_farm import LightBackend, Make, light_farm
from light_plugin import Nudge, WordPolicy, WordReward
from torch import nn

from afarm.core.errors import PluginError
from afarm.core.interfaces import MethodInputs

Change = Callable[[MethodInputs], Any]


def weighing(weight: float) -> nn.Linear:
    module = nn.Linear(1, 1)
    nn.init.constant_(module.weight, weight)
    nn.init.zeros_(module.bias)
    return module


@pytest.fixture(autouse=True)
def _weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the numbers of the light plugin's models in modules, which the backend sees."""

    def make_policy(self: Any, skill: float, temperature: float | None = None) -> None:
        self.model, self.temperature = weighing(skill), temperature

    def make_reward(self: Any, weight: float) -> None:
        self.model = weighing(weight)

    number = property(lambda self: self.model.weight.item())
    monkeypatch.setattr(WordPolicy, "__init__", make_policy)
    monkeypatch.setattr(WordPolicy, "skill", number, raising=False)
    monkeypatch.setattr(WordReward, "__init__", make_reward)
    monkeypatch.setattr(WordReward, "weight", number, raising=False)


def in_place(inputs: MethodInputs) -> None:
    with torch.no_grad():
        inputs.start.model.weight.add_(0.25)  # type: ignore[attr-defined]


def by_another_module(inputs: MethodInputs) -> None:
    inputs.start.model = weighing(1.0)  # type: ignore[attr-defined]


def of_the_reward_model(inputs: MethodInputs) -> None:
    inputs.reward_model.model.weight.data.mul_(-1)  # type: ignore[union-attr]


def changing(monkeypatch: pytest.MonkeyPatch, change: Change, method: type = Nudge, error: bool = False) -> None:
    train = method.train  # type: ignore[attr-defined]

    def changed(self: Any, inputs: MethodInputs, context: Any) -> Any:
        made = train(self, inputs, context)
        change(inputs)
        return 1 / 0 if error else made

    monkeypatch.setattr(method, "train", changed)


def content_of_direct(farm: Any) -> str:
    farm.train("direct")
    content: str = farm.workspace.history["train direct"].artifact.content
    return content


@pytest.fixture
def expected(_weights: None, tmp_path: Path) -> str:
    """The result of a farm whose models nobody changed."""
    with light_farm(tmp_path / "clean") as clean:
        return content_of_direct(clean)


@pytest.mark.parametrize("change", [in_place, by_another_module, of_the_reward_model])
@pytest.mark.parametrize("error", [False, True])
def test_what_a_method_changes_reaches_no_later_one(
    change: Change, error: bool, farm: Make, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = farm()
    with monkeypatch.context() as patch:
        changing(patch, change, error=error)
        if error:
            with pytest.raises(PluginError, match="division by zero"):
                one.train("nudge")
        else:
            one.train("nudge")
    assert content_of_direct(one) == expected


def test_what_a_reward_model_changes_in_the_policy_reaches_no_method(
    farm: Make, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit = WordReward.fit.__func__  # type: ignore[attr-defined]

    def changed(cls: type, preferences: Any, start: Any, config: Any, context: Any) -> Any:
        made = fit(cls, preferences, start, config, context)
        start.model.weight.data.add_(1)
        return made

    monkeypatch.setattr(WordReward, "fit", classmethod(changed))
    one = farm()
    one.fit_reward()
    assert content_of_direct(one) == expected


def test_what_a_user_does_to_a_policy_of_the_farm_reaches_no_method(farm: Make, expected: str) -> None:
    one = farm()
    one.sft().model.weight.data.add_(1)
    assert content_of_direct(one) == expected


def test_a_hook_on_a_policy_of_the_farm_reaches_no_method_and_no_output(
    farm: Make, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = farm()
    one.sft().model.register_forward_hook(lambda module, inputs, output: -output)
    one.sft().sample = lambda *arguments, **named: 1 / 0
    assert content_of_direct(one) == expected


def test_a_stage_has_its_own_models_loaded_alone(farm: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[weakref.ref[Any]] = []
    held: list[int] = []
    load, load_base, sample = WordPolicy.load.__func__, LightBackend.load_policy, WordPolicy.sample  # type: ignore[attr-defined]

    def seen(model: Any) -> Any:
        loaded.append(weakref.ref(model))
        return model

    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        held.append(sum(model() is not None for model in loaded))
        return sample(self, *args, **kwargs)

    monkeypatch.setattr(WordPolicy, "load", classmethod(lambda *args: seen(load(*args))))
    monkeypatch.setattr(LightBackend, "load_policy", lambda *args, **kwargs: seen(load_base(*args, **kwargs)))
    monkeypatch.setattr(WordPolicy, "sample", watched)
    farm().evaluate()
    assert len(loaded) > 2
    assert held == [1] * len(held), "the base model is no longer there when what SFT made of it samples"
