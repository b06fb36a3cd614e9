"""PPO's networks: what the layouts must agree on, what they share, and what they leave alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from test_ppo import (
    INSTRUCTIONS,
    SMALL,
    Run,
    assert_same_weights,
    first_step,
    gradients,
    inputs_for,
    started,
    tiny_policy,
    tiny_reward_model,
    train,
)

from afarm.backend import (
    Backend,
    CheckpointPolicy,
    Training,
    read_logprobs,
    response_logprobs,
    rollout,
    sampled_logprobs,
)
from afarm.backend.batching import join_and_pad
from afarm.core.config import BackendConfig
from afarm.core.interfaces import MethodInputs, RewardModel
from afarm.core.records import Instruction, Sample, Score
from afarm_plugins.ppo import PPOConfig, shared
from afarm_plugins.ppo import ppo as module

LORA: dict[str, Any] = {"lora": {"r": 2}, "value_init": "sft"}
SHARED: dict[str, Any] = {**LORA, "layout": "shared"}


def randomise(training: Training) -> Training:
    """Give a training weights that depend on a parameter's role only, and adapters that do something."""
    for name, parameter in sorted(training.trained.items(), key=lambda item: role(item[0])):
        generator = torch.Generator().manual_seed(sum(map(ord, role(name))))
        parameter.data = 0.3 * torch.randn(parameter.shape, generator=generator)
    return training


def role(name: str) -> str:
    """One name for a parameter in every layout: the network, the module, the matrix."""
    if "lora" in name:
        network = "value" if name.startswith("value") or name.endswith(".value.weight") else "policy"
        return f"{network} {name[name.index('layers') :].replace('.value.', '.').replace('.default.', '.')}"
    return f"value head {name.rsplit('.', 1)[-1]}"


def of_the_first_rollout(directory: Path, **settings: Any) -> dict[str, torch.Tensor]:
    """The gradients by role, of the rollout that another layout of the same weights collects too."""
    step = first_step(directory, before=randomise, **settings)
    return {role(name): gradient for name, gradient in step.gradients.items()}


def test_a_shared_backbone_with_two_adapters_has_the_gradient_of_separate_networks(tmp_path: Path) -> None:
    separate = of_the_first_rollout(tmp_path / "a", **LORA)
    one_backbone = of_the_first_rollout(tmp_path / "b", **SHARED, shared_value="adapter")
    assert len(separate) == 2 * (2 * 7 * 2) + 2
    assert all(gradient.abs().max() > 0 for gradient in separate.values())
    torch.testing.assert_close(separate, one_backbone, rtol=1e-4, atol=1e-6)


def test_a_head_on_the_policys_states_leaves_the_policys_gradient_alone_without_a_value_loss(tmp_path: Path) -> None:
    separate = first_step(tmp_path / "a", before=randomise, **LORA, vf_coef=0)
    training, head = started(tmp_path / "b", **SHARED, vf_coef=0)
    randomise(training)
    collected = separate.rollout  # the same advantages
    losses = [
        partial(loss, training.config, collected.mask.sum(), defaultdict(float))
        for loss in (module.policy_loss, module.value_loss)
    ]
    tensors = (collected.logprobs, collected.advantages, collected.values, collected.returns, collected.mask)
    shared.add_gradients(training, head, collected.samples, range(len(collected.samples)), *losses, *tensors)
    found = {role(name): gradient for name, gradient in gradients(training).items()}
    policy = {role(n): gradient for n, gradient in separate.gradients.items() if role(n).startswith("policy")}
    torch.testing.assert_close(policy, {name: found[name] for name in policy}, rtol=1e-4, atol=1e-6)


