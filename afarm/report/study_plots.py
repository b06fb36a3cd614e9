"""Plots of studies as SVG of our own, and as PNG or PDF by Matplotlib (the extra `plots`)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from afarm.experiment.studies.study import Bounded, Series, StudyPlot
from afarm.storage.text import visible

COLOURS = ("#0a6c6d", "#c2571a", "#5a5fc0", "#b0407a", "#6f8419", "#2b8fc4", "#7a4a24", "#5d6d7e")
"""Those of `page.css` for a light ground."""

INK, MUTED, GRID = "#333333", "#888888", "#dddddd"
WIDTH, HEIGHT = 640, 400
LEFT, RIGHT, TOP, BOTTOM = 64, 168, 36, 52
"""Margins in pixels; the legend stands in the right one."""

TICKS = 6
"""Ticks of an axis of numbers, about."""

ASIDE = 4
"""Pixels between points of several series at one place, which would hide each other."""

WIDE = 6.5
"""The width of a letter in pixels, about."""

BESIDE = 0.06
"""The share of an axis that stays free beyond its first and last point."""


class Axis(NamedTuple):
    """An axis: a pixel is linear in its value, or in the logarithm. `ticks` are values and texts."""

    low: float
    high: float
    begin: float
    end: float
    ticks: Sequence[tuple[float, str]]
    is_log: bool = False

    def pixel(self, value: float) -> float:
        """Place a value."""
        at = math.log10(value) if self.is_log else value
        return self.begin + (at - self.low) / (self.high - self.low) * (self.end - self.begin)


def as_svg(plot: StudyPlot) -> str:
    """Draw a plot. Every point says its value when pointed at."""
    across, up = _axes(plot)
    parts = [*_frame(plot, across, up)]
    for number, series in enumerate(plot.series):
        colour = COLOURS[number % len(COLOURS)]
        parts += _series(series, colour, plot, _aside(across, number, len(plot.series)), up)
        if len(plot.series) > 1:
            y = TOP + 8 + 18 * number
            parts.append(f'<circle cx="{WIDTH - RIGHT + 18}" cy="{y}" r="4" fill="{colour}"/>')
            parts.append(_text(series.name, WIDTH - RIGHT + 28, y + 4))
    parts += [_text(label.name, label.x, label.y, label.anchor) for label in place_labels(plot)]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    style = f'font-family="Helvetica, Arial, sans-serif" font-size="12" fill="{INK}" role="img"'
    if plot.diagonal:
        low, high = max(across.low, up.low), min(across.high, up.high)
        ends = f'x1="{across.pixel(low):.1f}" y1="{up.pixel(low):.1f}" x2="{across.pixel(high):.1f}"'
        parts.insert(1, f'<line {ends} y2="{up.pixel(high):.1f}" stroke="{MUTED}" stroke-dasharray="4 4"/>')
    return "\n".join([f"{head} {style}>", f"<title>{_escape_text(plot.title)}</title>", *parts, "</svg>", ""])


def _axes(plot: StudyPlot) -> tuple[Axis, Axis]:
    ends = [end for series in plot.series for y in series.y for end in y if end is not None]
    ends += [y for series in plot.series for _, y in series.fit]
    places = _places(plot)
    x = list(places.values()) or [end for s in plot.series for value in s.x for end in _ends(value)]
    x += [place for series in plot.series for place, _ in series.fit]
    if plot.diagonal and not places:
        x = ends = [*x, *ends]
    across = _axis(x, LEFT, WIDTH - RIGHT, plot.log_x)
    if places:
        across = across._replace(ticks=[(place, text) for text, place in places.items()])
    return across, _axis(ends, HEIGHT - BOTTOM, TOP)


def _ends(value: float | str | Bounded) -> list[float]:
    if isinstance(value, Bounded):
        return [end for end in value if end is not None]
    return [float(value)]


def _axis_position(value: float | str | Bounded, places: Mapping[str, float]) -> float:
    """Return a value's position on its axis; an interval's is its middle."""
    if isinstance(value, Bounded):
        return value.value
    return places[str(value)] if places else float(value)


def _places(plot: StudyPlot) -> dict[str, float]:
    """Number the texts of an axis of texts, in the order they come; empty for numbers."""
    values = [value for series in plot.series for value in series.x]
    if not any(isinstance(value, str) for value in values):
        return {}
    return {text: float(place) for place, text in enumerate(dict.fromkeys(map(str, values)))}


def _axis(values: Sequence[float], begin: float, end: float, is_log: bool = False) -> Axis:
    is_log = is_log and all(value > 0 for value in values)
    known = [math.log10(value) if is_log else value for value in values] or [0.0]
    low, high = min(known), max(known)
    free = BESIDE * (high - low) or abs(high) * BESIDE or 0.5
    low, high = low - free, high + free
    if is_log:
        ticks = [(value, f"{value:g}") for value in dict.fromkeys(sorted(values))]
        return Axis(low, high, begin, end, ticks[:: max(1, len(ticks) // (2 * TICKS))], True)
    step = _step((high - low) / TICKS)
    first = math.ceil(low / step)
    ticks = [(n * step, f"{n * step:.10g}") for n in range(first, math.floor(high / step) + 1)]
    return Axis(low, high, begin, end, ticks)


def _step(least: float) -> float:
    """Return the smallest of 1, 2 and 5 times a power of ten that is not less."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= least * (1 - 1e-9))


