"""Advantages, penalties and losses of each variant beside numbers worked by hand, in double precision."""

from __future__ import annotations

from collections import defaultdict
from math import exp, sqrt
from typing import Any

import pytest
import torch
from afarm_grpo import VARIANTS, GRPOConfig, grpo
from pydantic import ValidationError
from torch import Tensor

from afarm.testing import tiny_config

# Two responses to one prompt, of two tokens and of one. The log ratios are 0.3 and −0.1; −0.4.
OLD = [[-1.0, -2.0], [-0.5, 0.0]]
NEW = [[-0.7, -2.1], [-0.9, 0.0]]
START = [[-1.2, -1.9], [-0.4, 0.0]]
MASK = torch.tensor([[True, True], [True, False]])
REWARDS = [1.0, 0.0]
A = 0.5 / (sqrt(0.5) + 1e-4)
"""The first response's advantage, −A the other's: half the gap over the standard deviation."""


def make_config(variant: str = "grpo", **changes: Any) -> GRPOConfig:
    settings = {**VARIANTS[variant][1], "num_generations": 2, "response_length": 4, **changes}
    config = tiny_config(GRPOConfig, **settings)
    assert isinstance(config, GRPOConfig)
    return config


def double(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def loss_of(config: GRPOConfig) -> float:
    old, new, start, rewards = double(OLD), double(NEW), double(START), double(REWARDS)
    if config.kl_in == "reward":
        rewards = rewards - config.kl_coef * ((old - start) * MASK).sum(1)
    advantages = grpo.group_advantages(config, rewards).unsqueeze(1).expand(2, 2)
    weights, owners = grpo.token_weights(config, MASK.double(), [0, 1]), torch.tensor([[0, 0], [1, 1]])
    flat = (tensor[MASK] for tensor in (new, old, start, advantages, weights, owners))
    return float(grpo.token_losses(config, defaultdict[str, Any](float), *flat))


UP, DOWN, LOW = exp(0.3), exp(-0.1), exp(-0.4)  # the three ratios; of the third, 0.67, the advantage is below 0
# k3 = eˣ − 1 − x of x = log start − log new: −0.5, 0.2 and 0.5
K3 = exp(-0.5) - 1 + 0.5, exp(0.2) - 1 - 0.2, exp(0.5) - 1 - 0.5


@pytest.mark.parametrize(
    ("variant", "changes", "expected"),
    [
        # The first token is clipped at 1.2, the second is not, the third is at 0.8
        ("grpo", {"kl_coef": 0.0}, ((-1.2 * A - DOWN * A) / 2 + 0.8 * A) / 2),
        ("grpo", {"kl_coef": 0.0, "epsilon": 0.4}, ((-UP * A - DOWN * A) / 2 + LOW * A) / 2),
        ("grpo", {"kl_coef": 0.0, "scale_rewards": "none"}, ((-1.2 / 2 - DOWN / 2) / 2 + 0.8 / 2) / 2),
        (
            "grpo",
            {"kl_coef": 0.1},
            ((-1.2 * A - DOWN * A) / 2 + 0.8 * A) / 2 + 0.1 * ((K3[0] * UP + K3[1] * DOWN) / 2 + K3[2] * LOW) / 2,
        ),
        (
            "grpo",
            {"kl_coef": 0.1, "use_bias_correction_kl": False},
            ((-1.2 * A - DOWN * A) / 2 + 0.8 * A) / 2 + 0.1 * ((K3[0] + K3[1]) / 2 + K3[2]) / 2,
        ),
        ("dr_grpo", {}, (-1.2 / 2 - DOWN / 2 + 0.8 / 2) / (2 * 4)),  # two responses of at most four tokens
        ("dapo", {}, (-1.28 * A - DOWN * A + 0.8 * A) / 3),
        ("gspo", {}, (-1.0004 * A + 0.9997 * A) / 2),  # e^0.1 and e^-0.4
        ("gspo", {"epsilon": 0.5, "epsilon_high": 0.5}, (-exp(0.1) * A + LOW * A) / 2),
        ("cispo", {}, (-UP * A * -0.7 - DOWN * A * -2.1 + LOW * A * -0.9) / 3),
        ("cispo", {"epsilon_high": 0.1}, (-1.1 * A * -0.7 - DOWN * A * -2.1 + LOW * A * -0.9) / 3),
        # KLs of 0.1 and −0.1 at 0.05 take 0.01 off the gap; e^0.2 is clipped at 1.2, and e^-0.4 at 0.8
        ("rloo", {}, (-1.2 * 0.99 + 0.8 * 0.99) / 2),
        ("rloo", {"epsilon": 0.5, "kl_coef": 0.0}, (-exp(0.2) + exp(-0.4)) / 2),
    ],
)
def test_losses_are_those_worked_by_hand(variant: str, changes: dict[str, Any], expected: float) -> None:
    assert loss_of(make_config(variant, **changes)) == pytest.approx(expected, rel=1e-12)


def test_each_part_of_a_minibatch_adds_its_share() -> None:
    """No result depends on memory: of a token's ratio parts are chunks, of a response's whole ones."""
    for variant in VARIANTS:
        config, parts = make_config(variant), []
        advantages = double([[1.0, 1.0], [-1.0, -1.0]])
        weights, owners = grpo.token_weights(config, MASK.double(), [0, 1]), torch.tensor([[0, 0], [1, 1]])
        tensors = [x[MASK] for x in (double(NEW), double(OLD), double(START), advantages, weights, owners)]
        by_token = config.importance_sampling_level == "token"
        for part in ([[0], [1], [2]] if by_token else [[0, 1], [2]]) + [[0, 1, 2]]:
            parts.append(grpo.token_losses(config, defaultdict[str, Any](float), *(x[part] for x in tensors)))
        assert float(sum(parts[:-1])) == pytest.approx(float(parts[-1]), rel=1e-12), variant


def test_advantages_of_groups() -> None:
    rewards = double([1.0, 3.0, 2.0, 2.0, 5.0, 5.0])
    std, whole = sqrt(2), float(rewards.std())
    for settings, expected in (
        ({"scale_rewards": "none"}, [-1, 1, 0, 0, 0, 0]),
        ({}, [-1 / (std + 1e-4), 1 / (std + 1e-4), 0, 0, 0, 0]),
        ({"scale_rewards": "batch"}, [-1 / (whole + 1e-4), 1 / (whole + 1e-4), 0, 0, 0, 0]),
        ({"scale_rewards": "none", "baseline": "leave_one_out"}, [-2, 2, 0, 0, 0, 0]),
    ):
        assert grpo.group_advantages(make_config(**settings), rewards).tolist() == pytest.approx(expected)
    three = make_config(num_generations=3, rollout_batch_size=6, scale_rewards="none", baseline="leave_one_out")
    assert grpo.group_advantages(three, double([1, 2, 6])).tolist() == pytest.approx([1 - 4, 2 - 3.5, 6 - 1.5])
    unread = double([1.0, float("nan"), 3.0, float("nan"), float("nan"), 4.0])
    settings = make_config(num_generations=3, rollout_batch_size=6, mini_batch_size=6, scale_rewards="none")
    assert grpo.group_advantages(settings, unread).tolist() == [-1, 0, 1, 0, 0, 0]


def test_overlong_responses_pay_as_in_trl() -> None:
    from trl.rewards import get_soft_overlong_punishment

    config = make_config("dapo", response_length=20, overlong_share=0.25)
    theirs = get_soft_overlong_punishment(max_completion_len=20, soft_punish_cache=5)
    for length in (1, 14, 15, 16, 18, 20):
        [punishment] = theirs(completion_ids=[[0] * length])
        assert -grpo.overlong_penalty(config, length) == pytest.approx(punishment)
    assert [grpo.overlong_penalty(config, length) for length in (15, 18, 20)] == pytest.approx([0, 0.6, 1])
    assert grpo.overlong_penalty(make_config(), 4) == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss_type": "dapo", "importance_sampling_level": "sequence"}, "--set grpo.loss_type=grpo"),
        ({"num_generations": 1}, "greater than 1"),
        ({"num_generations": 5, "rollout_batch_size": 8, "mini_batch_size": 8}, "multiple of num_generations"),
        ({"overlong_share": 1.5}, "less than or equal to 1"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        GRPOConfig.model_validate(settings)
