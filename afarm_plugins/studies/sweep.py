"""The study `sweep`: any setting over values and seeds."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product

from afarm import (
    Bounded,
    ConfigError,
    Findings,
    FinishedRun,
    Series,
    Study,
    StudyPlot,
    StudyRequest,
    StudyRun,
    StudyTable,
)
from afarm_plugins.studies.over_seeds import gap_by_seed, grouped, measured_figures, over_seeds, say_highest
from afarm_plugins.studies.settings import SweepConfig

METHOD = "method"


class Sweep(Study):
    """Every combination of the values of some settings, with every seed."""

    never_opened = ("values",)

    def __init__(self, config: SweepConfig):
        self.config = config
        self.axes = read_axes(config.values)

    def grid(self, request: StudyRequest) -> Sequence[StudyRun]:
        if self.config.method and METHOD in self.axes:
            raise ConfigError(["--method and --values method=… contradict each other: give one"])
        if not self.axes:
            raise ConfigError(["a sweep needs values, such as --values dpo.beta=0.03,0.1,0.3"])
        method = self.config.method or request.method
        runs = []
        for values, seed in product(product(*self.axes.values()), request.seeds):
            place = dict(zip(self.axes, values, strict=True))
            settings = tuple(f"{name}={value}" for name, value in place.items() if name != METHOD)
            runs.append(
                StudyRun(place.get(METHOD, method), seed, {n: as_number(v) for n, v in place.items()}, settings)
            )
        return runs

    def analyse(self, finished: Sequence[FinishedRun]) -> Findings:
        figures = measured_figures(finished)
        groups = grouped(finished, *self.axes)
        axis, values_of_axis = next(iter(self.axes.items()))
        first = as_number(values_of_axis[0])
        columns = {**dict.fromkeys(self.axes, ""), "seeds": "d", **dict(figures.values())}
        rows: list[list[str | int | Bounded | None]] = [
            [*map(_text, values), len(runs), *(over_seeds(runs, name) for name in figures)]
            for values, runs in groups.items()
        ]
        if len(values_of_axis) > 1 and "win_rate" in figures:
            columns[f"win rate less {axis}={_text(first)}"] = "+.1f"
            for row, ((value, *rest), runs) in zip(rows, groups.items(), strict=True):
                row.append(None if value == first else gap_by_seed(runs, groups.get((first, *rest), ())))
        table = StudyTable("sweep", f"By {' and '.join(self.axes)}, with 95% intervals", columns, rows)
        plots = [self._plot(name, head, groups) for name, (head, _) in figures.items() if name in ("win_rate", "kl")]
        return Findings([table], plots, _notes(finished, rows), answer=say_highest(table))

    def _plot(self, figure: str, heading: str, groups: Mapping[tuple[object, ...], Sequence[FinishedRun]]) -> StudyPlot:
        """Plot a figure over the first setting, a line per combination of the others."""
        first, *others = self.axes
        lines: dict[tuple[object, ...], list[tuple[object, Bounded]]] = {}
        for values, runs in groups.items():
            value, rest = values[0], values[1:]
            if (found := over_seeds(runs, figure)) is not None:
                lines.setdefault(rest, []).append((value, found))
        series = []
        for rest, points in lines.items():
            name = ", ".join(f"{other} {_text(value)}" for other, value in zip(others, rest, strict=True))
            is_of_numbers = all(isinstance(value, float) for value, _ in points)
            ordered = sorted(points, key=lambda point: float(str(point[0]))) if is_of_numbers else points
            places = [value if isinstance(value, float) else str(value) for value, _ in ordered]
            series.append(Series(name or heading, places, [y for _, y in ordered], joined=is_of_numbers))
        x = [value for line in series for value in line.x if isinstance(value, float)]
        is_wide = bool(x) and min(x) > 0 and max(x) >= 10 * min(x)
        return StudyPlot(
            figure, f"{heading} by {first}", first, heading, series, is_wide, level=50 if figure == "win_rate" else None
        )


def read_axes(texts: Sequence[str]) -> dict[str, list[str]]:
    """Read settings and their values from texts such as "dpo.beta=0.03,0.1,0.3".

    Commas inside brackets part nothing. Raises `ConfigError` for what is none, for a setting or a value that is named
    twice, and for the seed.
    """
    axes: dict[str, list[str]] = {}
    problems = []
    for text in texts:
        name, equals, listed = (part.strip() for part in text.partition("="))
        comma = r",(?![^\[{]*[\]}])" if re.search(r"[\]}]", listed) else ","  # the first looks on from each comma
        values = [value.strip() for value in re.split(comma, listed)] if listed else []
        counts = Counter(map(as_number, values))
        given = f"--values {text:.60}{'…' if len(text) > 60 else ''}"
        if not name or not equals or not all(values) or not values:
            problems.append(f"{given}: a setting and its values, such as dpo.beta=0.03,0.1,0.3")
        elif name == "seed":
            problems.append(f"{given}: seeds have an option of their own, --seeds {listed}")
        elif name in axes:
            problems.append(f"--values names {name} twice: give all its values at once")
        elif repeated := [value for value in values if counts[as_number(value)] > 1]:
            problems.append(f"{given}: {repeated[-1]} is named twice")
        axes[name] = values
    if problems:
        raise ConfigError(problems)
    return axes


def as_number(text: str) -> float | str:
    """Return the number that a value is, or its text."""
    try:
        return float(text)
    except ValueError:
        return text


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _notes(finished: Sequence[FinishedRun], rows: Sequence[object]) -> list[str]:
    if not finished:
        return []
    seeds = len({done.run.seed for done in finished})
    over = (
        "seeds (Student's, of the mean)" if seeds > 1 else "the instructions of one seed: another seed may differ more"
    )
    chosen = "The best of several values is too high by chance: report it from other seeds, or choose with afarm tune."
    paired = "Differences in win rate are paired by seed." if seeds > 1 and len(rows) > 1 else ""
    return [f"Intervals are over {over}.", *filter(None, [paired, chosen if len(rows) > 1 else ""])]
