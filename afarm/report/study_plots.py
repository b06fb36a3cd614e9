"""Files of studies' plots, drawn by Matplotlib (the extra `plots`), with names beside points."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from afarm.experiment.studies.study import Bounded, StudyPlot
from afarm.storage.text import visible

COLOURS = ("#0a6c6d", "#c2571a", "#5a5fc0", "#b0407a", "#6f8419", "#2b8fc4", "#7a4a24", "#5d6d7e")
"""Those of `page.css` for a light ground."""

WIDTH, HEIGHT = 408, 312
"""The size of a plot's frame in pixels, about, in which names are placed."""

TICKS = 12
"""Ticks of a logarithmic axis, at most."""

ASIDE = 0.04
"""The distance of several series at one text of an axis, where they would hide each other, in distances of texts."""

WIDE = 6.5
"""The width of a letter in pixels, about."""

BESIDE = 0.06
"""The share of an axis that stays free beyond its first and last point."""

STYLE: Mapping[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "afarm", "text.parse_math": False}
"""Settings of Matplotlib: text stays text, equal plots are equal files, and a "$" in a name is no formula."""


def can_draw() -> bool:
    """Tell if Matplotlib is there."""
    return find_spec("matplotlib") is not None


def draw_plot(plot: StudyPlot, path: Path) -> None:
    """Draw a plot in the format of the path's ending: svg, png or pdf."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(dict(STYLE)):
        figure = Figure(figsize=(6.4, 4), layout="constrained")
        axes = figure.subplots()
        places, is_log = text_places(plot), _is_log(plot)
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
        if is_log:
            values = sorted({_axis_value(x, {}) for series in plot.series for x in series.x})
            shown = values[:: -(-len(values) // TICKS)]
            axes.set_xscale("log")
            axes.set_xticks(shown, [f"{value:g}" for value in shown])
            axes.minorticks_off()
        if plot.diagonal and plot.series:
            start = min(y.value for series in plot.series for y in series.y)
            axes.axline((start, start), slope=1, color="#888888", linewidth=1, linestyle="--", zorder=0)
            axes.set_aspect("equal", adjustable="datalim")
        for name in place_labels(plot):
            series = plot.series[name.number]
            at = _axis_value(series.x[name.point], places), series.y[name.point].value
            side = {"start": "left", "middle": "center", "end": "right"}[name.anchor]
            aside_of_name = 0.75 * name.dx, -0.75 * name.dy
            axes.annotate(visible(name.text), at, aside_of_name, textcoords="offset points", fontsize=8, ha=side)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
        if len(plot.series) > 1:
            axes.legend(frameon=False, fontsize=8)
        made = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix, {})
        figure.savefig(path, dpi=200, facecolor="white", metadata=made)


def _error_bars(values: Sequence[Bounded]) -> list[list[float]]:
    """Return the lengths of error bars downwards and upwards, NaN without one."""
    ends = [(value, low, high) for value, low, high in values]
    return [
        [math.nan if low is None else max(0.0, value - low) for value, low, _ in ends],
        [math.nan if high is None else max(0.0, high - value) for value, _, high in ends],
    ]


def text_places(plot: StudyPlot) -> dict[str, float]:
    """Number the texts of an axis of texts, in the order they come; empty for numbers."""
    values = [x for series in plot.series for x in series.x]
    is_text = any(isinstance(x, str) for x in values)
    return {text: float(place) for place, text in enumerate(dict.fromkeys(map(str, values)))} if is_text else {}


def _axis_value(value: float | str | Bounded, places: Mapping[str, float]) -> float:
    return places[str(value)] if places else value.value if isinstance(value, Bounded) else float(value)


def _is_log(plot: StudyPlot) -> bool:
    values = [x for series in plot.series for x in series.x] if plot.log_x and not plot.diagonal else []
    return bool(values) and not text_places(plot) and all(end > 0 for value in values for end in _ends(value))


def _ends(value: float | str | Bounded) -> list[float]:
    """Return a number, or an interval's middle and ends."""
    return [end for end in value if end is not None] if isinstance(value, Bounded) else [float(value)]


# ---------------------------------------------------------------------------------------------------- names of points


