"""The on-policy loop: its schedule, its draws, resuming and stopping."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from afarm_grpo import GRPO, GRPOConfig, grpo
from torch import Tensor

from afarm.backend import Diverged, Training, distributed, on_policy, optimizer_step
from afarm.backend.distributed import require_alike
from afarm.backend.on_policy import linear_schedule
from afarm.backend.rollouts import equal_rewards, sample_scorer
from afarm.core.config import OnPolicyConfig
from afarm.core.errors import ConfigError, TrainingError
from afarm.core.interfaces import RewardModel, TrainContext
from afarm.core.plugins import discover
from afarm.core.records import Instruction, Sample, Score
from afarm.core.registry import Component
from afarm.experiment.recipe import resolve
from afarm.testing import ConformanceError, MetricsRecorder, tiny_config, tiny_inputs, tiny_policy, train_context
from afarm.testing.processes import train_together
from afarm.testing.training import copy_weights


def test_learning_rate_warms_up_and_falls_to_zero() -> None:
    rates = [linear_schedule(s, 1.0, warmup_steps=3, total_steps=8) for s in range(9)]
    assert rates == pytest.approx([0.25, 0.5, 0.75, 1.0, 0.8, 0.6, 0.4, 0.2, 0.0])
    assert linear_schedule(0, 1.0, 0, 4) == 1.0


# ------------------------------------------------------------------------------------------------- without rewards


class RewardsItself(GRPO):
    needs = frozenset({"unlabeled"})


def test_a_method_without_a_reward_model_has_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def count_tokens(training: Training, prompts: Any, samples: Any) -> list[float]:
        assert training.scorer is None
        return [float(len(set(sample.token_ids))) for sample in samples]

    monkeypatch.setattr(grpo, "score", count_tokens)
    log, method = MetricsRecorder(), RewardsItself(tiny_config(GRPOConfig, num_generations=4, num_iterations=1))
    method.train(tiny_inputs(method.needs), train_context(tmp_path, log_metrics=log))
    assert [step for step, line in log.lines if "objective/scores" in line] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("tasks", "rewards", "said"),
    [
        ("aabb", [1, 1, 1, 1], "each of the first 4 responses has the reward 1"),
        ("aabb", [1, 1, 2, 2], "each of the first 2 prompts has one reward for all responses to it"),
        ("aabb", [1, 1, 2, 3], ""),
        ("aab", [1, 1, 2], ""),
        ("abcd", [1, 2, 3, 4], ""),
        ("a", [1], ""),
    ],
)
def test_rewards_that_tell_no_response_from_another_are_said(tasks: str, rewards: list[float], said: str) -> None:
    assert equal_rewards([Instruction(task) for task in tasks], rewards) == said


def test_a_reward_beyond_float32_is_named_as_one() -> None:
    class Huge(RewardModel):
        def score(self, instructions: Sequence[Instruction], outputs: Sequence[str]) -> list[Score]:
            return [Score(1e300)] * len(outputs)

    sample = Sample("a", [], [], None, "stop")
    with pytest.raises(TrainingError, match=r"a reward of 1e\+300 does not fit float32"):
        sample_scorer(Huge(), tiny_policy())([Instruction("a")], [sample])


def test_a_step_clears_its_gradients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that did not would learn a sum of all minibatches so far, and nothing would say so."""
    seen: list[Training] = []

    def step_and_keep(training: Training, step: int) -> float:
        seen.append(training)
        return optimizer_step(training, step)

    monkeypatch.setattr(grpo, "optimizer_step", step_and_keep)
    method = GRPO(tiny_config(GRPOConfig, num_generations=4, num_iterations=1))
    method.train(tiny_inputs(method.needs), train_context(tmp_path))
    assert len(seen) == 8
    assert all(weight.grad is None for weight in seen[-1].trained.values())


def test_scores_without_a_reward_model_name_what_is_missing(tmp_path: Path) -> None:
    method = RewardsItself(tiny_config(GRPOConfig, num_generations=4, num_iterations=1))
    with pytest.raises(TrainingError, match="GRPO scores samples: name 'reward_model' in its needs"):
        method.train(replace(tiny_inputs(method.needs), reward_model=None), train_context(tmp_path))


# ------------------------------------------------------------------------------------------- the section of a config


class OnlineDPOConfig(OnPolicyConfig):
    method_name = "Online DPO"


@pytest.mark.parametrize("config", [GRPOConfig, OnlineDPOConfig])
@pytest.mark.parametrize("name", ["reinforce", "online_dpo"])
def test_advice_names_the_section_that_the_method_is_registered_under(name: str, config: type[OnPolicyConfig]) -> None:
    plugins = discover()
    plugins.registry.register(Component("methods", name, "afarm-x", "x", "afarm_grpo:GRPO", config=config))
    with pytest.raises(ConfigError, match=rf"{name}: warmup_steps .* --set {name}\.warmup_steps=0$"):
        resolve("toy", [f"method={name}", f"{name}.total_steps=2"], plugins)
    settings: Any = resolve("toy", [f"method={name}"], plugins).of(plugins.get("methods", name))
    error = str(Diverged(settings, 3, "the KL is large"))
    assert error.startswith(config.method_name)
    assert f"--set {name}.learning_rate={settings.learning_rate / 2:g}, a larger {name}.kl_coef" in error
    assert "section" not in settings.result_fields()


# ------------------------------------------------------------------------------------------------ several processes


def trained_by_two(directory: Path) -> tuple[Any, Any]:
    """What two processes learn, and what one does."""
    method = GRPO(tiny_config(GRPOConfig, num_generations=4, num_iterations=1, total_steps=2, save_steps=1))
    inputs = tiny_inputs(method.needs)

    def train(context: TrainContext) -> dict[str, Tensor]:
        return copy_weights(method.train(inputs, context))

    return train_together(train, 2, directory / "two"), train(train_context(directory / "one"))


def test_two_processes_learn_what_one_does(tmp_path: Path) -> None:
    two, one = trained_by_two(tmp_path)
    torch.testing.assert_close(two, one, rtol=1e-4, atol=1e-4)


def test_processes_that_drift_apart_are_found_when_a_checkpoint_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_policy, "all_reduce_gradients", lambda parameters: None)
    told = r"21 of 21 weights, such as policy\.model\.embed_tokens\.weight, differ between process 0 and process 1"
    with pytest.raises(ConformanceError, match=told):
        trained_by_two(tmp_path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_weights_are_compared_to_the_last_bit(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {"same": torch.randn(5, 3, dtype=dtype).t(), "scalar": torch.ones((), dtype=dtype)}
    other = {**whole, "scalar": torch.nextafter(whole["scalar"], torch.tensor(9, dtype=dtype))}
    for theirs, is_alike in ((whole, True), (other, False)):
        monkeypatch.setattr(distributed, "world_size", lambda: 2)
        monkeypatch.setattr(distributed, "all_gather_object", lambda own: [own, own])
        require_alike(whole)
        sums: list[Any] = []
        monkeypatch.setattr(distributed, "all_gather_object", lambda own, sums=sums: (sums.append(own), [own])[1])
        require_alike(theirs)
        monkeypatch.setattr(distributed, "all_gather_object", lambda own, sums=sums: [own, sums[0]])
        with (
            nullcontext() if is_alike else pytest.raises(TrainingError, match="1 of 2 weights, such as scalar, differ")
        ):
            require_alike(whole)
