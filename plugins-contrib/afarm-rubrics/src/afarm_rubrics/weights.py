"""Weights of candidate principles: sparse logistic regression on what one output alone meets.

With x the difference (output 2 less output 1) of what is met, 1, 0 or −1 by candidate, P(output 2 is better) =
sigmoid(w · x). An L1 penalty chooses candidates, which are fitted again without it, with a weak L2 penalty (the relaxed
lasso, Meinshausen 2007). The penalty is that of the smallest cross-validated log loss, over folds of instructions.
First a randomisation test asks if the labels follow any candidate: of a coin's labels 2.5 % pass it at most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

FOLDS = 5
PENALTIES = tuple(0.25 * 10 ** (-0.2 * step) for step in range(13))
"""L1 penalties of a weight of 1, in nats a label, the largest first."""
WEAK = 10.0
"""The inverse strength of the L2 penalty on what was chosen."""
DIGITS = 2
LEVEL, FLIPS = 0.025, 9_999
"""The share of coins that may pass the randomisation test, and its draws."""


def fit_weights(
    differences: Sequence[Sequence[float]], second: Sequence[bool], tasks: Sequence[str]
) -> tuple[list[float], float]:
    """Return each candidate's weight, in log odds with 2 digits, 0 if not chosen, and the log loss.

    That is the smallest cross-validated one, so it is optimistic; a coin's is log 2 = 0.693. All weights are 0 if the
    labels may be a coin's. `tasks` names each pair's task.
    """
    import numpy as np

    x, y = np.asarray(differences, dtype=float), np.asarray(second)
    _, clusters = np.unique(tasks, return_inverse=True)
    folds = clusters % FOLDS  # pairs of a task share one
    logits = np.zeros((len(PENALTIES), len(y)))
    for fold in range(folds.max() + 1):
        held = folds == fold
        for number, penalty in enumerate(PENALTIES):
            logits[number, held] = x[held] @ _choose(x[~held], y[~held], penalty)
    losses = [fmean(map(pair_loss, row, second)) for row in logits.tolist()]
    best = min(range(len(losses)), key=losses.__getitem__)
    weights = _choose(x, y, PENALTIES[best]) if coin_probability(x, y, clusters) <= LEVEL else [0.0] * x.shape[1]
    return [round(float(weight), DIGITS) for weight in weights], losses[best]


def coin_probability(x: Any, y: Any, clusters: Any) -> float:
    """Return the probability that a coin's labels follow any candidate as closely as these do.

    The labels of a task are flipped together, at random. What is compared is the largest sum, over candidates, of
    differences towards the label, in units of its spread (Westfall and Young 1993).
    """
    import numpy as np

    sums = np.zeros((clusters.max() + 1, x.shape[1]))
    np.add.at(sums, clusters, np.where(y, 1.0, -1.0)[:, None] * x)
    sums /= np.maximum(np.sqrt((sums**2).sum(axis=0)), 1e-9)
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (FLIPS, len(sums)))
    drawn = np.abs(signs @ sums).max(axis=1)
    return float((1 + (drawn >= np.abs(sums.sum(axis=0)).max() - 1e-9).sum()) / (FLIPS + 1))


def _choose(x: Any, y: Any, penalty: float) -> Any:
    """Choose candidates by an L1 penalty, and fit those alone."""
    import numpy as np

    weights = np.zeros(x.shape[1])
    support = np.flatnonzero(_fit(x, y, 1 / (penalty * len(y)), sparse=True))
    if support.size:
        weights[support] = refit(x[:, support], y)
    return weights


def refit(x: Any, y: Any) -> Any:
    """Fit a weight for each column by the weak L2 penalty alone."""
    return _fit(x, y, WEAK, sparse=False)


def _fit(x: Any, y: Any, inverse: float, *, sparse: bool) -> Any:
    """Fit on the pairs and their mirror images, so that turning a pair turns its probability."""
    import numpy as np
    from sklearn.linear_model import LogisticRegression

    both, labels = np.vstack([x, -x]), np.concatenate([y, np.logical_not(y)])
    model = LogisticRegression(
        C=inverse / 2, l1_ratio=1.0 if sparse else 0.0, solver="liblinear", fit_intercept=False, tol=1e-6, max_iter=2000
    )
    return model.fit(both, labels).coef_[0]


def pair_loss(logit: float, second: bool) -> float:
    """Return −log of the probability of a label, given the log odds of output 2."""
    toward = logit if second else -logit
    return max(0.0, -toward) + math.log1p(math.exp(-abs(toward)))