def test_one_pass_over_a_shared_trunk_adds_both_losses_gradients(tmp_path: Path) -> None:
    step = first_step(tmp_path, before=randomise, **SHARED)
    training, config, collected = step.training, step.training.config, step.rollout
    training.optimizer.zero_grad()
    batch = join_and_pad(step.prompts, step.responses, training.policy.pad_id)
    new = response_logprobs(training.policy.model, batch.input_ids, batch.attention_mask, batch.response_mask)
    ratio = (new - collected.logprobs).exp()[collected.mask]
    values, old, returns = (
        module.compute_values(training, step.value, batch),
        collected.values[collected.mask],
        collected.returns[collected.mask],
    )
    near = old + (values - old).clamp(-config.cliprange_value, config.cliprange_value)
    advantages = collected.advantages[collected.mask]
    loss = -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
    loss = loss + config.vf_coef * 0.5 * torch.maximum((values - returns) ** 2, (near - returns) ** 2).mean()
    loss.backward()
    torch.testing.assert_close(step.gradients, gradients(training), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("shared_value", ["backbone", "adapter"])
def test_the_backbone_is_the_start_policys_own_and_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared_value: str
) -> None:
    start = tiny_policy()
    inputs = inputs_for(start)
    training, head = started(tmp_path, inputs, **SHARED, shared_value=shared_value)
    storage = {p.data_ptr() for p in start.model.parameters()}
    frozen = {p.data_ptr() for p in training.policy.model.parameters() if not p.requires_grad}
    assert frozen == storage
    before = set(training.trained)
    monkeypatch.setattr(module, "start_ppo", lambda *args: (training, head))
    train(tmp_path, inputs=inputs, **SHARED, shared_value=shared_value)
    assert {n for n, p in training.models.named_parameters() if p.requires_grad} == before
    assert training.policy.model.active_adapter == "default"
    assert_same_weights(start.model, tiny_policy().model)
    assert all(p.requires_grad for p in start.model.parameters())
    assert all(p.abs().max() > 0 for n, p in training.trained.items() if "lora_B" in n), "they began at 0"


@pytest.mark.parametrize("layout", [{}, SHARED, {**SHARED, "shared_value": "adapter"}])
def test_the_reference_is_the_start_policy_without_adapters(tmp_path: Path, layout: dict[str, Any]) -> None:
    training = randomise(started(tmp_path, **layout)[0])
    samples = [Sample("", (3, 7, 4), (5, 6, 8, 1)), Sample("", (3, 8), (9,))]
    batch = join_and_pad([[3, 7, 4], [3, 8]], [[5, 6, 8, 1], [9]], 0)
    start = response_logprobs(tiny_policy().model, batch.input_ids, batch.attention_mask, batch.response_mask)
    torch.testing.assert_close(read_logprobs(training, training.start, samples), start)
    assert (read_logprobs(training, training.policy, samples) - start).abs().max() > 0.01


def test_switching_adapters_freezes_none_even_where_the_body_fails(tmp_path: Path) -> None:
    training, _ = started(tmp_path, **SHARED, shared_value="adapter")
    model = training.policy.model
    with pytest.raises(RuntimeError, match="inside value"), shared.value_adapter(model, training.config):
        raise RuntimeError(f"inside {model.active_adapter}")
    assert model.active_adapter == "default"
    assert all(p.requires_grad for p in training.trained.values())


@pytest.mark.parametrize("value_init", ["reward_model", "sft"])
def test_separate_networks_with_adapters_hold_no_second_copy_of_frozen_weights(tmp_path: Path, value_init: str) -> None:
    start = tiny_policy()
    inputs = inputs_for(start)
    training, value = started(tmp_path, inputs, lora={"r": 2}, value_init=value_init)
    theirs = {p.data_ptr() for m in (start.model, inputs.reward_model.model) for p in m.parameters()}  # type: ignore
    frozen = {p.data_ptr() for p in training.models.parameters() if not p.requires_grad}
    head = {p.data_ptr() for p in value.score.original_module.parameters()}
    assert frozen - head <= theirs


@pytest.mark.parametrize("settings", [SHARED, LORA, {"lora": {"r": 2}}])
def test_value_heads_of_bfloat16_models_are_in_float32(tmp_path: Path, settings: Any) -> None:
    start = tiny_policy()
    start.model = start.model.to(torch.bfloat16)
    start.backend = Backend(BackendConfig(device="cpu", dtype="bfloat16"))
    inputs = MethodInputs(start, reward_model=tiny_reward_model(start), unlabeled=INSTRUCTIONS)
    training, value = started(tmp_path, inputs, **settings)
    trained = {name: p.dtype for name, p in training.trained.items()}
    assert set(trained.values()) == {torch.float32}  # PEFT keeps adapters so too
    values = module.compute_values(training, value, join_and_pad([[3, 7, 4]], [[5, 6, 8, 1]], 0))
    assert values.dtype == torch.float32
    values.sum().backward()