def _frame(plot: StudyPlot, across: Axis, up: Axis) -> Iterator[str]:
    yield f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>'
    yield _text(plot.title, LEFT, TOP - 16, weight="bold")
    for value, text in up.ticks:
        y = up.pixel(value)
        yield f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{GRID}"/>'
        yield _text(text.replace("-", "−"), LEFT - 8, y + 4, "end")
    for value, text in across.ticks:
        x = across.pixel(value)
        yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{HEIGHT - BOTTOM}" y2="{HEIGHT - BOTTOM + 4}" stroke="{INK}"/>'
        yield _text(text.replace("-", "−"), x, HEIGHT - BOTTOM + 18, "middle")
    yield f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{HEIGHT - BOTTOM}" y2="{HEIGHT - BOTTOM}" stroke="{INK}"/>'
    yield _text(plot.x_title, (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, "middle")
    middle = (TOP + HEIGHT - BOTTOM) / 2
    yield f'<g transform="translate(16 {middle:.0f}) rotate(-90)">{_text(plot.y_title, 0, 0, "middle")}</g>'


def _series(series: Series, colour: str, plot: StudyPlot, across: Axis, up: Axis) -> Iterator[str]:
    places = _places(plot)
    x = [across.pixel(_axis_position(value, places)) for value in series.x]
    y = [up.pixel(figure.value) for figure in series.y]
    curve = [(across.pixel(one), up.pixel(other)) for one, other in series.fit]
    if line := curve or (list(zip(x, y, strict=True)) if series.joined and len(x) > 1 else []):
        path = " ".join(f"{one:.1f},{other:.1f}" for one, other in line)
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
    names = series.labels or [series.name] * len(x)
    for name, value, figure, left, top in zip(names, series.x, series.y, x, y, strict=True):
        if figure.low is not None and figure.high is not None:
            ends = f'y1="{up.pixel(figure.low):.1f}" y2="{up.pixel(figure.high):.1f}"'
            yield f'<line x1="{left:.1f}" x2="{left:.1f}" {ends} stroke="{colour}" stroke-width="1.5"/>'
        if isinstance(value, Bounded) and value.low is not None and value.high is not None:
            ends = f'x1="{across.pixel(value.low):.1f}" x2="{across.pixel(value.high):.1f}"'
            yield f'<line y1="{top:.1f}" y2="{top:.1f}" {ends} stroke="{colour}" stroke-width="1.5"/>'
        place = value if isinstance(value, str) else _in_words(value) if isinstance(value, Bounded) else f"{value:.4g}"
        said = _escape_text(f"{name}: {plot.x_title} {place}, {plot.y_title} {_in_words(figure)}")
        yield f'<circle cx="{left:.1f}" cy="{top:.1f}" r="4" fill="{colour}"><title>{said}</title></circle>'


def _aside(across: Axis, number: int, of: int) -> Axis:
    """Move the axis a little for one of several series."""
    moved = ASIDE * (number - (of - 1) / 2)
    return across._replace(begin=across.begin + moved, end=across.end + moved)


class PointName(NamedTuple):
    """A name beside a point, in pixels, where its text begins, ends or has its middle, by its `anchor`.

    `number` is that of the series, `point` that in it.
    """

    name: str
    x: float
    y: float
    anchor: str
    is_above: bool
    number: int
    point: int


BESIDE_A_POINT = (
    (9, -6, "start"),
    (-9, -6, "end"),
    (9, 15, "start"),
    (-9, 15, "end"),
    (0, -12, "middle"),
    (0, 21, "middle"),
)
"""Where a name may stand, in pixels from its point, the preferred first."""


def place_labels(plot: StudyPlot) -> list[PointName]:
    """Label each point once, beside the highest of those with the same name and x, without overlap."""
    across, up = _axes(plot)
    places = _places(plot)
    points: list[tuple[float, float]] = []
    highest: dict[tuple[str, float], tuple[float, int, int]] = {}
    for number, series in enumerate(plot.series):
        for point, (value, figure) in enumerate(zip(series.x, series.y, strict=False)):
            left, top = across.pixel(_axis_position(value, places)), up.pixel(figure.value)
            points.append((left, top))
            if point < len(series.labels):
                at = (series.labels[point], left)
                highest[at] = min(highest.get(at, (HEIGHT, 0, 0)), (top, number, point))
    taken = [(left - 5, top - 5, left + 5, top + 5) for left, top in points]
    labels = []
    for (name, left), (top, number, point) in sorted(highest.items(), key=lambda item: item[1]):
        ways = [
            PointName(name, left + dx, top + dy, anchor, dy < 0, number, point) for dx, dy, anchor in BESIDE_A_POINT
        ]
        best = min(ways, key=lambda way: _covered(_box(way), taken) + _misread(_box(way), (left, top), points))
        taken.append(_box(best))
        labels.append(best)
    return labels


MISREAD = 150.0
"""The cost of a name nearer to another point than to its own, as so many square pixels covered."""

Box = tuple[float, float, float, float]


def _box(label: PointName) -> Box:
    """Return the left, top, right and bottom of a label, about."""
    width = WIDE * len(label.name)
    left = label.x - {"start": 0.0, "middle": 0.5, "end": 1.0}[label.anchor] * width
    return left, label.y - 11, left + width, label.y + 3


def _covered(box: Box, others: Sequence[Box]) -> float:
    """Return the area of a box that is over others, or beyond the plot [square pixels]."""
    left, top, right, bottom = box
    outside = max(0.0, LEFT - left) + max(0.0, right - (WIDTH - RIGHT)) + max(0.0, TOP - top)
    over = sum(max(0.0, min(right, r) - max(left, x)) * max(0.0, min(bottom, b) - max(top, y)) for x, y, r, b in others)
    return over + 14 * outside


def _misread(box: Box, own: tuple[float, float], points: Sequence[tuple[float, float]]) -> float:
    """Return the cost of a box that reads as another point's name: some are nearer to it than its own."""
    far = _distance(box, own)
    return MISREAD * sum(_distance(box, point) < far for point in points)


def _distance(box: Box, point: tuple[float, float]) -> float:
    left, top, right, bottom = box
    x, y = point
    return math.hypot(max(left - x, 0.0, x - right), max(top - y, 0.0, y - bottom))


def _in_words(figure: Bounded) -> str:
    ends = "" if figure.low is None or figure.high is None else f" ({figure.low:.3g} to {figure.high:.3g})"
    return f"{figure.value:.3g}{ends}"


def _text(text: str, x: float, y: float, anchor: str = "start", weight: str = "normal") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}">{_escape_text(text)}</text>'


