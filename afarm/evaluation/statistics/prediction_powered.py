"""Prediction-powered win rates: the human win rate from many simulated labels and a few human ones.

The simulated labels of all instructions give a mean that is precise and biased; the instructions that people labelled
too tell how biased. Simulated mean plus correction is unbiased whatever the judge is like, and the better the judge
follows people, the narrower. How much of the judge to use (`trust`) is fitted, so that a useless one costs next to
nothing.

Sources: Angelopoulos et al. 2023, "Prediction-powered inference"; Angelopoulos, Duchi and Zrnic 2023, "PPI++" (the
fitted weight), by the estimator of their package ppi-python.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri

from afarm.core.errors import DataError, PluginError
from afarm.evaluation.statistics.intervals import IntervalEstimate, plus_four_interval, t_quantile

QUARTILE = float(ndtri(0.75))
FEWEST = 10
"""Human-labelled instructions from which on their spread can be estimated."""


@dataclass(frozen=True, slots=True)
class PredictionPowered:
    """A prediction-powered estimate to quote, `combined`; `human` and `simulated` use one kind of labels.

    `n_human` instructions have both kinds, `n_simulated` only simulated ones. `trust`, from 0 to 1, is the weight of
    the simulated labels. `effective` is the number of human-labelled instructions that alone would be as precise as
    `combined`, and `saved` the number of them that need not be labelled.
    """

    combined: IntervalEstimate
    human: IntervalEstimate
    simulated: IntervalEstimate
    n_human: int
    n_simulated: int
    trust: float
    effective: float

    @property
    def saved(self) -> int:
        return max(0, math.floor(self.effective - self.n_human))


def prediction_powered(human: ArrayLike, simulated: ArrayLike) -> PredictionPowered:
    """Estimate the mean human label over all instructions from `human` and `simulated` [instructions].

    NaN is an absent label; several labels of an instruction are averaged first. The instructions that people label must
    be drawn at random: the hard ones alone do not tell how wrong the judge is on the others. The interval is t's; mean
    and weight have used up two of its degrees of freedom. If all human labels are the same, it is the
    `plus_four_interval` of them alone. Raises `DataError` if fewer than 10 instructions have both kinds of labels.
    """
    people, judge = np.asarray(human, dtype=np.float64), np.asarray(simulated, dtype=np.float64)
    if people.shape != judge.shape:
        raise DataError(f"human labels of {people.size} instructions cannot be paired with simulated of {judge.size}")
    both = ~np.isnan(people) & ~np.isnan(judge)
    rest = judge[np.isnan(people) & ~np.isnan(judge)]
    n = int(both.sum())
    if n < FEWEST:
        raise DataError(
            f"{n} instructions have human and simulated labels; at least {FEWEST} are needed to say how far the "
            "simulated ones can be trusted"
        )
    y, guess = people[both], judge[both]
    alone = plus_four_interval(y)
    if not len(rest):
        return PredictionPowered(alone, alone, plus_four_interval(guess), n, 0, 0.0, float(n))
    told = plus_four_interval(judge[~np.isnan(judge)])
    value, error, trust = _ppi(y, guess, rest)
    if not error or not alone.error:  # people agree throughout: the judge adds nothing, and neither is sure to go on
        return PredictionPowered(alone, alone, told, n, len(rest), 0.0, float(n))
    half = t_quantile(n - 2) * error
    combined = IntervalEstimate(value, error, value - half, value + half, n + len(rest), n + len(rest))
    effective = n * (alone.error / error) ** 2
    return PredictionPowered(combined, alone, told, n, len(rest), trust, effective)


def _ppi(y: Any, guess: Any, rest: Any) -> tuple[float, float, float]:
    """The estimate, its standard error, and the weight in [0, 1] of least variance (PPI++, section 6)."""
    try:
        with warnings.catch_warnings():  # importing it silences all warnings of the process
            import ppi_py
    except ModuleNotFoundError as lacking:
        raise PluginError(
            f"prediction-powered win rates need {lacking.name!r}: pip install 'afarm[evaluation]'"
        ) from lacking
    n, more = len(y), len(rest)
    spread = np.concatenate([guess, rest]).var(ddof=1)
    together = float(np.mean((y - y.mean()) * (guess - guess.mean())))
    trust = min(1.0, max(0.0, together / ((1 + n / more) * spread))) if spread else 0.0
    low, high = (float(end.item()) for end in ppi_py.ppi_mean_ci(y, guess, rest, alpha=0.5, lam=trust))
    # The library's interval is the normal one, and its spread divides by n: with few labels both are too small.
    error = (high - low) / 2 / QUARTILE * math.sqrt(n / (n - 2))
    return (low + high) / 2, error, float(trust)
