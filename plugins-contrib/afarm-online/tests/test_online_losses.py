"""Losses, advantages and labels beside numbers worked by hand; settings that are refused."""

from __future__ import annotations

from math import exp, log1p, nan
from typing import Any

import pytest
import torch
from afarm_online import METHODS, NashMDConfig, OnlineDPOConfig
from afarm_online.nash_md import nash_advantages, nash_loss
from afarm_online.pairs import PairBatch, compare_extremes, pair_losses
from afarm_online.xpo import exploration
from pydantic import ValidationError
from torch import Tensor

from afarm.backend.distributed import uneven_sizes
from afarm.testing import make_instructions, tiny_config


def double(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


# Of the first pair log π/π₀ is 2 and −1, so h = 3; of the second 0.5 and 1, so h = −0.5. β = ½.
RATIOS = [[2.0, 0.5], [-1.0, 1.0]]
ONE = {
    "sigmoid": (log1p(exp(-1.5)), log1p(exp(0.25))),
    "ipo": ((3 - 1) ** 2, (-0.5 - 1) ** 2),  # the margin to reach is 1 / (2 · ½)
    "hinge": (0.0, 1.25),
}
OTHER = {
    "sigmoid": (log1p(exp(1.5)), log1p(exp(-0.25))),
    "ipo": ((-3 - 1) ** 2, (0.5 - 1) ** 2),
    "hinge": (2.5, 0.75),
}


@pytest.mark.parametrize("name", ONE)
@pytest.mark.parametrize("p", [1.0, 0.0, 0.7])
def test_a_loss_of_pairs_is_the_expectation_over_both_orders(name: str, p: float) -> None:
    expected = [p * one + (1 - p) * other for one, other in zip(ONE[name], OTHER[name], strict=True)]
    assert pair_losses(double(RATIOS), double([p, p]), name, 0.5).tolist() == pytest.approx(expected, rel=1e-12)


def test_xpos_bonus_lowers_the_responses_of_the_start() -> None:
    logps = double([[-3.0, -4.0], [-5.0, -6.0]]).requires_grad_()
    batch = PairBatch(logps, double([[-2.0] * 2] * 2), double([1.0, 0.0]), double([1.0, 0.0]))
    bonus = exploration(batch, 0.01)
    assert bonus.tolist() == pytest.approx([-0.05, -0.06])
    bonus.sum().backward()
    assert logps.grad is not None
    assert logps.grad.tolist() == [[0.0, 0.0], [0.01, 0.01]]  # whichever was better


def test_nash_mds_gradient_is_the_papers_and_by_token_trls() -> None:
    """P − ½ − τ log π/π₀, of two responses of two tokens and of one; τ = ¼."""
    mask = torch.tensor([[True, True], [True, False]])
    preferred, log_ratios = double([1.0, 0.3]), double([[0.4, -0.8], [0.2, 0.0]])
    for level, expected in {
        "token": [[0.5 - 0.1, 0.5 + 0.2], [-0.2 - 0.05, 0.0]],
        "sequence": [[0.5 + 0.1, 0.5 + 0.1], [-0.2 - 0.05, 0.0]],
    }.items():
        config = NashMDConfig(kl_coef=0.25, kl_level=level)
        weights = nash_advantages(config, preferred, log_ratios, mask)
        torch.testing.assert_close(weights, double(expected))
        logprobs = double([[-1.0, -2.0], [-3.0, 0.0]]).requires_grad_()
        loss = nash_loss(2, logprobs, weights)
        assert loss.item() == pytest.approx((expected[0][0] + 2 * expected[0][1] + 3 * expected[1][0]) / 2)
        loss.backward()
        torch.testing.assert_close(logprobs.grad, -weights / 2)


@pytest.mark.parametrize(
    ("marks", "soft", "expected"),
    [
        ([3.0, 5.0], False, (0, 1, 0.0)),
        ([5.0, 3.0], False, (0, 1, 1.0)),
        ([5.0, 3.0], True, (0, 1, 1 / (1 + exp(-2)))),
        ([0.0, 2000.0], True, (0, 1, 0.0)),  # no overflow
        ([4.0, 4.0], False, (0, 1, "undecided")),
        ([4.0, nan], False, (0, 1, "unread")),
        ([2.0, 1.0, nan, 7.0], False, (1, 3, 0.0)),
        ([2.0, 9.0, 2.0, 9.0], False, (1, 2, 1.0)),  # of equal ones the first best, the last worst
    ],
)
def test_the_best_and_the_worst_of_a_group_make_a_pair(marks: list[float], soft: bool, expected: Any) -> None:
    first, second, verdict = compare_extremes(marks, range(len(marks)), soft=soft)
    assert (first, second) == expected[:2]
    assert verdict == (expected[2] if isinstance(expected[2], str) else pytest.approx(expected[2], abs=1e-300))


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("online_dpo", {"num_generations": 1}, "greater than 1"),
        ("online_dpo", {"num_generations": 3, "rollout_batch_size": 9, "mini_batch_size": 3}, "num_generations=4"),
        ("online_dpo", {"labels": "people"}, "'annotator', 'reward_model', 'rating' or 'ranking'"),
        ("xpo", {"alpha": -1}, "greater than or equal to 0"),
        ("nash_md", {"mixture_coef": 1.5}, "less than or equal to 1"),
        ("iterative_dpo", {"total_steps": 2, "warmup_steps": 2}, "must be below total_steps"),
    ],
)
def test_settings_that_make_no_pairs_are_refused(name: str, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        METHODS[name][1].model_validate(settings, context={"section": name})


def test_of_sizes_that_processes_do_not_divide_the_setting_to_change_is_named() -> None:
    config = OnlineDPOConfig(rollout_batch_size=12, mini_batch_size=4, num_generations=2)
    [problem] = uneven_sizes("online_dpo", config, 4, sharded=True)
    assert problem == (
        "online_dpo's pairs per step (6) must be divisible by the 4 processes of FSDP2: change "
        "online_dpo.rollout_batch_size"
    )


def test_needs_and_plans_follow_the_labels() -> None:
    tasks = {"unlabeled": make_instructions(5)}
    sizes = {"total_steps": 3, "rollout_batch_size": 8, "num_generations": 4, "mini_batch_size": 4}
    for labels, needs, pairs in (
        ("annotator", {"annotator"}, 3 * 4),  # two by two
        ("reward_model", {"reward_model"}, 0),
        ("rating", {"judge"}, 0),
        ("ranking", {"judge"}, 0),
    ):
        method = METHODS["online_dpo"][0](tiny_config(OnlineDPOConfig, labels=labels, **sizes))
        assert method.needs == {"unlabeled", *needs}
        assert len(method.plan_pairs(tasks)) == pairs
    method = METHODS["nash_md"][0](tiny_config(NashMDConfig, total_steps=3, rollout_batch_size=8, mini_batch_size=4))
    assert len(method.plan_pairs(tasks)) == 3 * 8
    best = tiny_config(OnlineDPOConfig, labels="reward_model", checkpoint="best")
    assert METHODS["online_dpo"][0](best).needs == {"unlabeled", "reward_model", "validation", "annotator"}


def test_under_toy_and_smol_a_method_has_no_settings_of_a_large_model() -> None:
    for method, kind, _, toy, smol in METHODS.values():
        for recipe in (toy, smol):
            assert kind.model_validate(recipe).learning_rate >= 1e-5
        assert method.search_space.keys() <= kind.model_fields.keys()