class PointName(NamedTuple):
    """A name's place beside a point: its offset in pixels, right and down, and how it is anchored there.

    `number` is that of the series, `point` that in it.
    """

    text: str
    number: int
    point: int
    dx: int
    dy: int
    anchor: str


BESIDE_A_POINT = (
    (9, -6, "start"),
    (-9, -6, "end"),
    (9, 15, "start"),
    (-9, 15, "end"),
    (0, -12, "middle"),
    (0, 21, "middle"),
)
"""Where a name may stand, in pixels from its point, the preferred first."""

MISREAD = 150.0
"""The cost of a name nearer to another point than to its own, as so many square pixels covered."""

Box = tuple[float, float, float, float]
"""Left, top, right and bottom in pixels."""


def place_labels(plot: StudyPlot) -> list[PointName]:
    """Label each point once, beside the highest of those with the same name and x, without overlap."""
    places = point_places(plot)
    points = [point for series in places for point in series]
    highest: dict[tuple[str, float], tuple[float, int, int]] = {}
    for number, series in enumerate(plot.series):
        for point, (text, (left, top)) in enumerate(zip(series.labels, places[number], strict=False)):
            highest[text, left] = min(highest.get((text, left), (math.inf, 0, 0)), (top, number, point))
    taken = [(left - 5, top - 5, left + 5, top + 5) for left, top in points]
    names = []
    for (text, left), (top, number, point) in sorted(highest.items(), key=lambda item: item[1]):

        def cost(way: tuple[int, int, str], text: str = text, at: tuple[float, float] = (left, top)) -> float:
            box = name_box(text, at, way)
            distance = distance_to(box, at)
            nearer = sum(distance_to(box, other) < distance for other in points)
            return covered_area(box, taken) + MISREAD * nearer

        best = min(BESIDE_A_POINT, key=cost)
        taken.append(name_box(text, (left, top), best))
        names.append(PointName(text, number, point, *best))
    return names


def point_places(plot: StudyPlot) -> list[list[tuple[float, float]]]:
    """Place the points of each series in the frame, in pixels from its left and its top."""
    places, is_log = text_places(plot), _is_log(plot)

    def across(value: float | str | Bounded) -> list[float]:
        return [places[str(value)]] if places else [math.log10(end) if is_log else end for end in _ends(value)]

    x = [end for series in plot.series for value in series.x for end in across(value)]
    x += [math.log10(at) if is_log else at for series in plot.series for at, _ in series.fit]
    y = [end for series in plot.series for value in series.y for end in _ends(value)]
    y += [at for series in plot.series for _, at in series.fit]
    if plot.diagonal:
        x = y = [*x, *y]
    (left, width), (bottom, height) = (_first_and_length(values) for values in (x, y))
    return [
        [
            (WIDTH * (across(at)[0] - left) / width, HEIGHT * (1 - (value.value - bottom) / height))
            for at, value in zip(series.x, series.y, strict=False)
        ]
        for series in plot.series
    ]


def _first_and_length(values: Sequence[float]) -> tuple[float, float]:
    """Return where an axis of these values begins, and its length."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    free = BESIDE * (high - low) or abs(high) * BESIDE or 0.5
    return low - free, high - low + 2 * free


def name_box(text: str, at: tuple[float, float], way: tuple[int, int, str]) -> Box:
    """Return the box of a name beside a point, about."""
    dx, dy, anchor = way
    width = WIDE * len(text)
    left = at[0] + dx - {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor] * width
    return left, at[1] + dy - 11, left + width, at[1] + dy + 3


def covered_area(box: Box, others: Sequence[Box]) -> float:
    """Return the area of a box that is over others, or beyond the plot [square pixels]."""
    left, top, right, bottom = box
    outside = max(0.0, -left) + max(0.0, right - WIDTH) + max(0.0, -top)
    over = sum(max(0.0, min(right, r) - max(left, x)) * max(0.0, min(bottom, b) - max(top, y)) for x, y, r, b in others)
    return over + 14 * outside


def distance_to(box: Box, point: tuple[float, float]) -> float:
    """Return the distance of a point from a box [pixels]."""
    left, top, right, bottom = box
    x, y = point
    return math.hypot(max(left - x, 0.0, x - right), max(top - y, 0.0, y - bottom))
