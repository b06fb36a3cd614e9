"""Metrics of evaluations: the naming contract, and means, errors and intervals that need no numpy.

An evaluator puts its main metric first, or names it like itself. Names beside it say what belongs to it: `<metric>_se`,
or else what follows and ends in `_error` or `_se`; `<metric>_reference`; `<metric>_difference`, the paired one, with
`<metric>_difference_se`. Text under a name that ends in `_warning` is a flag.
An evaluator whose main metric is a mean may give what it is the mean of in rows: the id of the `instruction`, and the
value under the metric's name. Systems are then paired by instruction.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from statistics import StatisticsError, correlation
from typing import Any, Literal

from afarm.storage.record_fields import WIN_RATES

ERROR_SUFFIXES = ("_se", "_error")
NORMAL_95 = 1.959963984540054
"""The normal quantile of a 95% interval, in standard errors to either side."""
NORMAL_POWER_80 = 0.841621
WIN_RATE = "win_rate"
"""The evaluator that methods are compared by unless another is named, and its main metric."""
BY_PEOPLE = "prediction_powered"
"""The name of the win rate by people that is estimated from a few of their labels and many simulated ones."""


@dataclass(frozen=True, slots=True)
class MainMetric:
    """A main metric: `value`, its standard `error`, the `reference`'s, and the paired `difference`."""

    name: str
    value: float
    error: float | None
    reference: float | None
    difference: float | None
    difference_error: float | None

    @property
    def is_win_rate(self) -> bool:
        """Tell from its name if it is a win rate in percent."""
        return self.name.endswith(WIN_RATES)

    @property
    def unit(self) -> Literal["", "%"]:
        """The unit that a table names: "%" of a win rate, else none."""
        return "%" if self.is_win_rate else ""

    @property
    def text(self) -> str:
        """The value with its error, a win rate in percent."""
        if not self.is_win_rate:
            return with_error(self.value, self.error)
        return f"{self.value:.1f} %" + ("" if self.error is None else f" ± {self.error:.1f}")


def main_metric(evaluator: str, metrics: Mapping[str, Any]) -> MainMetric | None:
    """Find the main metric of an evaluation; None if it has none."""
    name = evaluator if evaluator in metrics else next(iter(metrics), "")
    value = finite_number(metrics.get(name))
    if value is None:
        return None
    after = list(metrics)[list(metrics).index(name) + 1 :]
    errors = [finite_number(metrics[other]) for other in takewhile(lambda other: other.endswith(ERROR_SUFFIXES), after)]
    error = next((found for found in errors if found is not None), None)
    beside = (finite_number(metrics.get(f"{name}_{what}")) for what in ("reference", "difference", "difference_se"))
    return MainMetric(name, value, error, *beside)


def with_error(value: float, error: float | None) -> str:
    """Write a figure with its standard error, if it has one."""
    return f"{value:.3f}" if error is None else f"{value:.3f} ± {error:.3f}"


def warnings(metrics: Mapping[str, Any]) -> dict[str, str]:
    """The warnings among an evaluation's metrics, by name."""
    return {name: str(text) for name, text in metrics.items() if name.endswith("_warning") and text}


