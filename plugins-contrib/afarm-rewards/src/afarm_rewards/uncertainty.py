"""A Laplace approximation of the last layer: a Gaussian around the head's weights w.

Its covariance is (Λ + λI)⁻¹, with Λ the curvature of the loss by w, summed over the pairs, and λ the precision of a
Gaussian prior, chosen by the evidence of the data (MacKay 1992; Daxberger et al. 2021, arXiv 2106.14806; of reward
models, Yang et al. 2024, arXiv 2402.13210). An output with hidden state φ has a reward of variance (φ − φ̄)ᵀ Σ (φ − φ̄):
a reward is relative, here to the mean output that was learned from.
"""

from __future__ import annotations

import torch
from torch import Tensor

PRECISIONS = torch.logspace(-6, 6, 49, dtype=torch.float64)
"""The precisions of the prior that are tried."""


def evidence_precision(information: Tensor, weight: Tensor) -> float:
    """Choose the prior's precision λ by the evidence, from Λ [H, H] and the head's weights [H].

    The log evidence, up to what does not depend on λ: ½ H log λ − ½ λ ‖w‖² − ½ log det(Λ + λI).
    """
    eigenvalues = torch.linalg.eigvalsh(information).clamp_min(0)
    logdet = torch.log(eigenvalues + PRECISIONS.unsqueeze(-1)).sum(-1)  # [λ]
    evidence = 0.5 * (len(weight) * PRECISIONS.log() - PRECISIONS * weight.square().sum() - logdet)
    return float(PRECISIONS[evidence.argmax()])


def posterior_covariance(information: Tensor, precision: float) -> Tensor:
    """Compute Σ = (Λ + λI)⁻¹ [H, H], in double precision."""
    eye = torch.eye(len(information), dtype=information.dtype)
    return torch.cholesky_inverse(torch.linalg.cholesky(information + precision * eye))


def sigma_points(weight: Tensor, covariance: Tensor) -> Tensor:
    """Return heads [2H, H] with mean `weight` and covariance Σ: an ensemble that is the Gaussian.

    They are w ± √H · Lᵢ for the columns of L, with LLᵀ = Σ (Julier & Uhlmann 1997): over these heads a reward has the
    mean wᵀφ, and the standard deviation √(φᵀ Σ φ) exactly.
    """
    steps = len(weight) ** 0.5 * torch.linalg.cholesky(covariance).T  # [H, H], a column of L in each row
    return torch.cat([weight + steps, weight - steps])
