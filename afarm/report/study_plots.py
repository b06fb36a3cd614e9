"""Files of studies' plots, drawn by Matplotlib (the extra `plots`), with names beside points."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from afarm.experiment.studies.study import Bounded, StudyPlot
from afarm.storage.text import visible

COLOURS = ("#0a6c6d", "#c2571a", "#5a5fc0", "#b0407a", "#6f8419", "#2b8fc4", "#7a4a24", "#5d6d7e")
"""Those of `page.css` for a light ground."""

TICKS = 9
"""Ticks of a logarithmic axis, at most."""

ASIDE = 0.04
"""The distance of several series at one text of an axis, where they would hide each other, in distances of texts."""

NAME_MIDDLES = {
    "top right": (0.1, 0.05),
    "bottom right": (0.1, -0.05),
    "top left": (-0.1, 0.05),
    "bottom left": (-0.1, -0.05),
}
"""The middle of a name on each side of its point, about, in shares of the axes."""

STYLE: Mapping[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "afarm", "text.parse_math": False}
"""Settings of Matplotlib: text stays text, equal plots are equal files, and a "$" in a name is no formula."""


def can_draw() -> bool:
    """Tell if Matplotlib is there."""
    return find_spec("matplotlib") is not None


def draw_plot(plot: StudyPlot, path: Path) -> None:
    """Draw a plot in the format of the path's ending: svg, png or pdf."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.patheffects import withStroke

    with matplotlib.rc_context(dict(STYLE)):
        figure = Figure(figsize=(6.4, 4), layout="constrained")
        axes = figure.subplots()
        places = text_places(plot)
        for number, series in enumerate(plot.series):
            colour = COLOURS[number % len(COLOURS)]
            aside = ASIDE * (number - (len(plot.series) - 1) / 2) if places else 0.0
            axes.errorbar(
                [_axis_value(x, places) + aside for x in series.x],
                [y.value for y in series.y],
                yerr=_error_bars(series.y),
                xerr=_error_bars([x if isinstance(x, Bounded) else Bounded(0.0) for x in series.x]),
                fmt="o-" if series.joined and not series.fit else "o",
                capsize=3,
                color=colour,
                label=visible(series.name) or "_",
            )
            axes.plot([x for x, _ in series.fit], [y for _, y in series.fit], color=colour)
        axes.set(title=visible(plot.title), xlabel=visible(plot.x_title), ylabel=visible(plot.y_title))
        if places:
            axes.set_xticks(list(places.values()), [visible(text) for text in places])
        values = sorted({_axis_value(x, places) for series in plot.series for x in series.x})
        if plot.log_x and not (plot.diagonal or places) and values and values[0] > 0:
            shown: list[float] = []
            for value in values:  # nearer ones would overlap
                if not shown or TICKS * math.log(value / shown[-1]) >= math.log(values[-1] / values[0]):
                    shown.append(value)
            axes.set_xscale("log")
            axes.set_xticks(shown, [f"{value:g}" for value in shown])
            axes.minorticks_off()
        if plot.diagonal and plot.series:
            start = min(y.value for series in plot.series for y in series.y)
            axes.axline((start, start), slope=1, color="#888888", linewidth=1, linestyle="--", zorder=0)
            axes.set_aspect("equal", adjustable="datalim")
        if plot.level is not None and plot.series:
            axes.axhline(plot.level, color="#888888", linewidth=1, linestyle="--", zorder=0)
        for (number, point), side in name_sides(plot).items():
            series = plot.series[number]
            at = _axis_value(series.x[point], places), series.y[point].value
            offset = 7 if side.endswith("right") else -7, 5 if side.startswith("top") else -11
            name, anchor = visible(series.labels[point]), "left" if side.endswith("right") else "right"
            halo = [withStroke(linewidth=3, foreground="white")]
            axes.annotate(name, at, offset, textcoords="offset points", fontsize=8, ha=anchor, path_effects=halo)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
        if len(plot.series) > 1 and axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, fontsize=8)
        made = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix, {})
        figure.savefig(path, dpi=200, facecolor="white", metadata=made)


def _error_bars(values: Sequence[Bounded]) -> Any:
    """Return the lengths of error bars, [downwards and upwards, points], NaN without one."""
    import numpy as np

    middle, low, high = np.array(values, float).reshape(-1, 3).T
    return np.maximum(0, [middle - low, high - middle])


def text_places(plot: StudyPlot) -> dict[str, float]:
    """Number the texts of an axis of texts, in the order they come; empty for numbers."""
    values = [x for series in plot.series for x in series.x]
    is_text = any(isinstance(x, str) for x in values)
    return {text: float(place) for place, text in enumerate(dict.fromkeys(map(str, values)))} if is_text else {}


def _axis_value(value: float | str | Bounded, places: Mapping[str, float]) -> float:
    return places[str(value)] if places else value.value if isinstance(value, Bounded) else float(value)


def name_sides(plot: StudyPlot) -> dict[tuple[int, int], str]:
    """Return the side of a point where its name stands, by the numbers of the series and of the point.

    That is where no other point is near, which it would seem to name. Points of one name and x are named once, at the
    highest of them.
    """
    places = text_places(plot)
    at = {
        (number, point): (_axis_value(x, places), y.value)
        for number, series in enumerate(plot.series)
        for point, (x, y) in enumerate(zip(series.x, series.y, strict=True))
    }
    if plot.log_x and all(x > 0 for x, _ in at.values()):
        at = {own: (math.log10(x), y) for own, (x, y) in at.items()}
    named: dict[tuple[str, float], tuple[int, int]] = {}
    for number, point in sorted(at, key=lambda own: -at[own][1]):
        labels = plot.series[number].labels
        if labels and labels[point]:
            named.setdefault((labels[point], at[number, point][0]), (number, point))
    sides = {}
    for own in sorted(named.values()):
        width, height = (max(values) - min(values) or 1.0 for values in zip(*at.values(), strict=True))
        gaps = [((x - at[own][0]) / width, (y - at[own][1]) / height) for each, (x, y) in at.items() if each != own]
        free = {
            side: min((math.dist(middle, gap) for gap in gaps), default=0.0) for side, middle in NAME_MIDDLES.items()
        }
        sides[own] = max(free, key=free.__getitem__)
    return sides
