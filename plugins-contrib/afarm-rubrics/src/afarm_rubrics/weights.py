"""Weights of candidate principles: sparse logistic regression on what one output alone meets.

With x the difference (output 2 less output 1) of what is met, 1, 0 or −1 by candidate, P(output 2 is better) =
sigmoid(w · x). An L1 penalty chooses candidates, which are fitted again without it, with a weak L2 penalty (the relaxed
lasso, Meinshausen 2007). The penalty is that of the smallest cross-validated log loss, over folds of instructions. If
the labels are not shown to be explained better than by a coin there (by 1.96 standard errors), nothing is chosen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from afarm import NORMAL_95, standard_error

FOLDS = 5
PENALTIES = tuple(0.25 * 10 ** (-0.2 * step) for step in range(13))
"""L1 penalties of a weight of 1, in nats a label, the largest first."""
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
    logits = np.zeros((len(PENALTIES), len(y)))
    for fold in range(min(FOLDS, len(places))):
        held = folds == fold
        for number, penalty in enumerate(PENALTIES):
            logits[number, held] = x[held] @ _choose(x[~held], y[~held], penalty)
    losses = [fmean(map(pair_loss, row, second)) for row in logits.tolist()]
    best = min(range(len(losses)), key=losses.__getitem__)
    explained = [
        0.5 if logit == 0 else float((logit > 0) == label) for logit, label in zip(logits[best], y, strict=True)
    ]
    if fmean(explained) - 0.5 <= NORMAL_95 * (standard_error(explained, tasks) or 0.0):
        return [0.0] * x.shape[1], losses[best]
    return [round(float(weight), DIGITS) for weight in _choose(x, y, PENALTIES[best])], losses[best]


def _choose(x: Any, y: Any, penalty: float) -> Any:
    """Choose candidates by an L1 penalty, and fit those alone."""
    import numpy as np

    weights = np.zeros(x.shape[1])
    support = np.flatnonzero(_fit(x, y, 1 / (penalty * len(y)), sparse=True))
    if support.size:
        weights[support] = _fit(x[:, support], y, WEAK, sparse=False)
    return weights


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
