"""The fit of a pool to people's labels; what the labels do not tell is held at its prior.

For a person's label of a pair, with the verdicts v of the members m for its second output,

    P(second) = Σ w_m · [u_m · σ(a + t) + (1 − u_m) · σ(t − a)],    u = ½ + ρ (v − ½),

with a = log((1 − noise) / noise) and t = length · z + position · s: what the calibrated pool would draw. z is the log2
of the ratio of the lengths (second over first, in characters, each with 1 added), and s is 1 if the second output was
shown first, −1 if the first was. Verdicts are draws as well. ρ, their reliability (split-half, from both orders of
each pair), keeps their own chance from being counted as noise a second time. Weights are n_m · exp(f_role + e_m) over
their sum, n_m how often the pool names the member; noise is σ(η) / 2.
All parameters have normal priors around 0: equal weights, a quarter flipped (the paper's), no tilt.

Source: the form of noise is that of Dubois et al. 2023 (AlpacaFarm), section 3.2; ρ is Spearman and Brown's (1910).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from afarm import JudgedPair, PluginError
from afarm_plugins.calibration.people import is_for_second

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

ROLE, MEMBER, NOISE, LENGTH, POSITION = "role", "member", "noise", "length", "position"

SPREAD: Mapping[str, float] = {ROLE: 1.0, MEMBER: 0.5, NOISE: 1.5, LENGTH: 1.0, POSITION: 1.0}
"""Standard deviations of priors: of log-weights, of log-odds of twice the noise, and of log-odds."""

TOLD = 0.25
"""Least share of a parameter's prior variance that labels take away; below, it stays at its prior."""

FLOOR = 1e-9


@dataclass(frozen=True, slots=True)
class PoolVerdicts:
    """The verdicts of a pool's members on pairs: wins of the second output, [pairs, members, orders].

    The first order shows the canonical first output first. 0.5 stands for a draw, or for no answer, which `unread`
    counts. `roles` and `often` [members] are the members' families and how often the pool names them.
    """

    members: Sequence[str]
    roles: Sequence[str]
    often: Sequence[int]
    wins: Array
    unread: int = 0


@dataclass(frozen=True)
class Labelled:
    """People's labels beside the pool's verdicts. Arrays are [labels], `verdicts` [labels, members].

    `second` is 1 for the second output, `ratio` the log2 ratio of lengths, `shown` as in `PersonLabel`, `cluster` the
    number of the instruction, `pair` that of the pair. `reliability` is that of one order's verdicts.
    """

    verdicts: Array
    second: Array
    ratio: Array
    shown: Array
    cluster: Indices
    pair: Indices
    roles: Sequence[str]
    often: Array
    reliability: float

    @classmethod
    def of(cls, labels: Sequence[JudgedPair], pool: PoolVerdicts) -> Labelled:
        """Lay people's labels beside verdicts on the same pairs, in the order of the pairs' ids."""
        ids = {id: place for place, id in enumerate(sorted({label.pair.id for label in labels}))}
        names = {id: place for place, id in enumerate(sorted({label.pair.instruction.id for label in labels}))}
        pair = np.array([ids[label.pair.id] for label in labels])
        shown = np.array([{"12": -1.0, "21": 1.0}.get(label.preference.order, 0.0) for label in labels])
        often = np.array(pool.often, dtype=np.float64)
        reliability = split_half(pool.wins, often / often.sum())
        # People's order if it is known: its verdicts are half as many.
        one, both = reliability, 2 * reliability / (1 + reliability)
        seen = pool.wins[pair, :, (shown > 0).astype(int)]
        canonical = [label.pair.canonical for label in labels]
        verdicts = np.where(
            shown[:, None] == 0, 0.5 + both * (pool.wins[pair].mean(axis=2) - 0.5), 0.5 + one * (seen - 0.5)
        )
        return cls(
            verdicts,
            np.array([float(is_for_second(label)) for label in labels]),
            np.array([math.log2((1 + len(second)) / (1 + len(first))) for first, second in canonical]),
            shown,
            np.array([names[label.pair.instruction.id] for label in labels]),
            pair,
            pool.roles,
            often,
            reliability,
        )

    def __getitem__(self, some: NDArray[np.bool_]) -> Labelled:
        """Return some of the labels."""
        names = ("verdicts", "second", "ratio", "shown", "cluster", "pair")
        return replace(self, **{name: getattr(self, name)[some] for name in names})

    @cached_property
    def families(self) -> list[str]:
        """The roles, each once."""
        return list(dict.fromkeys(self.roles))

    @cached_property
    def kinds(self) -> list[str]:
        """The kind of each parameter, in the order of the vector."""
        return [ROLE] * len(self.families) + [MEMBER] * len(self.roles) + [NOISE, LENGTH, POSITION]

    @cached_property
    def spread(self) -> Array:
        """The standard deviation of each parameter's prior."""
        return np.array([SPREAD[kind] for kind in self.kinds])

    @cached_property
    def family_indicators(self) -> Array:
        """Indicators [members, families]: 1 where the member belongs to the family."""
        return np.array([[float(role == family) for family in self.families] for role in self.roles])


