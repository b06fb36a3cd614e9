"""Losses of pairs with a strength, and of numbers; elementwise, differentiable twice."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def pair_losses(loss: str, difference: Tensor, p: Tensor, strength: Tensor) -> Tensor:
    """Compute the loss of each pair, of the shape that the three arguments have together.

    `difference` is the chosen output's reward less the rejected one's, `p` the probability that the chosen one is
    better, and `strength` by how much: a margin in log odds (margin), a weight (scaled), or a share of the strongest,
    in [0, 1] (ordinal).

    Sources: "margin", Touvron et al. 2023 (Llama 2), section 3.2.2: −log σ(d − m). "scaled", Wang et al. 2024
    (HelpSteer2-Preference, arXiv 2410.01257), section 3: −m log σ(d). "ordinal", Liu et al. 2024 (arXiv 2411.12843):
    cross-entropy against a probability, here halfway from even to `p` at a strength of ½. With a soft label each is
    p · loss(d) + (1 − p) · loss(−d).
    """
    if loss == "ordinal":
        p = 0.5 + (p - 0.5) * strength
    margin = strength if loss == "margin" else torch.zeros_like(strength)
    losses = p * F.softplus(margin - difference) + (1 - p) * F.softplus(margin + difference)
    return strength * losses if loss == "scaled" else losses


def curvature(loss: str, difference: Tensor, p: Tensor, strength: Tensor) -> Tensor:
    """Compute the second derivative [N] of each pair's loss by its difference [N]."""
    with torch.enable_grad():
        d = difference.detach().requires_grad_(True)
        [slope] = torch.autograd.grad(pair_losses(loss, d, p, strength).sum(), d, create_graph=True)
        [second] = torch.autograd.grad(slope.sum(), d)
    return second


def squared_errors(predicted: Tensor, targets: Tensor) -> Tensor:
    """Compute the mean squared error [B, K] of B pairs' outputs, from [2B, K, A] and targets [2B, A].

    Rows of B chosen outputs come first. Source: Wang et al. 2023 (HelpSteer, arXiv 2311.09528), for A attributes.
    """
    errors = (predicted - targets.unsqueeze(1)).square().mean(-1)
    chosen, rejected = errors.chunk(2)
    return (chosen + rejected) / 2
