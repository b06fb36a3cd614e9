"""Plots of results over seeds, as SVG with Matplotlib (the extra `plots`), and the text of such figures."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from afarm.evaluation.statistics.intervals import mean

COLOURS = ("#2563a8", "#c2571a")
INK = "#444444"


def over_seeds(values: Sequence[float], spec: str) -> str:
    """Write the mean over seeds with its standard error, if there are several."""
    found = mean(values)
    error = f" ± {found.error:{spec.lstrip('+')}}" if found.error is not None else ""
    return f"{found.value:{spec}}{error}"


def half_interval(values: Sequence[float]) -> float:
    """Return half of the 95% interval of the mean; 0 for one seed."""
    found = mean(values)
    return 0.0 if found.high is None else found.high - found.value


def plot_points(points: Mapping[str, tuple[float, float, float]], titles: tuple[str, str], path: Path) -> None:
    """Draw named points with the half of their vertical intervals."""
    figure, [axes] = _figure(1)
    middle = statistics.fmean(x for x, _, _ in points.values())
    height = max(y for _, y, _ in points.values()) - min(y for _, y, _ in points.values())
    free = {-1: float("inf"), 1: float("inf")}  # above which no name stands yet, on either side of its point
    for name, (x, y, half) in sorted(points.items(), key=lambda point: -point[1][1]):
        side = -1 if x > middle + 3 else 1
        free[side] = min(y, free[side] - height / 18)
        axes.errorbar(x, y, yerr=half, fmt="o", capsize=3, color=COLOURS[0])
        axes.annotate(
            name,
            (x, free[side]),
            xytext=(8 * side, 0),
            textcoords="offset points",
            ha="left" if side == 1 else "right",
            va="center",
            fontsize=8,
            color=INK,
        )
    axes.set(xlabel=titles[0], ylabel=titles[1])
    _save(figure, path)


def _figure(panels: int) -> tuple[Any, list[Any]]:
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "afarm", "svg.fonttype": "path", "font.size": 9})
    from matplotlib import pyplot

    width = 3.2 * panels if panels > 1 else 5.6
    figure, axes = pyplot.subplots(1, panels, figsize=(width, 2.9 if panels > 1 else 4.2), squeeze=False)
    for one in axes[0]:
        one.spines[["top", "right"]].set_visible(False)
        one.grid(alpha=0.25)
    return figure, list(axes[0])


def _save(figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None}, facecolor="white")
