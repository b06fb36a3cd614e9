"""Losses on preferences against numbers worked by hand."""

from __future__ import annotations

import math

import pytest
import torch

from afarm_plugins.dpo.dpo import preference_losses


def test_preference_losses_by_hand() -> None:
    margins, sure = torch.tensor([0.0, 2.0, -1.0]), torch.ones(3)
    # β = 0.5: −log σ(0) = 0.693147, −log σ(1) = 0.313262, −log σ(−0.5) = 0.974077
    assert preference_losses(margins, sure, "sigmoid", 0.5).tolist() == pytest.approx([0.693147, 0.313262, 0.974077])
    # max(0, 1 − 0.5 margin)
    assert preference_losses(margins, sure, "hinge", 0.5).tolist() == pytest.approx([1.0, 0.0, 1.5])
    # (margin − 1 / (2 · 0.25))² = (margin − 2)²
    assert preference_losses(margins, sure, "ipo", 0.25).tolist() == pytest.approx([4.0, 0.0, 9.0])


def test_a_soft_label_and_smoothing_weigh_both_orders() -> None:
    margin, soft = torch.tensor([2.0]), torch.tensor([0.7])
    # 0.7 · 0.313262 + 0.3 · 1.313262
    assert preference_losses(margin, soft, "sigmoid", 0.5).item() == pytest.approx(0.613262)
    # smoothing by 0.1: 0.9 · 0.7 + 0.1 · 0.3 = 0.66 for the given order
    assert preference_losses(margin, soft, "sigmoid", 0.5, 0.1).item() == pytest.approx(
        0.66 * 0.313262 + 0.34 * 1.313262
    )
    assert preference_losses(margin, soft, "hinge", 0.5).item() == pytest.approx(0.3 * 2)
    assert preference_losses(margin, soft, "ipo", 0.25).item() == pytest.approx(0.3 * 16)


def test_the_loss_has_its_least_where_the_policy_gives_the_label() -> None:
    margin = torch.tensor([math.log(0.7 / 0.3) / 0.5], requires_grad=True)
    preference_losses(margin, torch.tensor([0.7]), "sigmoid", 0.5).backward()
    assert margin.grad is not None
    assert margin.grad.item() == pytest.approx(0, abs=1e-6)