def finite_number(value: object) -> float | None:
    """Return `value` if it is a finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


def standard_error(values: Sequence[float], clusters: Sequence[Hashable] | None = None) -> float | None:
    """The standard error of the mean of `values`, in their unit: s / √n with n − 1 in s.

    `clusters` names the instruction (or pair) of each: several labels of one, by annotators or seeds, are not
    independent (Liang and Zeger 1986). None for a single instruction.
    """
    if len(values) < 2:
        return None
    n = len(values)
    mean = math.fsum(values) / n
    residuals: dict[Hashable, float] = defaultdict(float)
    for cluster, value in zip(range(n) if clusters is None else clusters, values, strict=True):
        residuals[cluster] += value - mean
    count = len(residuals)
    if count < 2:
        return None
    return math.sqrt(math.fsum(r**2 for r in residuals.values()) * count / (count - 1)) / n


def group_means(names: Iterable[str], values: Iterable[float]) -> dict[str, float]:
    """Average the values of each name; names are in the order of their first value."""
    found: dict[str, list[float]] = defaultdict(list)
    for name, value in zip(names, values, strict=True):
        found[name].append(value)
    return {name: math.fsum(given) / len(given) for name, given in found.items()}


@dataclass(frozen=True, slots=True)
class Estimate:
    """A statistic over `n` labels or systems with its standard error (None if it is unknown)."""

    value: float
    error: float | None
    n: int


def clustered_mean(values: Iterable[tuple[Hashable, float]], scale: float = 1.0) -> Estimate | None:
    """The mean of (cluster, value)s times `scale`, with the error clustered; None if there is none.

    With one value per cluster the error is the usual one: s / √n with n − 1 in s.
    """
    clusters_and_values = list(values)
    if not clusters_and_values:
        return None
    mean = math.fsum(value for _, value in clusters_and_values) / len(clusters_and_values)
    error = standard_error([value for _, value in clusters_and_values], [cluster for cluster, _ in clusters_and_values])
    return Estimate(scale * mean, None if error is None else scale * error, len(clusters_and_values))


def pearson(a: Sequence[float], b: Sequence[float]) -> Estimate | None:
    """Pearson's r over paired values, without an error; None if one side does not vary."""
    try:
        return Estimate(correlation(a, b), None, len(a))
    except StatisticsError:
        return None


def rank_transform(values: Sequence[float]) -> list[float]:
    """Ranks from 1; equal values share their mean rank."""
    return [1 + sum(v < value for v in values) + (sum(v == value for v in values) - 1) / 2 for value in values]


def interval(rate: float, error: float | None, n: int | None) -> tuple[float, float] | None:
    """The 95% interval of a win rate in percent, from its standard error over `n` instructions.

    It is the t interval after two won and two lost instructions are added, so that 25 wins of 25 are not taken to be
    sure to go on (Agresti and Coull 1998): a single instruction has an interval too, and no error. Without n, ± 1.96
    errors.
    """
    if n == 1:
        error = 0.0
    if error is None:
        return None
    if not n:
        return within_percent(rate - NORMAL_95 * error, rate + NORMAL_95 * error)
    added, total = 4, n + 4
    mean = (n * rate + 2 * 100) / total
    squares = error**2 * n * (n - 1) + n * (rate - mean) ** 2 + 2 * mean**2 + 2 * (100 - mean) ** 2
    spread = math.sqrt(squares / (n + added - 1) / total)
    t = student_quantile(NORMAL_95, total - 1)
    return within_percent(mean - t * spread, mean + t * spread)


def within_percent(low: float, high: float) -> tuple[float, float]:
    """Return the ends of an interval in percent, cut at 0 and 100, of which formulas do not know."""
    return max(0.0, low), min(100.0, high)


def student_quantile(z: float, freedom: int) -> float:
    """Student's quantile from the normal one, `z`: its series in 1 / freedom (Fisher and Cornish 1960).

    With a freedom of 9 it is 0.2% too small, with one of 4 2%.
    """
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def win_rate_interval(metrics: Mapping[str, Any]) -> tuple[float, float] | None:
    """The 95% interval of an evaluation's win rate, in percent; None if its error or its n is unknown."""
    rate = finite_number(metrics.get("win_rate"))
    n = metrics.get("n_instructions", metrics.get("n_total"))
    return None if rate is None else interval(rate, finite_number(metrics.get("standard_error")), n)


def undetectable_difference(metrics: Mapping[str, Any]) -> str:
    """State the minimum detectable difference of a win rate that is not clear from 50%; else empty."""
    between, error = win_rate_interval(metrics), finite_number(metrics.get("standard_error"))
    n = metrics.get("n_instructions", metrics.get("n_total"))
    if between is None or not error or not n or not between[0] <= 50 <= between[1]:
        return ""
    points = (student_quantile(NORMAL_95, n - 1) + student_quantile(NORMAL_POWER_80, n - 1)) * error
    if points >= 50:  # no win rate is further from even
        return f"with {n:,} instructions no difference could be told"
    return f"with {n:,} instructions a difference under {points:.1f} points would go unseen"
