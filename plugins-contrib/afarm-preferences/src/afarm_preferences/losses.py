"""Losses of pairs, by TRL's names: each a function of the chosen and the rejected responses of B pairs.

A loss takes the label to be right, and returns [B]. Labels that may be wrong, and sums of losses, are `pair_losses`'
matter. β, γ and ε are the settings `beta`, `simpo_gamma` and `label_smoothing`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from afarm_preferences import PairwiseConfig


class Side(NamedTuple):
    """The chosen or the rejected responses of B pairs; all are [B].

    `logps` are log π(y|x), summed over the response's tokens, and `reference` those of the reference policy, 0 without
    one. `tokens` counts a response's tokens, its end included.
    """

    logps: Tensor
    reference: Tensor
    tokens: Tensor

    @property
    def ratio(self) -> Tensor:
        """log π(y|x)/π₀(y|x)."""
        return self.logps - self.reference


def sigmoid(chosen: Side, rejected: Side, config: PairwiseConfig) -> Tensor:
    """DPO: −log σ(β h), h the difference of log ratios (Rafailov et al. 2023, eq. 7)."""
    return -F.logsigmoid(config.beta * (chosen.ratio - rejected.ratio))


def sigmoid_norm(chosen: Side, rejected: Side, config: PairwiseConfig) -> Tensor:
    """DPO on log ratios per token (Lambert et al. 2024, Tülu 3)."""
    return -F.logsigmoid(config.beta * (chosen.ratio / chosen.tokens - rejected.ratio / rejected.tokens))


def hinge(chosen: Side, rejected: Side, config: PairwiseConfig) -> Tensor:
    """SLiC: max(0, 1 − β h), on log ratios (Zhao et al. 2023)."""
    return torch.relu(1 - config.beta * (chosen.ratio - rejected.ratio))


def ipo(chosen: Side, rejected: Side, config: PairwiseConfig) -> Tensor:
    """IPO: (h − 1/(2β))², h of log ratios per token (Azar et al. 2023, eq. 17; β is their τ)."""
    margin = chosen.ratio / chosen.tokens - rejected.ratio / rejected.tokens
    return (margin - 1 / (2 * config.beta)) ** 2


def robust(chosen: Side, rejected: Side, config: PairwiseConfig) -> Tensor:
    """Robust DPO, unbiased if a share ε of labels is flipped (Chowdhury et al. 2024).

    ((1 − ε) l(h) − ε l(−h)) / (1 − 2ε), with l the sigmoid loss.
    """
    rate = config.label_smoothing
    straight, turned = sigmoid(chosen, rejected, config), sigmoid(rejected, chosen, config)
    return ((1 - rate) * straight - rate * turned) / (1 - 2 * rate)


def sppo_hard(chosen: Side, rejected: Side, config: PairwiseConfig) -> Tensor:
    """SPPO: (r⁺ − 1/(2β))² + (r⁻ + 1/(2β))², r the log ratios (Wu et al. 2024, eq. 4.7; β is 1/η).

    Under a label of probability p its expectation over both orders has the gradient of their soft form, where the
    targets are ±(p − ½)/β.
    """
    target = 1 / (2 * config.beta)
    return (chosen.ratio - target) ** 2 + (rejected.ratio + target) ** 2


def apo_zero(chosen: Side, rejected: Side, config: PairwiseConfig) -> Tensor:
    """APO-zero: 1 − σ(β r⁺) + σ(β r⁻), for outputs better than the policy's (D'Oosterlinck et al. 2024, eq. 7)."""
    return torch.sigmoid(-config.beta * chosen.ratio) + torch.sigmoid(config.beta * rejected.ratio)


def apo_down(chosen: Side, rejected: Side, config: PairwiseConfig) -> Tensor:
    """APO-down: σ(β r⁺) + 1 − σ(β h), for outputs worse than the policy's (D'Oosterlinck et al. 2024, eq. 8)."""
    margin = chosen.ratio - rejected.ratio
    return torch.sigmoid(config.beta * chosen.ratio) + torch.sigmoid(-config.beta * margin)


def bco_pair(chosen: Side, rejected: Side, config: PairwiseConfig) -> Tensor:
    """Classify responses: −log σ(β r⁺) − log σ(−β r⁻) (Jung et al. 2024, without their shift)."""
    return -F.logsigmoid(config.beta * chosen.ratio) - F.logsigmoid(-config.beta * rejected.ratio)


def simpo(chosen: Side, rejected: Side, config: PairwiseConfig) -> Tensor:
    """SimPO: −log σ(β (m⁺ − m⁻) − γ), m the log-probabilities per token (Meng et al. 2024, eq. 6)."""
    margin = chosen.logps / chosen.tokens - rejected.logps / rejected.tokens
    return -F.logsigmoid(config.beta * margin - config.simpo_gamma)


def odds_ratio(chosen: Side, rejected: Side, config: PairwiseConfig) -> Tensor:
    """ORPO's second term, β times −log σ(log odds⁺ − log odds⁻) (Hong et al. 2024, eq. 7; β is their λ).

    The odds P/(1 − P) are of P = exp(log-probability per token). Its first term is `sft`.
    """

    def log_odds(side: Side) -> Tensor:
        log_p = (side.logps / side.tokens).clamp(max=-1e-7)  # a P of 1 to the last bit has infinite odds
        return log_p - torch.log(-torch.expm1(log_p))

    return -config.beta * F.logsigmoid(log_odds(chosen) - log_odds(rejected))


def sft(chosen: Side, rejected: Side, config: PairwiseConfig) -> Tensor:
    """Cross-entropy of the chosen response, per token of it (Hong et al. 2024)."""
    return -chosen.logps / chosen.tokens


Loss = Callable[[Side, Side, PairwiseConfig], Tensor]

LOSSES: Mapping[str, Loss] = {
    "sigmoid": sigmoid,
    "sigmoid_norm": sigmoid_norm,
    "hinge": hinge,
    "ipo": ipo,
    "robust": robust,
    "sppo_hard": sppo_hard,
    "apo_zero": apo_zero,
    "apo_down": apo_down,
    "bco_pair": bco_pair,
    "simpo": simpo,
    "odds_ratio": odds_ratio,
    "sft": sft,
}

PER_TOKEN = {"sigmoid_norm", "ipo", "simpo", "odds_ratio", "sft"}
"""Losses of means over a response's tokens; the others are of sums."""

NOT_SMOOTHED = {"robust", "sft"}
"""Losses that `label_smoothing` does not turn round: the one uses it itself, the other takes no side."""


def pair_losses(chosen: Side, rejected: Side, p_chosen: Tensor, config: PairwiseConfig) -> dict[str, Tensor]:
    """Compute each of the config's losses [B], unweighted, under labels that may be wrong.

    `p_chosen` [B] is the probability that the chosen response is better: a loss is the expectation over both orders,
    p · l(chosen, rejected) + (1 − p) · l(rejected, chosen). `label_smoothing` ε first turns p into (1 − ε) p +
    ε (1 − p), which makes the sigmoid loss conservative DPO (Mitchell 2023).
    """
    losses = {}
    for name in config.loss_type:
        loss, smoothing = LOSSES[name], 0.0 if name in NOT_SMOOTHED else config.label_smoothing
        p = p_chosen * (1 - 2 * smoothing) + smoothing
        losses[name] = p * loss(chosen, rejected, config) + (1 - p) * loss(rejected, chosen, config)
    return losses