def _escape_text(text: str) -> str:
    return escape(visible(text))


# ------------------------------------------------------------------------------------------------------ PNG and PDF


def can_draw() -> bool:
    """Tell if Matplotlib is there."""
    return find_spec("matplotlib") is not None


def draw_plot(plot: StudyPlot, path: Path) -> None:
    """Draw a plot in the format of the path's ending."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 4), layout="constrained")
    for number, series in enumerate(plot.series):
        _draw_series(axes, series, COLOURS[number % len(COLOURS)], _places(plot))
    axes.set(title=plot.title, xlabel=plot.x_title, ylabel=plot.y_title)
    across = _axes(plot)[0]
    if across.is_log:
        axes.set_xscale("log")
        axes.minorticks_off()
    if across.is_log or _places(plot):
        axes.set_xticks([value for value, _ in across.ticks], [text for _, text in across.ticks])
    if plot.diagonal:
        axes.axline((across.low, across.low), slope=1, color=MUTED, linewidth=1, linestyle="--", zorder=0)
        axes.set_aspect("equal", adjustable="datalim")
    for label in place_labels(plot):
        _annotate(axes, label, plot)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    if len(plot.series) > 1:
        axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=200, facecolor="white", metadata={} if path.suffix == ".png" else {"CreationDate": None})
    pyplot.close(figure)


def _draw_series(axes: Any, series: Series, colour: str, places: dict[str, float]) -> None:
    x = [_axis_position(value, places) for value in series.x]
    y = [figure.value for figure in series.y]
    low = [figure.value - (figure.value if figure.low is None else figure.low) for figure in series.y]
    high = [(figure.value if figure.high is None else figure.high) - figure.value for figure in series.y]
    style = {"capsize": 3, "color": colour, "label": series.name}
    beside = [value if isinstance(value, Bounded) else Bounded(0.0) for value in series.x]
    wide = [
        [0.0 if end is None else abs(value.value - end) for value, end in zip(beside, ends, strict=True)]
        for ends in ([value.low for value in beside], [value.high for value in beside])
    ]
    is_line = series.joined and not series.fit
    axes.errorbar(
        x, y, yerr=[low, high], xerr=wide if any(map(any, wide)) else None, fmt="o-" if is_line else "o", **style
    )
    if series.fit:
        axes.plot([at for at, _ in series.fit], [at for _, at in series.fit], color=colour)


def _annotate(axes: Any, label: PointName, plot: StudyPlot) -> None:
    series = plot.series[label.number]
    at = _axis_position(series.x[label.point], _places(plot)), series.y[label.point].value
    across, up = _axes(plot)
    aside = 0.75 * (label.x - across.pixel(at[0])), 0.75 * (up.pixel(at[1]) - label.y)
    side = {"start": "left", "middle": "center", "end": "right"}[label.anchor]
    axes.annotate(label.name, at, xytext=aside, textcoords="offset points", fontsize=8, ha=side)
