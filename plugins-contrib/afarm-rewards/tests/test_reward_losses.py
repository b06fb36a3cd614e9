"""Losses against numbers worked by hand and TRL's trainer; Laplace's Gaussian against formulas."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from afarm_rewards import HeadsConfig
from afarm_rewards.heads import HeadRewardModel, HeadsTrainer, collate, encode
from afarm_rewards.losses import curvature, pair_losses, squared_errors
from afarm_rewards.uncertainty import evidence_precision, posterior_covariance, sigma_points
from datasets import Dataset
from transformers import TrainingArguments

from afarm.backend import trainer_arguments
from afarm.testing import separable_preferences, tiny_policy, train_context

STRENGTHS = [0.0, 0.5, 2.0, 3.0, 1.0, 0.25]


def rows(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    ("loss", "difference", "p", "strength", "expected"),
    [
        ("bradley_terry", 0.0, 1.0, 9.0, math.log(2)),
        ("bradley_terry", math.log(3), 1.0, 9.0, math.log(4 / 3)),  # σ = 3/4
        ("bradley_terry", math.log(3), 0.5, 9.0, (math.log(4 / 3) + math.log(4)) / 2),
        ("margin", math.log(3), 1.0, math.log(3), math.log(2)),  # the margin is just reached
        ("margin", math.log(3), 1.0, 0.0, math.log(4 / 3)),
        ("margin", math.log(3), 0.0, math.log(3), math.log(10)),  # 1 + 3 · 3
        ("scaled", math.log(3), 1.0, 2.0, 2 * math.log(4 / 3)),
        ("scaled", math.log(3), 1.0, 0.0, 0.0),
        ("ordinal", math.log(3), 1.0, 1.0, math.log(4 / 3)),
        ("ordinal", math.log(3), 1.0, 0.0, (math.log(4 / 3) + math.log(4)) / 2),  # nothing known
        ("ordinal", math.log(3), 1.0, 0.5, 0.75 * math.log(4 / 3) + 0.25 * math.log(4)),
    ],
)
def test_losses_are_those_worked_by_hand(
    loss: str, difference: float, p: float, strength: float, expected: float
) -> None:
    found = pair_losses(loss, rows(difference), rows(p), rows(strength))
    assert found.item() == pytest.approx(expected, abs=1e-12)


def test_curvature_is_that_of_the_logistic_at_the_margin() -> None:
    at = rows(0.0, 1.5, -2.0)
    slope = torch.sigmoid(at - 1) * torch.sigmoid(1 - at)
    torch.testing.assert_close(curvature("margin", at, rows(1, 1, 1), rows(1, 1, 1)), slope)
    torch.testing.assert_close(curvature("scaled", at, rows(1, 1, 1), rows(2, 2, 2))[:1], rows(0.5))


def test_squared_errors_are_means_over_numbers_and_over_the_outputs_of_a_pair() -> None:
    predicted = torch.tensor([[[1.0, 2.0]], [[0.0, 0.0]]])  # one pair, one member, two numbers
    assert squared_errors(predicted, torch.tensor([[1.0, 4.0], [3.0, 1.0]])).tolist() == [[(2 + 5) / 2]]


# ------------------------------------------------------------------------------------------------------- beside TRL


def test_the_margin_loss_is_that_of_trls_reward_trainer_on_the_same_tokens(tmp_path: Path) -> None:
    from trl import RewardConfig, RewardTrainer

    start, pairs = tiny_policy(), separable_preferences(len(STRENGTHS))
    config = HeadsConfig(loss="margin")
    reward_model = HeadRewardModel.untrained(start, config, 1)
    torch.nn.init.normal_(reward_model.model.score.weight, generator=torch.Generator().manual_seed(0))
    examples, _ = encode(start, pairs, STRENGTHS, [], config, 0)

    trainer = HeadsTrainer(
        model=reward_model.model,
        args=trainer_arguments(TrainingArguments, config, train_context(tmp_path / "ours")),
        train_dataset=Dataset.from_list([{"length": 1}]),
    )
    trainer.settings, trainer.accuracies = config, []
    theirs: dict[str, Any] = {"report_to": "none", "bf16": False, "use_cpu": True, "gradient_checkpointing": False}
    given = [{"chosen_ids": e["chosen"], "rejected_ids": e["rejected"], "margin": e["strength"]} for e in examples]
    trl = RewardTrainer(
        reward_model.model,
        RewardConfig(output_dir=str(tmp_path / "trl"), **theirs),
        train_dataset=Dataset.from_list(given),
        processing_class=start.tokenizer,
    )
    batch, their_batch = collate(start.pad_id, examples), trl.data_collator(given)

    found = []
    for compute in (
        lambda: trainer.compute_loss(reward_model.model, batch, num_items_in_batch=len(examples)),
        lambda: trl.compute_loss(reward_model.model, dict(their_batch)),
    ):
        reward_model.model.zero_grad()
        loss = compute()
        loss.backward()
        weights = [weight.grad.flatten() for weight in reward_model.model.parameters() if weight.grad is not None]
        found.append((loss.item(), torch.cat(weights)))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-5, abs=1e-5)
    scale = found[1][1].abs().max()
    torch.testing.assert_close(found[0][1] / scale, found[1][1] / scale, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("loss", ["margin", "scaled", "regression"])
def test_a_swapped_pair_and_a_cut_step_give_the_same_loss(loss: str, tmp_path: Path) -> None:
    start, pairs = tiny_policy(), separable_preferences(6)
    pairs = [
        replace(judged, preference=replace(judged.preference, scores=(float(n), 2.0))) for n, judged in enumerate(pairs)
    ]
    swapped = [replace(j, pair=j.pair.swapped(), preference=j.preference.swapped()) for j in pairs]
    names = ["score"] * (loss == "regression")
    config = HeadsConfig(loss=loss, uncertainty="ensemble", members=3, weights=dict.fromkeys(names, 1.0))
    reward_model = HeadRewardModel.untrained(start, config, 1)
    trainer = HeadsTrainer(
        model=reward_model.model,
        args=trainer_arguments(TrainingArguments, config, train_context(tmp_path)),
        train_dataset=Dataset.from_list([{"length": 1}]),
    )
    trainer.settings, trainer.accuracies = config, []

    def loss_of(judged: list[Any], *cuts: slice) -> float:
        examples, _ = encode(start, judged, STRENGTHS, names, config, 0)
        batches = [collate(start.pad_id, examples[cut]) for cut in cuts]
        return sum(trainer.compute_loss(reward_model.model, batch, num_items_in_batch=6).item() for batch in batches)

    whole = loss_of(pairs, slice(0, 6))
    assert whole > 0.1
    assert loss_of(swapped, slice(0, 6)) == pytest.approx(whole, rel=1e-5)
    assert loss_of(pairs, slice(0, 2), slice(2, 6)) == pytest.approx(whole, rel=1e-5)


# ---------------------------------------------------------------------------------------------------------- Laplace


def logistic_data(seed: int, count: int = 400, width: int = 6) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Differences of features [N, H], the last hardly varying; the weights, and labels drawn by them."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(width, generator=generator, dtype=torch.float64)
    features = torch.randn(count, width, generator=generator, dtype=torch.float64)
    features[:, -1] *= 0.05
    labels = (torch.rand(count, generator=generator, dtype=torch.float64) < (features @ weight).sigmoid()).double()
    return features, weight, labels


def fit_logistic(features: torch.Tensor, labels: torch.Tensor, precision: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The mode and Λ by Newton's method, in closed steps."""
    weight = torch.zeros(features.shape[1], dtype=torch.float64)
    for _ in range(12):
        p = (features @ weight).sigmoid()
        information = features.T @ (features * (p * (1 - p)).unsqueeze(-1))
        gradient = features.T @ (p - labels) + precision * weight
        weight = weight - torch.linalg.solve(information + precision * torch.eye(len(weight)).double(), gradient)
    return weight, information


