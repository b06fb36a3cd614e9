"""GRPO in under 150 lines with its loop in sight: names of the doors alone are enough for an on-policy author."""

from __future__ import annotations

import ast
import inspect
import sys
from pathlib import Path
from typing import Any

import grpo
import pytest
from bandit import ANSWERS, INSTRUCTIONS, BanditReward, answer_probabilities, bandit_policy, kl_to
from grpo import GRPO, GRPOConfig
from tiny_models import Recorder, make_context

import afarm
import afarm.backend
from afarm.backend import CheckpointPolicy
from afarm.core.errors import TrainingError
from afarm.core.interfaces import MethodInputs
from afarm.testing import check_method, tiny_config

BANDIT: dict[str, Any] = {
    "total_steps": 20,
    "rollout_batch_size": 96,
    "num_generations": 32,  # one batch is sampled
    "mini_batch_size": 96,
    "per_device_train_batch_size": 96,
    "per_device_rollout_batch_size": 96,
    "learning_rate": 3e-3,
    "response_length": 2,
}


def config(**changes: Any) -> GRPOConfig:
    tiny = tiny_config(GRPOConfig, **{"num_generations": 4, **changes})
    assert isinstance(tiny, GRPOConfig)
    return tiny


def solve(directory: Path, **changes: Any) -> tuple[CheckpointPolicy, Recorder]:
    context, log = make_context(directory)
    inputs = MethodInputs(bandit_policy(), reward_model=BanditReward(), unlabeled=INSTRUCTIONS)
    return GRPO(config(**BANDIT, **changes)).train(inputs, context), log


def test_it_is_short_and_imports_names_of_the_doors_only() -> None:
    source = inspect.getsource(grpo)
    assert len(source.splitlines()) < 150
    doors = {"afarm": afarm.__all__, "afarm.backend": afarm.backend.__all__}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            assert [alias.name for alias in node.names] == ["torch"]
        if isinstance(node, ast.ImportFrom) and str(node.module) not in sys.stdlib_module_names:
            assert {alias.name for alias in node.names} <= set(doors[str(node.module)])


def test_it_keeps_the_promises_of_a_method(tmp_path: Path) -> None:
    """Repeatable, killed and resumed to the same end, saved and loaded, and with nothing else changed."""
    check_method(GRPO(config()), tmp_path)


def test_without_a_penalty_the_best_answer_gets_nearly_all_probability(tmp_path: Path) -> None:
    trained, log = solve(tmp_path, kl_coef=0.0)
    scores = log.values("objective/scores")
    assert scores[-1] > 0.8 > 0.2 > scores[0]
    assert float(answer_probabilities(trained)[:, ANSWERS.index("w12")].min()) > 0.8
    assert log.values("last/kl")[0] > 1


def test_a_large_penalty_holds_the_policy_to_its_start(tmp_path: Path) -> None:
    trained, _ = solve(tmp_path, kl_coef=20.0)
    assert kl_to(answer_probabilities(bandit_policy()), answer_probabilities(trained)) < 0.05


def test_a_kl_beyond_the_limit_keeps_the_checkpoint_before_or_names_the_step(tmp_path: Path) -> None:
    _, log = solve(tmp_path / "kept", kl_coef=0.0, max_kl=0.5, save_steps=1)
    step, last = log.lines[-1]
    assert last == {"stopped/max_kl": step}
    assert max(log.values("objective/kl")) <= 0.5
    with pytest.raises(TrainingError, match=r"GRPO diverged at step \d+: the KL .* grpo\.max_kl \(0\.5\)"):
        solve(tmp_path / "lost", kl_coef=0.0, max_kl=0.5, save_steps=100)
