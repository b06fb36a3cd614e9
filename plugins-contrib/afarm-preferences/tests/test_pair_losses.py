"""Losses of pairs and of single outputs against numbers worked by hand, in double precision."""

from __future__ import annotations

from math import exp, expm1, inf, log, log1p
from typing import Any

import pytest
import torch
from afarm_preferences import REFERENCE, KTOConfig, PairwiseConfig
from afarm_preferences.kto import kto_losses
from afarm_preferences.losses import LOSSES, Side, pair_losses
from pydantic import ValidationError


def s(x: float) -> float:
    """The logistic function."""
    return 1 / (1 + exp(-x))


# Chosen: log π = −4, log π₀ = −6, 4 tokens: ratio 2, ½ per token; log π is −1 per token.
# Rejected: log π = −6, log π₀ = −5, 2 tokens: ratio −1, −½ per token; log π is −3 per token.
# So h = 3, and 1 per token; β = ½, γ = ¼.
P, Q = exp(-1), exp(-3)
ODDS = log(P / (1 - P)) - log(Q / (1 - Q))
BY_HAND: dict[str, tuple[float, float, float]] = {
    # the loss, and its derivatives by log π of the chosen and of the rejected response
    "sigmoid": (log1p(exp(-1.5)), -0.5 * s(-1.5), 0.5 * s(-1.5)),
    "sigmoid_norm": (log1p(exp(-0.5)), -0.5 / 4 * s(-0.5), 0.5 / 2 * s(-0.5)),
    "hinge": (0.0, 0.0, 0.0),  # 1 − 1.5
    "ipo": (0.0, 0.0, 0.0),  # the target is 1 / (2 · ½) = 1 a token, which is reached
    "robust": (  # ε = ¼: (¾ l(3) − ¼ l(−3)) / ½, and l(−3) = l(3) + 1.5
        1.5 * log1p(exp(-1.5)) - 0.5 * log1p(exp(1.5)),
        -0.5 * (1.5 * s(-1.5) + 0.5 * s(1.5)),
        0.5 * (1.5 * s(-1.5) + 0.5 * s(1.5)),
    ),
    "sppo_hard": ((2 - 1) ** 2 + (-1 + 1) ** 2, 2.0, 0.0),
    "apo_zero": (1 - s(1) + s(-0.5), -0.5 * s(1) * s(-1), 0.5 * s(0.5) * s(-0.5)),
    "apo_down": (
        s(1) + 1 - s(1.5),
        0.5 * s(1) * s(-1) - 0.5 * s(1.5) * s(-1.5),
        0.5 * s(1.5) * s(-1.5),
    ),
    "bco_pair": (log1p(exp(-1)) + log1p(exp(-0.5)), -0.5 * s(-1), 0.5 * s(-0.5)),
    "simpo": (log1p(exp(-(0.5 * 2 - 0.25))), -0.5 / 4 * s(-0.75), 0.5 / 2 * s(-0.75)),
    "odds_ratio": (  # d log odds / d log p = 1 / (1 − p)
        0.5 * log1p(exp(-ODDS)),
        -0.5 * s(-ODDS) / (1 - P) / 4,
        0.5 * s(-ODDS) / (1 - Q) / 2,
    ),
    "sft": (1.0, -1 / 4, 0.0),
}


def sides() -> tuple[Side, Side]:
    def side(logps: float, reference: float, tokens: int) -> Side:
        values = torch.tensor([[logps], [reference], [tokens]], dtype=torch.float64)
        return Side(values[0].requires_grad_(), values[1], values[2])

    return side(-4, -6, 4), side(-6, -5, 2)


def config(**settings: Any) -> PairwiseConfig:
    return PairwiseConfig(**{"beta": 0.5, "simpo_gamma": 0.25, **settings})


def loss_of(p: float = 1.0, **settings: Any) -> float:
    [loss] = pair_losses(*sides(), torch.tensor([p], dtype=torch.float64), config(**settings)).values()
    return loss.item()


def test_the_table_of_names_and_the_table_of_losses_are_one() -> None:
    assert REFERENCE.keys() == LOSSES.keys() == BY_HAND.keys()


@pytest.mark.parametrize("name", BY_HAND)
def test_a_loss_and_its_gradient_are_those_worked_by_hand(name: str) -> None:
    (chosen, rejected), sure = sides(), torch.ones(1, dtype=torch.float64)
    losses = pair_losses(chosen, rejected, sure, config(loss_type=name, label_smoothing=0.25 * (name == "robust")))
    loss = losses[name].sum()
    gradients = torch.autograd.grad(loss, (chosen.logps, rejected.logps), materialize_grads=True)
    assert (loss.item(), *map(float, gradients)) == pytest.approx(BY_HAND[name], rel=1e-12, abs=1e-12)


def test_losses_short_of_their_targets() -> None:
    assert loss_of(loss_type="hinge", beta=0.25) == pytest.approx(1 - 0.25 * 3)
    assert loss_of(loss_type="ipo", beta=0.125) == pytest.approx((1 - 4) ** 2)


def test_without_a_reference_a_difference_is_of_log_probabilities() -> None:
    chosen, rejected = (Side(side.logps, torch.zeros(1), side.tokens) for side in sides())
    losses = pair_losses(chosen, rejected, torch.ones(1), config(loss_type=["sigmoid", "ipo"], reference="none"))
    assert float(losses["sigmoid"]) == pytest.approx(log1p(exp(-0.5 * (-4 + 6))))
    assert float(losses["ipo"]) == pytest.approx((-1 + 3 - 1) ** 2)