def test_rewards_are_unsure_away_from_the_data_and_by_about_as_much_as_they_are_wrong() -> None:
    errors = []
    for seed in range(40):
        features, truth, labels = logistic_data(seed)
        mode, information = fit_logistic(features, labels, 1.0)
        covariance = posterior_covariance(information, 1.0)
        heads = sigma_points(mode, covariance)
        near, far, unseen = features[:50], 10 * features[:50], torch.eye(6, dtype=torch.float64)[-1:] * 3
        torch.testing.assert_close((near @ heads.T).mean(-1), near @ mode)
        std = {
            name: (given @ heads.T).std(-1, correction=0) for name, given in (("n", near), ("f", far), ("u", unseen))
        }
        torch.testing.assert_close(std["f"], 10 * std["n"])
        assert std["u"].min() > 5 * std["n"].median(), "a direction that no pair varied in"
        exact = (near @ covariance * near).sum(-1).sqrt()
        torch.testing.assert_close(std["n"], exact)
        errors.append((near @ (truth - mode)) / exact)
    assert torch.cat(errors).square().mean().sqrt().item() == pytest.approx(1.0, abs=0.15), "calibrated"


def test_the_evidence_chooses_the_precision_of_the_prior_that_weights_were_drawn_from() -> None:
    generator = torch.Generator().manual_seed(0)
    for scale in (0.1, 1.0, 10.0):
        weight = scale * torch.randn(300, generator=generator, dtype=torch.float64)
        found = evidence_precision(1e4 / scale**2 * torch.eye(300).double(), weight)
        assert found == pytest.approx(1 / scale**2, rel=0.4)
