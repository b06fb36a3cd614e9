"""Weights of candidate principles: sparse logistic regression on what one output alone meets.

With x the difference (output 2 less output 1) of what is met, 1, 0 or −1 by candidate, P(output 2 is better) =
sigmoid(w · x). An L1 penalty chooses the candidates: the largest one whose cross-validated log loss, over folds of
instructions, is within one standard error of the smallest. The chosen are fitted again without it, with a weak L2
penalty, so that they are not shrunk.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from afarm import standard_error

FOLDS = 5
GRID = tuple(10 ** (-2.5 + 0.25 * step) for step in range(13))
"""Inverse strengths of the L1 penalty, per pair, the sparsest first."""
WEAK = 10.0
"""The inverse strength of the L2 penalty on what was chosen."""
DIGITS = 2


def fit_weights(
    differences: Sequence[Sequence[float]], second: Sequence[bool], tasks: Sequence[str]
) -> tuple[list[float], float]:
    """Return each candidate's weight, in log odds with 2 digits, 0 if not chosen, and the log loss.

    That is the cross-validated one of choosing them; a coin's is log 2 = 0.693. `tasks` names each pair's instruction.
    """
    import numpy as np

    x, y = np.asarray(differences, dtype=float), np.asarray(second)
    places = {task: number for number, task in enumerate(sorted(set(tasks)))}  # pairs of an instruction share a fold
    folds = np.asarray([places[task] % FOLDS for task in tasks])
    losses: list[list[float]] = [[math.log(2)] * len(y)]  # no candidate: a coin
    for strength in GRID:
        of_pairs = np.zeros(len(y))
        for fold in range(min(FOLDS, len(places))):
            held = folds == fold
            weights = _fit(x[~held], y[~held], strength * int((~held).sum()), sparse=True)
            logits = (x[held] @ weights).tolist()
            of_pairs[held] = [pair_loss(*row) for row in zip(logits, y[held].tolist(), strict=True)]
        losses.append(of_pairs.tolist())
    means = [fmean(row) for row in losses]
    best = min(range(len(means)), key=means.__getitem__)
    slack = standard_error(losses[best], tasks) or 0.0
    chosen = next(n for n, mean in enumerate(means) if mean <= means[best] + slack)
    if not chosen:
        return [0.0] * x.shape[1], means[0]
    support = np.flatnonzero(_fit(x, y, GRID[chosen - 1] * len(y), sparse=True))
    weights = np.zeros(x.shape[1])
    weights[support] = _fit(x[:, support], y, WEAK, sparse=False)
    return [round(float(weight), DIGITS) for weight in weights], means[chosen]


def _fit(x: Any, y: Any, inverse: float, *, sparse: bool) -> Any:
    """Fit on the pairs and their mirror images, so that turning a pair turns its probability."""
    import numpy as np
    from sklearn.linear_model import LogisticRegression

    both, labels = np.vstack([x, -x]), np.concatenate([y, ~y])
    model = LogisticRegression(
        C=inverse / 2, l1_ratio=1.0 if sparse else 0.0, solver="liblinear", fit_intercept=False, tol=1e-6, max_iter=2000
    )
    return model.fit(both, labels).coef_[0]


def pair_loss(logit: float, second: bool) -> float:
    """Return −log of the probability of a label, given the log odds of output 2."""
    toward = logit if second else -logit
    return max(0.0, -toward) + math.log1p(math.exp(-abs(toward)))


def fit_slope(values: Sequence[float], second: Sequence[bool]) -> float:
    """Fit the one weight of a single difference, in log odds per unit."""
    import numpy as np

    if not any(values):
        return 0.0
    return float(_fit(np.asarray(values, dtype=float)[:, None], np.asarray(second), WEAK, sparse=False)[0])
