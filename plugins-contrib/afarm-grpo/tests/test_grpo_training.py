"""The loop: the kit's verdict on each variant, groups that teach nothing, rewards that are no numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from afarm_grpo import GRPO, VARIANTS, GRPOConfig

from afarm import Instruction, RewardModel, Score, TrainingError
from afarm.testing import MetricsRecorder, check_method, tiny_config, tiny_inputs, train_context


def count(text: str) -> float:
    """The number of times that an output says one of four words."""
    return float(sum(word in ("w1", "w2", "w3", "w4") for word in text.split()))


class Paid(RewardModel):
    """Pays what a function of the output says."""

    def __init__(self, pay: Callable[[str], float]):
        self.pay = pay

    def score(self, instructions: Sequence[Instruction], outputs: Sequence[str]) -> list[Score]:
        return [Score(self.pay(output)) for output in outputs]


def make(variant: str = "grpo", **changes: Any) -> GRPO:
    settings = {"num_generations": 4, "rollout_batch_size": 16, "mini_batch_size": 8, "learning_rate": 1e-2}
    config = tiny_config(GRPOConfig, **{**VARIANTS[variant][1], **settings, **changes})
    assert isinstance(config, GRPOConfig)
    return GRPO(config)


@pytest.mark.parametrize("variant", ["grpo", "dapo", "rloo"])  # the two ways to add gradients, and other draws
def test_it_keeps_the_promises_of_a_method(variant: str, tmp_path: Path) -> None:
    """Repeatable, killed and gone on with, in two processes as in one, and it learns what it is paid for."""
    method = make(variant, total_steps=4, num_iterations=2)
    inputs = replace(tiny_inputs(method.needs), reward_model=Paid(count))
    check_method(method, tmp_path, inputs=inputs, learns=count, processes=2)


@pytest.mark.parametrize("reward", ["rating", "ranking"])
def test_a_judge_can_reward(reward: str, tmp_path: Path) -> None:
    """One in eight of the scripted judge's answers cannot be read; what it is asked is what was planned."""
    method = make(reward=reward, total_steps=4, learning_rate=1e-3)
    assert method.needs == {"judge", "unlabeled"}
    check_method(method, tmp_path)
    log = MetricsRecorder()
    method.train(tiny_inputs(method.needs), train_context(tmp_path / "log", log_metrics=log))
    unjudged = [metrics["objective/unjudged"] for _, metrics in log.lines if "objective/unjudged" in metrics]
    assert sum(unjudged) > 0
    assert max(unjudged) < 16


def train(directory: Path, pay: Callable[[str], float], **changes: Any) -> list[dict[str, float]]:
    """Return the metrics that each step logs."""
    method, log = make(**changes), MetricsRecorder()
    inputs = replace(tiny_inputs(method.needs), reward_model=Paid(pay))
    method.train(inputs, train_context(directory, log_metrics=log))
    return [metrics for _, metrics in log.lines if "objective/scores" in metrics]


def test_groups_with_equal_rewards_are_counted_and_teach_nothing(tmp_path: Path) -> None:
    for metrics in train(tmp_path, lambda text: 0.5, kl_coef=0.0):
        assert metrics["frac_reward_zero_std"] == 1
        assert metrics["dynamic_sampling/equal_groups"] == 4
        assert metrics["dynamic_sampling/rollouts"] == 1
        assert metrics["policy/grad_norm"] == 0
        assert metrics["objective/kl"] == pytest.approx(0, abs=1e-4)


def test_dynamic_sampling_replaces_them_within_its_bound(tmp_path: Path) -> None:
    """The reward tells few responses from others of their group: one rollout has too few groups."""

    def is_rare(text: str) -> float:
        return float("w1" in text.split())

    without = train(tmp_path / "without", is_rare)[0]
    assert 0 < without["dynamic_sampling/equal_groups"] < 4
    filled = train(tmp_path / "filled", is_rare, dynamic_sampling=50)[0]
    assert filled["dynamic_sampling/equal_groups"] == 0
    assert 1 < filled["dynamic_sampling/rollouts"] < 51
    assert 0 < filled["frac_reward_zero_std"] < 1
    bounded = train(tmp_path / "bounded", lambda text: 0.0, dynamic_sampling=2)[0]
    assert (bounded["dynamic_sampling/rollouts"], bounded["dynamic_sampling/equal_groups"]) == (3, 4)


def test_cut_off_responses_can_teach_nothing(tmp_path: Path) -> None:
    """The tiny policy hardly ever ends by itself: what is cut off is all there is, so only the KL is left."""
    masked = train(tmp_path, count, mask_truncated_completions=True, response_length=1, kl_coef=0.0)
    assert [metrics["policy/grad_norm"] for metrics in masked if metrics["val/num_eos_tokens"] == 0] != []
    assert all(metrics["policy/grad_norm"] == 0 for metrics in masked if metrics["val/num_eos_tokens"] == 0)


def test_a_reward_that_is_no_number_ends_at_the_step(tmp_path: Path) -> None:
    method = make()
    inputs = tiny_inputs(method.needs)
    for weight in inputs.reward_model.model.score.parameters():
        weight.data.fill_(float("nan"))
    with pytest.raises(TrainingError, match=r"GRPO diverged at step 1: a reward is not a finite number"):
        method.train(inputs, train_context(tmp_path))