def split_half(wins: Array, weights: Array) -> float:
    """Correlate the mean verdicts of both orders: the reliability of one, from 0.05 to 1."""
    one, other = (weights @ wins[:, :, order].T for order in (0, 1))
    spread = (one.var() + other.var()) / 2
    shared = ((one - one.mean()) * (other - other.mean())).mean()
    return float(np.clip(shared / spread, 0.05, 1.0)) if spread > 0 else 1.0


# ------------------------------------------------------------------------------------------------------- the model


def flip_rate(eta: float) -> float:
    """Return the flip rate for a parameter: 0.25 at 0, strictly between 0 and 0.5."""
    return 0.25 * (1 + float(np.tanh(eta / 2)))


def member_weights(theta: Array, data: Labelled) -> Array:
    """Return the members' weights, whose sum is 1."""
    families = len(data.families)
    logs = data.family_indicators @ theta[:families] + theta[families : families + len(data.roles)]
    weights: Array = data.often * np.exp(logs - logs.max())
    return weights / weights.sum()


def label_probabilities(theta: Array, data: Labelled) -> Array:
    """Return the probability of the second output under the calibrated pool, [labels]."""
    return _forward(theta, data)[0]


def _forward(theta: Array, data: Labelled) -> tuple[Array, Array, Array, Array, Array]:
    """Return P, the weights, σ(a + t), σ(t − a) and the weighted verdict, for P and its gradient."""
    noise = flip_rate(theta[-3])
    sure, tilt = np.log((1 - noise) / noise), theta[-2] * data.ratio + theta[-1] * data.shown
    kept, turned = _sigmoid(sure + tilt), _sigmoid(tilt - sure)
    weights = member_weights(theta, data)
    mixed = data.verdicts @ weights
    return np.clip(mixed * kept + (1 - mixed) * turned, FLOOR, 1 - FLOOR), weights, kept, turned, mixed


def loss_and_gradient(theta: Array, data: Labelled, counts: Array) -> tuple[float, Array]:
    """Return the negative log posterior of labels that count so often, and its gradient [parameters]."""
    p, weights, kept, turned, mixed = _forward(theta, data)
    loss = -float(counts @ (data.second * np.log(p) + (1 - data.second) * np.log(1 - p)))
    by_p = -counts * (data.second - p) / (p * (1 - p))
    by_log_weight = weights * (data.verdicts.T @ (by_p * (kept - turned)) - by_p @ ((kept - turned) * mixed))
    at_kept, at_turned = mixed * kept * (1 - kept), (1 - mixed) * turned * (1 - turned)
    noise = flip_rate(theta[-3])
    by_eta = -2 * noise * (0.5 - noise) / (noise * (1 - noise))  # of a, through the noise
    by_tilt = by_p * (at_kept + at_turned)
    gradient = np.concatenate(
        [
            data.family_indicators.T @ by_log_weight,
            by_log_weight,
            [float(by_p @ (at_kept - at_turned)) * by_eta, by_tilt @ data.ratio, by_tilt @ data.shown],
        ]
    )
    return loss + 0.5 * float(((theta / data.spread) ** 2).sum()), gradient + theta / data.spread**2


def _sigmoid(x: Array) -> Array:
    return 0.5 * (1 + np.tanh(x / 2))


# --------------------------------------------------------------------------------------------------------- the fit


