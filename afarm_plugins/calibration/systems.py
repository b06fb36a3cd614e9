"""Rankings of systems by a calibrated pool, and if they survive the uncertainty of its fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from afarm import Bounded, JudgedPair
from afarm_plugins.calibration.fit import Array, PoolFit, label_probabilities

TURNS = 0.025
"""The share of fits in which an order may turn and still counts as certain."""


@dataclass(frozen=True, slots=True)
class SystemRates:
    """Win rates [systems] in percent by people, the pool and the fit; and [fits, systems] by each refit."""

    systems: Sequence[str]
    pairs: Sequence[int]
    people: Array
    shipped: Array
    fitted: Array
    refitted: Array

    def interval(self, system: int) -> Bounded:
        """Return a system's win rate by the fit with its 95% interval over fits."""
        low, high = np.quantile(self.refitted[:, system], [0.025, 0.975])
        return Bounded(float(self.fitted[system]), float(low), float(high))

    def spearman(self) -> Bounded | None:
        """Correlate ranks by the fit and by people, with an interval over fits; None below three systems."""
        if len(self.systems) < 3:
            return None
        values = [_rank_correlation(rates, self.people) for rates in self.refitted]
        low, high = np.quantile(values, [0.025, 0.975])
        return Bounded(_rank_correlation(self.fitted, self.people), float(low), float(high))

    @property
    def same_order(self) -> float:
        """The share of fits that order all systems as the fit does."""
        order = np.argsort(self.fitted)
        return float((np.argsort(self.refitted, axis=1) == order).all(axis=1).mean())

    def turned(self) -> Mapping[tuple[str, str], float]:
        """Return pairs of systems, better first, whose order is not certain: the share of fits it turns in."""
        found = {}
        for one, two in combinations(np.argsort(-self.fitted), 2):
            share = float((self.refitted[:, one] < self.refitted[:, two]).mean())
            if share > TURNS:
                found[self.systems[one], self.systems[two]] = share
        return found


def rate_systems(labels: Sequence[JudgedPair], fit: PoolFit, refits: Sequence[Array]) -> SystemRates | None:
    """Rate the systems whose outputs people compared; None if pairs do not name two."""
    names = sorted({name for label in labels for name in (label.pair.generator_1, label.pair.generator_2)} - {""})
    if len(names) < 2:
        return None
    places = {name: place for place, name in enumerate(names)}
    met = np.zeros((len(names), len(labels)))  # 1 for the system of the second output, −1 for that of the first
    for number, label in enumerate(labels):
        first, second = label.pair.generator_1, label.pair.generator_2
        if first and second and first != second:
            met[places[second], number], met[places[first], number] = 1, -1
    counts = np.abs(met).sum(axis=1)
    if (counts == 0).any():
        return None

    def rates(p: Array) -> Array:
        return 100 * (0.5 + met @ (p - 0.5) / counts)

    data = fit.data
    return SystemRates(
        names,
        [len({label.pair.id for label, side in zip(labels, row, strict=True) if side}) for row in met],
        rates(data.second),
        rates(data.verdicts @ (data.often / data.often.sum())),
        rates(label_probabilities(fit.theta, data)),
        np.array([rates(label_probabilities(theta, data)) for theta in refits]),
    )


def _rank_correlation(one: Array, other: Array) -> float:
    ranks, others = (np.argsort(np.argsort(values)).astype(np.float64) for values in (one, other))
    return float(np.corrcoef(ranks, others)[0, 1])
