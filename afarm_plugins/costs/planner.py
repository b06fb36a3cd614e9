"""A plan of simulated runs, finalists and human labels for a budget, from power arithmetic.

    seeds      two candidates' simulated win rates differ by d: n(d, √2 · s_run), paired by seed
    finalists  the fewest F with P(the best by people is among the F best simulated) ≥ 90%
    labels     two finalists' win rates by people differ by d: n(d, s_label), paired by instruction

n is `afarm.sample_size`. Simulated and human win rates of the candidates are jointly normal, with correlation
faith · √(τ² / (τ² + s_run² / seeds)), τ the spread of the candidates: chance of seeds makes a simulation less faithful.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from afarm import sample_size
from afarm_plugins.costs.settings import CostsConfig

SURE = 0.9
"""The probability that the best candidate by people is among the finalists."""

DRAWS = 40_000

LARGEST = 50.0
"""The largest difference of win rates that is planned for, in points."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Seeds per candidate, finalists and human labels for each, dollars, and people's minutes."""

    difference: float
    seeds: int
    runs: int
    finalists: int
    labels_each: int
    simulation: float
    people: float
    minutes: float

    @property
    def total(self) -> float:
        return self.simulation + self.people

    def fits(self, config: CostsConfig) -> bool:
        """Tell if the dollars and the minutes that there are suffice; 0 of either is no limit."""
        return not (0 < config.spend < self.total or 0 < config.minutes < self.minutes)

    def cells(self) -> Mapping[str, float]:
        """Return the figures of the plan by their names in a table."""
        return {
            "difference, points": self.difference,
            "seeds": self.seeds,
            "simulated runs": self.runs,
            "finalists": self.finalists,
            "labels for each": self.labels_each,
            "human labels": self.finalists * self.labels_each,
            "people, minutes": round(self.minutes),
            "simulation, $": round(self.simulation, 2),
            "people, $": round(self.people, 2),
            "total, $": round(self.total, 2),
        }


def plan_difference(config: CostsConfig, run: float, run_spread: float, difference: float) -> Plan:
    """Plan an evaluation that detects a difference, in points, in simulation and by people.

    A simulated `run` costs so many dollars, and win rates have a standard deviation of `run_spread` points over seeds.
    """
    seeds = sample_size(difference, math.sqrt(2) * run_spread)
    shared = config.spread**2 / (config.spread**2 + run_spread**2 / seeds)
    finalists = finalists_needed(config.candidates, round(config.faith * math.sqrt(shared), 2))
    labels = sample_size(difference, config.label_spread)
    runs = config.candidates * seeds
    people = finalists * labels * config.dollars_per_label
    minutes = finalists * labels * config.label_seconds / 60
    return Plan(difference, seeds, runs, finalists, labels, runs * run, people, minutes)


def plan_within(config: CostsConfig, run: float, run_spread: float) -> Plan | None:
    """Plan for the smallest difference, to a tenth of a point, that the budget pays; None for none."""
    plans = (plan_difference(config, run, run_spread, tenth / 10) for tenth in range(1, round(10 * LARGEST) + 1))
    return next((plan for plan in plans if plan.fits(config)), None)


def finalists_needed(candidates: int, correlation: float) -> int:
    """Return the fewest finalists among which the best by people is in `SURE` of cases; two at least."""
    counts = range(2, candidates + 1)
    return next((n for n in counts if chance_of_the_best(candidates, n, correlation) >= SURE), candidates)


def chance_of_the_best(candidates: int, finalists: int, correlation: float) -> float:
    """Return the probability that the best by people is among so many finalists."""
    return sum(_places_of_the_best(candidates, correlation)[:finalists])


@lru_cache(maxsize=256)
def _places_of_the_best(candidates: int, correlation: float) -> tuple[float, ...]:
    """Return how often the best by people is simulated as first, second …, by draws."""
    import numpy as np

    draw = np.random.default_rng(0)
    people = draw.standard_normal((DRAWS, candidates))
    chance = draw.standard_normal((DRAWS, candidates))
    simulated = correlation * people + math.sqrt(max(0.0, 1 - correlation**2)) * chance
    best = simulated[np.arange(DRAWS), people.argmax(axis=1)]
    places = (simulated > best[:, None]).sum(axis=1)
    return tuple(float(share) for share in np.bincount(places, minlength=candidates) / DRAWS)