@dataclass(frozen=True)
class PoolFit:
    """A fit: the parameters, which of them the labels tell (`free`), and what they tell of each (`told`).

    `told` is the share of the prior's variance that the labels take away, in [0, 1]; of weights, that of their
    contrast with the mean.
    """

    theta: Array
    free: NDArray[np.bool_]
    told: Array
    data: Labelled = field(repr=False)

    @property
    def calibration(self) -> tuple[Array, float, float, float]:
        """The weights [members], the noise, the tilt by length and that by position."""
        noise, length, position = flip_rate(self.theta[-3]), float(self.theta[-2]), float(self.theta[-1])
        return member_weights(self.theta, self.data), noise, length, position


def fit_pool(data: Labelled) -> PoolFit:
    """Fit all parameters, then once more those that the labels tell, the others at their priors."""
    everything = np.ones(len(data.kinds), dtype=bool)
    everything[-1] = bool(data.shown.any())
    everything[-2] = bool(data.ratio.any())
    counts = np.ones(len(data.second))
    theta = maximise(data, counts, everything)
    told = _information(theta, data, everything)
    free = everything & (told >= TOLD)
    return PoolFit(maximise(data, counts, free), free, told, data)


def maximise(data: Labelled, counts: Array, free: NDArray[np.bool_]) -> Array:
    """Return the parameters of the highest posterior, those that are not `free` at 0."""
    if not free.any():
        return np.zeros(len(free))
    try:
        from scipy.optimize import minimize
    except ModuleNotFoundError as error:
        raise PluginError("calibrating a pool needs SciPy: pip install 'afarm[evaluation]'") from error

    def objective(some: Array) -> tuple[float, Array]:
        theta = np.zeros(len(free))
        theta[free] = some
        loss, gradient = loss_and_gradient(theta, data, counts)
        return loss, gradient[free]

    found = np.zeros(len(free))
    found[free] = minimize(objective, np.zeros(int(free.sum())), jac=True, method="L-BFGS-B").x
    return found


def _information(theta: Array, data: Labelled, free: NDArray[np.bool_]) -> Array:
    """Return the labels' information on each parameter, from the posterior's curvature (Laplace)."""
    size, step, counts = len(theta), 1e-4, np.ones(len(data.second))
    hessian = np.zeros((size, size))
    for place in range(size):
        above, below = theta.copy(), theta.copy()
        above[place] += step
        below[place] -= step
        gap = loss_and_gradient(above, data, counts)[1] - loss_and_gradient(below, data, counts)[1]
        hessian[place] = gap / (2 * step)
    hessian = (hessian + hessian.T) / 2
    values, vectors = np.linalg.eigh(hessian)
    posterior = vectors @ np.diag(1 / np.maximum(values, 1 / data.spread.max() ** 2)) @ vectors.T
    prior = np.diag(data.spread**2)
    told = np.zeros(size)
    families, members = len(data.families), len(data.roles)
    for place in map(int, np.flatnonzero(free)):
        # What a parameter is told of: of a weight, its contrast with the mean of those beside it.
        contrast = np.zeros(size)
        contrast[place] = 1.0
        if place < families:
            contrast[:families] -= 1 / families
        elif place < families + members:
            alike = [role == data.roles[place - families] for role in data.roles]
            contrast[families : families + members] -= np.array(alike) / sum(alike)
        if (before := float(contrast @ prior @ contrast)) >= FLOOR:
            told[place] = np.clip(1 - contrast @ posterior @ contrast / before, 0.0, 1.0)
    return told


def resampled_fits(fit: PoolFit, resamples: int, seed: int) -> list[Array]:
    """Fit again to resampled instructions, with the same parameters free. Returns the parameters of each."""
    generator = np.random.default_rng(seed)
    clusters = int(fit.data.cluster.max()) + 1
    found = []
    for _ in range(resamples):
        drawn = np.bincount(generator.integers(clusters, size=clusters), minlength=clusters)
        found.append(maximise(fit.data, drawn[fit.data.cluster].astype(np.float64), fit.free))
    return found


def predict_held_out(data: Labelled, folds: Indices) -> Array:
    """Predict each label by a fit that saw none of its fold's instructions; `folds` [labels]."""
    found = np.zeros(len(data.second))
    for fold in np.unique(folds):
        inside = folds == fold
        found[inside] = label_probabilities(fit_pool(data[~inside]).theta, data[inside])
    return found
