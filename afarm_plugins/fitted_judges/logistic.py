"""A logistic model of differences between two outputs, its ridge chosen on instructions held out.

    P(second is better) = sigmoid(w · (f(second) - f(first)))

It has no intercept: swapping the outputs turns the sign of the sum, and so mirrors the probability.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

from afarm import PluginError

Array = NDArray[np.float64]
Labels = NDArray[np.int64]

RIDGES = (0.1, 1.0, 10.0, 100.0, 1000.0)
"""Penalties tried: half of one times the sum of squared weights, of differences scaled to mean square 1."""

FEW_COLUMNS = 64
"""Columns up to which Newton's steps, each of the cube of their number, are faster than a quasi-Newton method's."""


def sigmoid(logits: Array) -> Array:
    """Logistic function, without overflow."""
    return 0.5 * (1 + np.tanh(np.clip(logits, -700, 700) / 2))


def log_losses(p: Array, p2: Array) -> Array:
    """Cross-entropy in nats of each label `p2` [pairs] under `p` [pairs], which is kept 1e-12 off 0 and 1."""
    kept = np.clip(p, 1e-12, 1 - 1e-12)
    return -(p2 * np.log(kept) + (1 - p2) * np.log(1 - kept))


def require_scikit_learn() -> None:
    """Raise `PluginError` with the command that installs scikit-learn if it is not there."""
    if find_spec("sklearn") is None:
        raise PluginError("fitting a judge needs scikit-learn: pip install 'afarm[evaluation]'")


def fit_weights(differences: Array, p2: Array, ridge: float) -> Array:
    """Fit weights [features] to `differences` [pairs, features] and labels `p2` [pairs] in [0, 1]."""
    require_scikit_learn()
    from sklearn.linear_model import LogisticRegression

    scale = np.sqrt((differences**2).mean(axis=0))
    scale[scale == 0] = 1.0
    scaled = differences / scale
    solver = "newton-cholesky" if scaled.shape[1] <= FEW_COLUMNS else "lbfgs"
    model = LogisticRegression(C=1 / ridge, fit_intercept=False, solver=solver, tol=1e-8, max_iter=2000)
    # A label between 0 and 1 is both, each with its share.
    labels = np.repeat([1, 0], len(p2))
    model.fit(np.vstack([scaled, scaled]), labels, sample_weight=np.concatenate([p2, 1 - p2]))
    return model.coef_[0] / scale


@dataclass(frozen=True, slots=True)
class Ridged:
    """Weights, and the ridge that was best on instructions held out."""

    weights: Array
    ridge: float


Fits = dict[tuple[frozenset[int], float], Array]
"""Weights by the folds that they were fitted to and the ridge: nested folds need most fits twice."""


def fit_ridged(differences: Array, p2: Array, folds: Labels, fits: Fits | None = None) -> Ridged:
    """Choose the ridge by log loss over `folds` [pairs], the larger of equals, and fit to all pairs.

    Fits in `fits`, which are of the same pairs, are used again, and new ones added.
    """
    fits = {} if fits is None else fits
    losses = {ridge: _cross_validation_loss(differences, p2, folds, ridge, fits) for ridge in RIDGES}
    best = min(sorted(losses, reverse=True), key=lambda ridge: round(losses[ridge], 9))
    return Ridged(_fit_once(differences, p2, folds, best, fits), best)


def _cross_validation_loss(differences: Array, p2: Array, folds: Labels, ridge: float, fits: Fits) -> float:
    total = 0.0
    for fold in np.unique(folds):
        inside = folds != fold
        weights = _fit_once(differences[inside], p2[inside], folds[inside], ridge, fits)
        total += log_losses(sigmoid(differences[~inside] @ weights), p2[~inside]).sum()
    return total


def _fit_once(differences: Array, p2: Array, folds: Labels, ridge: float, fits: Fits) -> Array:
    key = frozenset(folds.tolist()), ridge
    if key not in fits:
        fits[key] = fit_weights(differences, p2, ridge)
    return fits[key]


def out_of_fold(differences: Array, p2: Array, folds: Labels, trains: Sequence[bool] | None = None) -> Array:
    """Predict each pair's logit by a model of the other folds, whose ridge was chosen inside them.

    `trains` [pairs] says which pairs may be learned from; all if None.
    """
    usable = np.ones(len(p2), dtype=bool) if trains is None else np.asarray(trains, dtype=bool)
    logits, fits = np.zeros(len(p2)), Fits()
    for fold in np.unique(folds):
        inside = (folds != fold) & usable
        fitted = fit_ridged(differences[inside], p2[inside], folds[inside], fits)
        logits[folds == fold] = differences[folds == fold] @ fitted.weights
    return logits


def fit_temperature(differences: Array, p2: Array) -> float:
    """Fit the factor of reward differences [pairs] under which they are log-odds; at least 0."""
    return max(0.0, float(fit_weights(differences[:, None], p2, RIDGES[0])[0]))
