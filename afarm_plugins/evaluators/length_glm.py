"""The generalised linear model behind length-controlled win rates, over plain arrays.

    logit P(the system wins) = a * not_gamed + b * tanh(z) + c * difficulty,    no intercept
    z = (characters of the reference's output - of the system's) / their standard deviation (n - 1), not centred

by logistic regression with an L1 penalty (liblinear), whose strength C is the one of ten from 1e-4 to 1e4 with the best
mean log-loss over five folds. The folds part instructions, and probabilities count as two weighted rows each.

Source: Dubois et al. 2024, "Length-Controlled AlpacaEval", arXiv 2404.04475.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from sklearn import config_context
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

FOLDS = 5
PENALTIES = np.logspace(-4, 4, 10)
"""scikit-learn's ten default values of C."""
MOST_STEPS = 100
SPECK = 1e-12
"""The least weight of a row: solvers drop those without any, and with them, where all was won, one of two classes."""


@dataclass(frozen=True, slots=True)
class Rows:
    """`features` [N, K], `share` [N] of the win, `weight` [N], `group` [N]: an instruction, in one fold."""

    features: Floats
    share: Floats
    weight: Floats
    group: Indices

    def at(self, chosen: NDArray[np.bool_]) -> Rows:
        return Rows(self.features[chosen], self.share[chosen], self.weight[chosen], self.group[chosen])


def length_feature(gap: Floats) -> Floats:
    """tanh(z) of the differences [N] in characters, reference less system; 0 if all are the same."""
    deviation = gap.std(ddof=1) if len(gap) > 1 else 0.0
    return np.tanh(gap / deviation) if deviation else np.zeros(len(gap))


def fit(rows: Rows) -> tuple[Floats, float]:
    """Fit the coefficients, [K], and choose C. Groups are numbered from 0, at least `FOLDS` of them."""
    fold = rows.group % FOLDS
    losses = np.zeros((len(PENALTIES), FOLDS))
    for number in range(FOLDS):
        seen, unseen = rows.at(fold != number), rows.at(fold == number)
        for place, C in enumerate(PENALTIES):
            losses[place, number] = log_loss(solve(seen, C), unseen)
    C = float(PENALTIES[losses.mean(axis=1).argmin()])
    return solve(rows, C), C


def log_loss(coefficients: Floats, rows: Rows) -> float:
    """The weighted mean of -log P(judgement)."""
    logit = rows.features @ coefficients
    return float(np.average(np.logaddexp(0, logit) - rows.share * logit, weights=rows.weight))


def solve(rows: Rows, C: float) -> Floats:
    """The coefficients, [K], that minimise the weighted sum of -log P(judgement) plus Σ|coefficients| / C."""
    # Each row stands once as won and once as lost, weighted by its share.
    features, classes = np.tile(rows.features, (2, 1)), np.repeat([1.0, 0.0], len(rows.share))
    won, lost = rows.weight * rows.share, rows.weight * (1 - rows.share)
    weights = np.maximum(np.concatenate([won, lost]), SPECK)
    slope = (weights * (classes - 0.5)) @ features
    if C * float(np.abs(slope).max()) <= 1:
        return np.zeros(features.shape[1])  # the penalty is steeper than the loss: it needs no solver to tell
    model = LogisticRegression(
        C=C, l1_ratio=1, solver="liblinear", fit_intercept=False, max_iter=MOST_STEPS, random_state=0
    )
    # A fit takes longer to check than to solve. Where outcomes are separated it ends at its most steps, far out.
    with config_context(assume_finite=True, skip_parameter_validation=True), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return np.asarray(model.fit(features, classes, sample_weight=weights).coef_[0])


def information(coefficients: Floats, rows: Rows) -> float:
    """The information in the outcomes: Σ p (1 − p), an instruction counting once however many rows it has.

    Without the penalty it is at most the number of the rarer outcome, and less the better lengths tell them apart: 0
    if all were won, or if the longer won throughout.
    """
    p = expit(rows.features @ coefficients)
    return float((p * (1 - p)).mean() * np.unique(rows.group).size)


def sampling_error(coefficients: Floats, judged: Rows, extra: Rows | None, equal_length: Floats) -> float | None:
    """The standard error of the mean prediction over instructions, the fit's own uncertainty included.

    From the influence of each instruction on the mean, at the fitted coefficients and without the penalty:
    p_i − mean + gradient · H⁻¹ · n · score_i. `judged` are the rows of instructions, `extra` those that only
    regularise, and `equal_length`, [n, K], the features that are predicted for. None if there is one instruction.
    """
    p = expit(equal_length @ coefficients)
    n = len(p)
    if n < 2:
        return None
    gradient = (equal_length * (p * (1 - p))[:, None]).mean(axis=0)
    curvature = np.zeros((len(coefficients), len(coefficients)))
    for rows in (judged, extra) if extra else (judged,):
        q = expit(rows.features @ coefficients)
        curvature += (rows.features * (rows.weight * q * (1 - q))[:, None]).T @ rows.features
    residual = judged.weight * (judged.share - expit(judged.features @ coefficients))
    influence = judged.features @ (np.linalg.pinv(curvature) @ gradient) * residual
    total = p - p.mean() + n * np.bincount(judged.group, influence, minlength=n)
    return float(total.std(ddof=1) / np.sqrt(n))