@pytest.mark.parametrize("shared_value", ["backbone", "adapter"])
def test_the_policy_of_a_shared_run_reloads_as_a_plain_model(tmp_path: Path, shared_value: str) -> None:
    settings = {**SHARED, "shared_value": shared_value, "total_steps": 4, "learning_rate": 1e-2, "mini_batch_size": 12}
    straight = Run(tmp_path / "straight")
    one = train(tmp_path, straight, **settings)
    one.save(tmp_path / "saved")
    loaded = CheckpointPolicy.load(tmp_path / "saved", straight.context)
    assert loaded.model.state_dict().keys() == tiny_policy().model.state_dict().keys()
    batch = join_and_pad([[3, 7, 4]], [[5, 6, 8, 1]], 0)

    @torch.no_grad()
    def logprobs(policy: CheckpointPolicy) -> torch.Tensor:
        return response_logprobs(policy.model, batch.input_ids, batch.attention_mask, batch.response_mask)

    torch.testing.assert_close(logprobs(loaded), logprobs(one))
    assert (logprobs(one) - logprobs(tiny_policy())).abs().max() > 1e-3


@pytest.mark.parametrize("shared_value", ["backbone", "adapter"])
def test_gradient_checkpointing_changes_nothing_in_a_shared_backbone(tmp_path: Path, shared_value: str) -> None:
    settings = {**SHARED, "shared_value": shared_value, "mini_batch_size": 12}
    plain = train(tmp_path / "plain", **settings)
    recomputed = train(tmp_path / "again", **settings, gradient_checkpointing=True)
    assert_same_weights(plain.model, recomputed.model, rtol=0, atol=1e-6)


def test_log_probabilities_of_the_sampler_are_those_that_would_be_read(tmp_path: Path) -> None:
    training, _ = started(tmp_path)
    _, samples = rollout(training, 0)
    assert samples[0].logprobs is not None
    read = read_logprobs(training, training.policy, samples)
    torch.testing.assert_close(sampled_logprobs(training, samples), read, rtol=0, atol=1e-5)


@pytest.mark.parametrize("missing", [{"lora": None}, {"value_init": "reward_model"}])
def test_a_shared_backbone_says_what_it_needs(missing: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=r"ppo\.lora=\{\} and --set ppo\.value_init=sft"):
        PPOConfig(**{**SMALL, **SHARED, **missing})


# ------------------------------------------------------------------------------------- the value head's learning rate


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({}, {"value.score.weight", "value.score.bias"}),
        (LORA, None),
        (SHARED, {"value.weight", "value.bias"}),
        ({**SHARED, "shared_value": "adapter"}, {"value.weight", "value.bias"}),
    ],
)
def test_the_head_alone_learns_at_its_own_rate(
    tmp_path: Path, settings: dict[str, Any], names: set[str] | None
) -> None:
    training, _ = started(tmp_path, value_head_learning_rate=0.5, **settings)
    shares = {id(p): group["factor"] for group in training.optimizer.param_groups for p in group["params"]}
    own = {name for name, p in training.trained.items() if shares[id(p)] == 0.5 / training.config.learning_rate}
    assert len(own) == 2
    assert all(name.startswith("value.") for name in own)
    assert names is None or own == names
    assert {shares[id(p)] for name, p in training.trained.items() if name not in own} == {1.0}


class OfPrompt(RewardModel):
    """A reward that the prompt decides, so that the states before each token can tell it."""

    def score(self, instructions: Sequence[Instruction], outputs: Sequence[str]) -> list[Score]:
        return [Score(4.0 * (len(set(i.instruction.split())) > 2)) for i in instructions]


def test_a_head_with_a_rate_of_its_own_comes_to_explain_what_a_slow_one_does_not(tmp_path: Path) -> None:
    def explained(rate: float | None) -> float:
        run, start = Run(tmp_path / str(rate)), tiny_policy()
        inputs = MethodInputs(start, reward_model=OfPrompt(), unlabeled=INSTRUCTIONS)
        settings = {"total_steps": 4, "rollout_batch_size": 24, "mini_batch_size": 8, "num_ppo_epochs": 4}
        settings |= {"learning_rate": 1e-4, "value_init": "sft", "cliprange_value": 5.0, "whiten_rewards": "none"}
        train(tmp_path, run, inputs, **settings, kl_coef=0.0, value_head_learning_rate=rate)
        return run.metrics[-1]["val/explained_variance"]

    assert abs(explained(None)) < 0.05
    assert explained(2e-2) > 0.2
