"""The starting policy and the reward model are lent to methods, and are for the next one as they were."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from light_farm import LightBackend, Make, light_farm
from light_plugin import Nudge, WordPolicy, WordReward
from torch import nn

from afarm.backend.fingerprints import digest_on_device, take_fingerprint
from afarm.core.errors import PluginError, TrainingError
from afarm.core.interfaces import MethodInputs, Policy
from afarm.testing.models import tiny_policy

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
    monkeypatch.setattr(LightBackend, "fingerprint", lambda self, made: take_fingerprint(made), raising=False)


def in_place(inputs: MethodInputs) -> None:
    with torch.no_grad():
        inputs.start.model.weight.add_(0.25)  # type: ignore[attr-defined]


def behind_autograd(inputs: MethodInputs) -> None:
    inputs.start.model.weight.data.add_(0.25)  # type: ignore[attr-defined]


def by_another_module(inputs: MethodInputs) -> None:
    inputs.start.model = weighing(1.0)  # type: ignore[attr-defined]


def by_an_adapter(inputs: MethodInputs) -> None:
    inputs.start.model.adapter = nn.Linear(1, 1)  # type: ignore[attr-defined]


def in_a_buffer(inputs: MethodInputs) -> None:
    inputs.start.model.register_buffer("mean", torch.ones(1))  # type: ignore[attr-defined]


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


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (in_place, "the policy that it starts from, .*model.weight"),
        (behind_autograd, "the policy that it starts from, .*model.weight"),
        (by_another_module, "the policy that it starts from, .*model.weight"),
        (by_an_adapter, r"the policy that it starts from, .*model.adapter.bias and 1 more"),
        (in_a_buffer, "the policy that it starts from, .*model.mean"),
        (of_the_reward_model, "the reward model, .*model.weight"),
    ],
)
def test_a_method_that_changes_what_it_is_lent_is_refused_and_poisons_no_later_one(
    change: Change, what: str, farm: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with light_farm(tmp_path / "clean") as clean:
        expected = content_of_direct(clean)
        clean.train("nudge")
    one = farm()
    with monkeypatch.context() as patch:
        changing(patch, change)
        with pytest.raises(TrainingError, match=rf"method '\S*nudge' of plugin '\S*light' has changed {what}"):
            one.train("nudge")
    assert one.workspace.store.of_stage("train", "train nudge") == []
    assert content_of_direct(one) == expected
    one.train("nudge")
    name = "train nudge"
    assert one.workspace.history[name].artifact.content == clean.workspace.history[name].artifact.content


def test_a_method_that_fails_half_way_leaves_nothing_changed_behind(
    farm: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with light_farm(tmp_path / "clean") as clean:
        expected = content_of_direct(clean)
    one = farm()
    with monkeypatch.context() as patch:
        changing(patch, in_place, error=True)
        with pytest.raises(PluginError, match="division by zero"):
            one.train("nudge")
    assert content_of_direct(one) == expected


def test_what_a_user_does_to_a_policy_of_the_farm_reaches_no_method(farm: Make, tmp_path: Path) -> None:
    with light_farm(tmp_path / "clean") as clean:
        expected = content_of_direct(clean)
    one = farm()
    one.sft().model.weight.data.add_(1)
    assert content_of_direct(one) == expected


def test_a_reward_model_that_changes_the_policy_it_is_fitted_from_is_refused(
    farm: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit = WordReward.fit.__func__  # type: ignore[attr-defined]

    def changed(cls: type, preferences: Any, start: Any, config: Any, context: Any) -> Any:
        start.model.weight.data.add_(1)
        return fit(cls, preferences, start, config, context)

    monkeypatch.setattr(WordReward, "fit", classmethod(changed))
    with pytest.raises(TrainingError, match=r"reward model '\S*words' of plugin '\S*light' has changed the policy"):
        farm().fit_reward()


def test_an_honest_method_does_not_have_its_start_loaded_again(farm: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[Path] = []
    load: Any = WordPolicy.load

    def watched(cls: type, directory: Path, context: Any) -> Any:
        loaded.append(directory)
        return load(directory, context)

    monkeypatch.setattr(WordPolicy, "load", classmethod(watched))
    one = farm()
    one.train("direct")
    start = one.workspace.history["sft"].artifact.path / "model"
    assert loaded.count(start) == 1, "to be sampled, and to be trained from"


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


def test_a_fingerprint_sees_any_change_and_passes_over_what_is_put_back() -> None:
    policy = tiny_policy()
    before = take_fingerprint(policy)
    assert before.is_complete
    weight = next(policy.model.parameters())
    kept = weight.detach().clone()
    weight.data.copy_(weight.data.flip(0))
    assert before.changed(take_fingerprint(policy)) == ["model.model.embed_tokens.weight"]
    weight.data.copy_(kept)
    assert take_fingerprint(policy) == before
    policy.tokenizer.padding_side = "left" if policy.tokenizer.padding_side == "right" else "right"
    assert before.changed(take_fingerprint(policy)) == []
    assert take_fingerprint(policy) != before


def replace_forward(policy: Any) -> None:
    policy.model.forward = lambda *inputs, **named: None


def replace_forward_of_a_class(policy: Any) -> None:
    type(policy.model.lm_head).forward = lambda self, hidden: hidden


def hook(policy: Any) -> None:
    policy.model.lm_head.register_forward_hook(lambda module, inputs, output: -output)


def hook_before(policy: Any) -> None:
    policy.model.model.register_forward_pre_hook(lambda module, inputs: None)


def drop_out(policy: Any) -> None:
    next(m for m in policy.model.modules() if hasattr(m, "attention_dropout")).attention_dropout = 0.5


def train_mode(policy: Any) -> None:
    policy.model.train(not policy.model.training)


def chat_template(policy: Any) -> None:
    policy.tokenizer.chat_template = "{{ messages[0].content }}"


def sample_otherwise(policy: Any) -> None:
    policy.sample = lambda *arguments, **named: iter(())


def control(policy: Any) -> None:
    policy.control_tokens = ("<good>",)


CHANGES = [
    *(replace_forward, replace_forward_of_a_class, hook, hook_before, drop_out, train_mode, chat_template),
    *(sample_otherwise, control),
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_model_that_computes_otherwise_is_not_taken_for_the_original(
    change: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = tiny_policy()
    before = take_fingerprint(policy)
    assert take_fingerprint(policy) == before
    with monkeypatch.context() as patch:
        layer = type(policy.model.lm_head)  # a class of its own on some CPUs
        patch.setattr(layer, "forward", layer.forward)  # put back what is changed for all
        change(policy)
        assert take_fingerprint(policy) != before


def test_a_hook_on_a_lent_policy_reaches_no_method_and_no_output(
    farm: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with light_farm(tmp_path / "clean") as clean:
        expected = content_of_direct(clean)
    one = farm()
    one.sft().model.register_forward_hook(lambda module, inputs, output: -output)
    one.sft().sample = lambda *arguments, **named: 1 / 0
    assert content_of_direct(one) == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int8, torch.bool])
@pytest.mark.parametrize("shape", [(), (7,), (4, 6), (2, 3, 4), (0, 3)])
def test_on_a_device_sums_tell_tensors_apart(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.arange(1, 1 + math.prod(shape)).reshape(shape).to(dtype)
    before = digest_on_device(tensor)
    assert digest_on_device(tensor.clone()) == before
    if tensor.numel() > 1 and dtype != torch.bool:
        assert digest_on_device(tensor.flip(0)) != before
        assert digest_on_device(tensor.flip(-1)) != before
    if tensor.numel():
        tensor.view(-1)[0] = 0
        assert digest_on_device(tensor) != before


class Odd(Policy):
    """What a stranger's policy may hold."""

    def __init__(self) -> None:
        self.module = nn.Linear(1, 1)
        self.module.config = {"a": 1}  # type: ignore[assignment]
        self.sparse = torch.eye(3).to_sparse()
        self.words = [np.array(["a"]), np.arange(3, dtype=np.uint16), {"inner": self}]

    def sample(self, *arguments: Any, **more: Any) -> Any: ...
    def save(self, directory: Path) -> None: ...
    @classmethod
    def load(cls, directory: Path, context: Any) -> Any: ...


def test_what_cannot_be_read_is_no_error_and_not_taken_for_unchanged() -> None:
    odd = Odd()
    before = take_fingerprint(odd)
    assert not before.is_complete
    odd.words[1][0] = 7
    odd.sparse = torch.zeros(3, 3).to_sparse()
    assert before.changed(take_fingerprint(odd)) == ["words.1"]