def test_a_label_that_may_be_wrong_weighs_both_orders_and_conservative_dpo_smooths_it() -> None:
    straight, turned = log1p(exp(-1.5)), log1p(exp(1.5))
    assert loss_of(0.75) == pytest.approx(0.75 * straight + 0.25 * turned)
    assert loss_of(1.0, label_smoothing=0.1) == pytest.approx(0.9 * straight + 0.1 * turned)
    assert loss_of(0.75, label_smoothing=0.1) == pytest.approx(0.7 * straight + 0.3 * turned)
    assert loss_of(loss_type="sft", label_smoothing=0.1) == 1  # takes no side
    assert loss_of(0.5, loss_type="sft") == pytest.approx(0.5 * 1 + 0.5 * 3)


def test_robust_dpo_has_no_bias_under_flipped_labels() -> None:
    """Of labels with a flipped quarter, its mean is the loss of the right ones; conservative DPO's is not."""
    robust = {"loss_type": "robust", "label_smoothing": 0.25}
    assert 0.75 * loss_of(1.0, **robust) + 0.25 * loss_of(0.0, **robust) == pytest.approx(loss_of())


def test_sppo_under_soft_labels_has_the_gradient_of_its_soft_form() -> None:
    (chosen, rejected), p = sides(), 0.8
    loss = pair_losses(chosen, rejected, torch.tensor([p], dtype=torch.float64), config(loss_type="sppo_hard"))
    gradients = torch.autograd.grad(loss["sppo_hard"].sum(), (chosen.logps, rejected.logps))
    target = (p - 0.5) / 0.5
    assert list(map(float, gradients)) == pytest.approx([2 * (2 - target), 2 * (-1 + target)])


def test_a_response_of_probability_one_has_odds_and_a_gradient() -> None:
    sure = Side(torch.zeros(1, requires_grad=True), torch.zeros(1), torch.ones(1))
    other = Side(torch.tensor([-1.0], requires_grad=True), torch.zeros(1), torch.ones(1))
    for chosen, rejected in ((sure, other), (other, sure)):
        loss = LOSSES["odds_ratio"](chosen, rejected, config(loss_type="odds_ratio")).sum()
        gradients = torch.autograd.grad(loss, (chosen.logps, rejected.logps))
        assert torch.isfinite(torch.stack([loss, *(gradient.sum() for gradient in gradients)])).all()
    assert log(-expm1(-1e-7)) == pytest.approx(-16.118, abs=1e-3)  # float32 still tells such a P from 1


# ------------------------------------------------------------------------------------------------------- weighted sums


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"loss_type": ["sigmoid", "simp"]}, r"unknown loss 'simp' in loss_type. Did you mean 'simpo'"),
        ({"loss_type": []}, "at least 1 item"),
        ({"loss_type": ["sft", "sft"]}, "names a loss twice"),
        ({"loss_type": ["sigmoid", "sft"], "loss_weights": [1]}, r"1 weights for the 2 of loss_type \(sigmoid, sft\)"),
        ({"loss_type": ["sigmoid", "sft"], "loss_weights": [0, 0]}, "not all 0: nothing would be learned"),
        ({"loss_type": ["sigmoid", "sft"], "loss_weights": [2, -1]}, "must not be negative"),
        ({"loss_weights": [inf]}, "finite"),
        ({"loss_type": ["simpo", "sft"], "reference": "start"}, "simpo and sft look at no reference: leave it at auto"),
        ({"loss_type": ["sigmoid", "apo_zero"], "reference": "none"}, "apo_zero cannot do without"),
        ({"label_smoothing": 0.5}, "less than 0.5"),
        ({"beta": 0}, "greater than 0"),
    ],
)
def test_settings_that_make_no_loss_are_refused_and_say_why(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        config(**settings)


@pytest.mark.parametrize(
    ("losses", "reference", "uses"),
    [
        (["sigmoid", "sft"], "auto", True),
        (["sigmoid", "sft"], "none", False),
        (["simpo", "sft"], "auto", False),
        (["simpo", "ipo"], "start", True),
    ],
)
def test_the_reference_is_read_if_a_loss_looks_at_it(losses: list[str], reference: str, uses: bool) -> None:
    assert config(loss_type=losses, reference=reference).uses_reference is uses


# ----------------------------------------------------------------------------------------------------------------- KTO


def test_the_loss_of_kto_and_its_gradient_are_those_worked_by_hand() -> None:
    # β = ½, z₀ = 0.4. Ratio 2, desirable, λ 2: 2 (1 − σ(0.8)); ratio −1, undesirable, λ 3: 3 (1 − σ(0.7)).
    settings = KTOConfig(beta=0.5, desirable_weight=2, undesirable_weight=3)
    ratios = torch.tensor([2.0, -1.0], dtype=torch.float64, requires_grad=True)
    losses = kto_losses(ratios, 0.4, torch.tensor([1.0, 0.0], dtype=torch.float64), settings)
    assert losses.tolist() == pytest.approx([2 * (1 - s(0.8)), 3 * (1 - s(0.7))], rel=1e-12)
    losses.sum().backward()
    assert ratios.grad is not None
    assert ratios.grad.tolist() == pytest.approx([-s(0.8) * s(-0.8), 1.5 * s(0.7) * s(-0.7)], rel=1e-12)
