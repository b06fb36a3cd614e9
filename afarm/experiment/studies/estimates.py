"""Estimates for the analysis of studies; numpy is loaded when one is called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import le
from typing import Literal

from afarm.evaluation.metrics import NORMAL_95, Estimate, within_percent
from afarm.experiment.studies.study import Bounded

CORRELATIONS = {"Spearman": "spearman", "Kendall": "kendall", "R²": "pearson"}
"""The correlations of two boards as tables call them; R² is the square of Pearson's."""

Board = Sequence[float] | Sequence[Sequence[float]]
"""Figures of systems, as [systems] or [systems, instructions]; NaN is absent."""


def mean_interval(values: Sequence[float]) -> Bounded:
    """Estimate a mean with Student's 95% interval, in the unit of its values; of one value without.

    NaN is absent. Raises `DataError` if there is none, and `PluginError` without the extra `evaluation`.
    """
    from afarm.evaluation.statistics.intervals import mean

    found = mean(values)
    return Bounded(found.value, found.low, found.high)


def mean_percent(values: Sequence[float]) -> Bounded:
    """Estimate a mean of values in percent as `mean_interval` does, its interval cut at 0 and 100."""
    value, low, high = mean_interval(values)
    return Bounded(value) if low is None or high is None else Bounded(value, *within_percent(low, high))


def undominated(costs: Mapping[str, Sequence[float]]) -> set[str]:
    """Name those that no other is as cheap as in every one of their costs, and cheaper in one.

    A quality is a cost with its sign turned.
    """
    return {
        name
        for name, ours in costs.items()
        if not any(theirs != ours and all(map(le, theirs, ours)) for theirs in costs.values())
    }


def sample_size(difference: float, deviation: float) -> int:
    """Count the values whose mean shows a difference from 0 with 80% power at the 95% level.

    `deviation` is the values' standard deviation, in the difference's unit. Raises `DataError` for a difference of 0.
    """
    from afarm.evaluation.statistics.intervals import instructions_needed

    return instructions_needed(difference, deviation)


def decided_side(values: Sequence[float], *, level: float = 0.95) -> Literal["higher", "lower"] | None:
    """Decide by a confidence sequence which side of 0.5 a mean is on, from values in [0, 1] in random order.

    None while it is open. However often one looks, it is wrong with probability 1 − `level` at most. Of two systems,
    give (1 + first − second) / 2. Raises `DataError` for a value out of range.
    """
    from afarm.evaluation.statistics.sequential import decide

    return decide(values, level=level).side


def rank_of_each(board: Sequence[Sequence[float]]) -> list[Bounded]:
    """Rank systems by their mean over instructions, 1 for the highest, with 95% intervals of the ranks.

    `board` is [systems, instructions]. Raises `DataError` if a system has fewer than two instructions.
    """
    from afarm.evaluation.statistics.rank_intervals import rank_intervals

    return [Bounded(rank.rank, rank.low, rank.high) for rank in rank_intervals(board)]


def correlate_boards(first: Board, second: Board) -> Mapping[str, Bounded | None]:
    """Correlate two boards of the same systems: Spearman's ρ, Kendall's τ and R².

    Each has its 95% interval, over instructions if the boards have them, else over systems. None for a board that does
    not vary. Raises `DataError` for fewer than three systems.
    """
    from afarm.evaluation.statistics.correlation import correlation

    found: dict[str, Bounded | None] = {}
    for name, kind in CORRELATIONS.items():
        one = correlation(first, second, kind)  # type: ignore[arg-type]
        figure = None if one.value is None else Bounded(one.value, one.low, one.high)
        found[name] = _squared(figure) if name == "R²" and figure else figure
    return found


def _squared(figure: Bounded) -> Bounded:
    value, low, high = figure
    if low is None or high is None:
        return Bounded(value * value)
    ends = sorted([low * low, high * high])
    return Bounded(value * value, 0.0 if low <= 0 <= high else ends[0], ends[1])


def as_bounded(figure: Estimate | None) -> Bounded | None:
    """Return an estimate with its 95% interval, which begins at 0 unless the estimate is negative."""
    if figure is None:
        return None
    if figure.error is None:
        return Bounded(figure.value)
    half = NORMAL_95 * figure.error
    low = figure.value - half
    return Bounded(figure.value, max(0.0, low) if figure.value >= 0 else low, figure.value + half)
