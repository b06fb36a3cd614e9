"""The reward model's loss against numbers worked by hand."""

from __future__ import annotations

import math

import pytest
import torch

from afarm_plugins.reward_model.pair_trainer import bradley_terry_loss


def test_the_bradley_terry_loss_by_hand() -> None:
    first, second = torch.tensor([0.0, 1.0]), torch.tensor([2.0, 0.5])
    # σ(2) = 0.880797, σ(−0.5) = 0.377541; the second label is soft
    expected = (-math.log(0.880797) + -(0.3 * math.log(0.377541) + 0.7 * math.log(1 - 0.377541))) / 2
    assert bradley_terry_loss(first, second, torch.tensor([1.0, 0.3])).item() == pytest.approx(expected, abs=1e-5)
    assert bradley_terry_loss(second, first, torch.tensor([0.0, 0.7])).item() == pytest.approx(expected, abs=1e-5)


def test_the_bradley_terry_loss_of_several_members_by_hand() -> None:
    first, second = torch.zeros(2, 2), torch.tensor([[2.0, 0.0], [1.0, -1.0]])
    weights = torch.tensor([[0.5, 1.0], [2.0, 1.0]])
    # σ(2) = 0.880797, σ(1) = 0.731059; labels 1 and 0, the mean over pairs and members
    terms = 0.5 * -math.log(0.880797), math.log(2), 2 * -math.log(1 - 0.731059), -math.log(0.731059)
    found = bradley_terry_loss(first, second, torch.tensor([1.0, 0.0]), weights=weights)
    assert found.item() == pytest.approx(sum(terms) / 4, abs=1e-5)
