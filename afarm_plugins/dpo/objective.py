"""The losses of DPO and its relatives, as pure functions of log ratios."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F

LOSSES: Mapping[str, Callable[[torch.Tensor, float], torch.Tensor]] = {
    "sigmoid": lambda margin, beta: -F.logsigmoid(beta * margin),
    "hinge": lambda margin, beta: torch.relu(1 - beta * margin),
    "ipo": lambda margin, beta: (margin - 1 / (2 * beta)) ** 2,
}
"""The loss [B] of pairs that are surely ordered, from margins [B] (chosen − rejected log ratio) and beta.

sigmoid: Rafailov et al. 2023, eq. 7. hinge: Zhao et al. 2023, on log ratios. ipo: Azar et al. 2023, eq. 17.
"""


def preference_losses(
    margins: torch.Tensor, p_chosen: torch.Tensor, loss_type: str, beta: float, label_smoothing: float = 0.0
) -> torch.Tensor:
    """The loss [B] of pairs whose chosen output is the better one with probability `p_chosen` [B].

    It is the expected loss over the two orders; for sigmoid, the cross-entropy of σ(beta · margin) against the label.
    `label_smoothing` ε first mixes in the other order: p becomes (1 − ε)·p + ε·(1 − p). `margins` [B] are differences
    of summed log ratios, for ipo of per-token means.
    """
    p = p_chosen * (1 - 2 * label_smoothing) + label_smoothing
    loss = LOSSES[loss_type]
    return p * loss(margins, beta) + (1 - p) * loss(-margins, beta)
