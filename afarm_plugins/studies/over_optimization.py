"""The studies `overoptimization` and `label-noise`: win rates as a proxy reward is pushed further.

A method goes further by its own measure: best-of-n and expert iteration by n, PPO by steps. How far it went from the
start is d = √KL, in √nats. Curves of the win rate w are fitted over it, by least squares:

- best-of-n and expert iteration: w = a + b·d + c·d², with its peak at d = −b / 2c
- PPO: w = a + b·d + c·d·log d, with its peak at log d = −b / c − 1

Sources: Dubois et al. 2023 (AlpacaFarm), figures 5, 12 and 13; Gao, Schulman and Hilton 2022, "Scaling laws for reward
model overoptimization", for both forms. Theirs are of the gold reward's gain and have no a.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

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
    seeding,
)
from afarm_plugins.studies.labels import Labels, is_share_flipped
from afarm_plugins.studies.over_seeds import gap_by_seed, grouped, measured_figures, over_seeds
from afarm_plugins.studies.settings import LabelNoiseConfig, OverOptimizationConfig, split_names, whole_numbers

SETTINGS = {"best_of_n": "best_of_n.n", "expert_iteration": "expert_iteration.n", "ppo": "ppo.total_steps"}
"""The setting by which each method goes further."""

RESAMPLES = 1000
CURVE_STEPS = 60
FEWEST_POINTS = 4
"""Places of a curve below which three coefficients say nothing."""


class OverOptimization(Study):
    """Win rate, proxy and true reward of methods that go further and further, by the labels learned from."""

    brief = {"methods": "best_of_n", "n": "1,4,16,64"}

    def __init__(self, config: OverOptimizationConfig):
        self.along = config.along
        self.reach = {
            "best_of_n": whole_numbers("n", config.n),
            "expert_iteration": whole_numbers("iteration_n", config.iteration_n),
            "ppo": whole_numbers("steps", config.steps),
        }
        self.methods = split_names(config.methods)
        self.labels = Labels.parse_all(config.labelled_by)
        if unknown := [name for name in self.methods if name not in SETTINGS]:
            raise ConfigError(f"methods: {unknown[0]!r} is none that goes further by a setting: {', '.join(SETTINGS)}")

    def grid(self, request: StudyRequest) -> Sequence[StudyRun]:
        return [
            StudyRun(method, seed, {"labels": labels.name, "reach": reach}, self._settings(method, labels, reach))
            for method, labels in product(self.methods, self.labels)
            # one run goes as far as all if its checkpoints are looked at
            for reach in (self.reach[method][-1:] if self._is_along_checkpoints(method) else self.reach[method])
            for seed in request.seeds
        ]

    def _is_along_checkpoints(self, method: str) -> bool:
        return method == "ppo" and self.along == "checkpoints"

    def _settings(self, method: str, labels: Labels, reach: int) -> tuple[str, ...]:
        own = (*labels.settings, f"evaluate.annotator={labels.annotator}", f"{SETTINGS[method]}={reach}")
        if not self._is_along_checkpoints(method):
            return own
        return (*own, "ppo.checkpoint=best", f"ppo.save_steps={math.gcd(*self.reach[method])}")

    def _along(self, finished: Sequence[FinishedRun]) -> list[FinishedRun]:
        """Put the checkpoints of a run in its place, each as a run that went as far, if that was asked for."""
        found = []
        for done in finished:
            if not self._is_along_checkpoints(done.run.method):
                found.append(done)
                continue
            for figures in done.checkpoints:
                place = {**done.run.place, "reach": int(figures["step"])}
                found.append(FinishedRun(replace(done.run, place=place), done.name, figures))
        return found

    def analyse(self, finished: Sequence[FinishedRun]) -> Findings:
        finished = self._along(finished)
        figures = measured_figures(finished)
        columns = {"method": "", "labels": "", "reach": "d", "seeds": "d", "√KL": ".2f", **dict(figures.values())}
        rows, peaks, plots = [], [], []
        for method in dict.fromkeys(done.run.method for done in finished):
            curves = {
                str(labels): Curve(method, grouped(runs, "reach"))
                for (labels,), runs in grouped(
                    [done for done in finished if done.run.method == method], "labels"
                ).items()
            }
            for labels, curve in curves.items():
                rows += [
                    [method, labels, reach, len(runs), curve.distance(runs), *(over_seeds(runs, f) for f in figures)]
                    for reach, runs in curve.points.items()
                ]
                peaks.append([method, labels, *curve.peak()])
            plots += list(_plots(method, curves))
        over = "seeds" if len({done.run.seed for done in finished}) > 1 else "instructions"
        tables = [
            StudyTable("curves", f"Figures by reach, with 95% intervals over {over}", columns, rows),
            StudyTable("peaks", "Where the win rate peaks, and how far it falls after", PEAK, peaks),
        ]
        notes = [NOTES[0], *([ALONG] if any(map(self._is_along_checkpoints, self.methods)) else []), *NOTES[1:-1]]
        notes += [FITTED if any(series.fit for plot in plots for series in plot.series) else JOINED, NOTES[-1]]
        answer = " ".join(_say_peak(*row) for row in peaks if row[2] is not None)
        return Findings(tables, plots, notes if finished else [], answer=answer)


def _say_peak(method: Any, labels: Any, best: Any, rate: Any, last: Any, fall: Any, *_: Any) -> str:
    """Say where a curve of the table of peaks has its own, and whether the fall after it is clear."""
    peak = f"{method} learning from {labels} wins most at a reach of {best}: {rate.value:.1f} %"
    if fall is None:
        return f"{peak}, its furthest."
    return f"{peak}; {-fall.value:.1f} points are lost to {last}{'' if (fall.high or 0) < 0 else ', not clearly'}."


class LabelNoise(OverOptimization):
    """The same for several shares of flipped labels, for each annotator."""

    brief = {"methods": "best_of_n", "n": "1,16,64", "annotators": "pool", "noise": "0,0.25,0.35"}

    def __init__(self, config: LabelNoiseConfig):
        shares = split_names(config.noise)
        if wrong := [share for share in shares if not is_share_flipped(share)]:
            raise ConfigError([f"noise: {wrong[0]!r}: shares from 0 to 0.5, with commas between, such as 0,0.25"])
        labels = ",".join(f"{name}+{share}" for name, share in product(split_names(config.annotators), shares))
        given = config.model_dump(include={"methods", "n", "iteration_n", "steps", "along"})
        super().__init__(OverOptimizationConfig(labelled_by=labels, **given))


# ------------------------------------------------------------------------------------------------------------- curves

PEAK = {
    "method": "",
    "labels": "",
    "best reach": "d",
    "win rate there": ".1f",
    "last reach": "d",
    "fall to it": "+.1f",
    "seeds": "d",
    "fitted peak, √KL": ".2f",
    "KL there": ".2f",
}
"""The columns of the table of peaks."""

NOTES = [
    "Reach is n for best-of-n and expert iteration, and the number of steps for PPO.",
    "The best reach is chosen by the same runs, so the win rate there is somewhat too high. The fall is from there to "
    "the last reach, paired by seed, with Student's interval over seeds.",
    "The fitted peak is that of a curve over √KL, its interval the bootstrap's over seeds; none if the curve has no "
    "peak within reach, or the KL is unknown. Best-of-n has the bound log n − (n − 1) / n as its KL.",
    "Labels and final win rate are of the same annotator: compare the true reward across curves, not the win rate.",
]

FITTED = "Lines over √KL are the fitted curves: a + b·d + c·d² of d = √KL, for PPO with d·log d as their last term."
JOINED = f"Lines join the points: a curve over √KL is fitted to {FEWEST_POINTS} places or more."

ALONG = (
    "PPO's points are checkpoints of one run, as in the paper: their win rate is over the start policy on the "
    "validation split, by the same annotator without flips; KL and reward are those of the step's rollouts. The true "
    "reward of a checkpoint is not measured."
)


class Curve:
    """The runs of one method by how far they go, `points` from the least reach to the furthest."""

    def __init__(self, method: str, by_reach: Mapping[tuple[Hashable, ...], Sequence[FinishedRun]]):
        self.method = method
        reached = {int(str(reach)): runs for (reach,), runs in by_reach.items()}
        self.points = {reach: reached[reach] for reach in sorted(reached)}

    def distance(self, runs: Sequence[FinishedRun]) -> float | None:
        """Return the mean √KL of runs; None if it was not measured."""
        values = [math.sqrt(max(0.0, kl)) for run in runs if (kl := self.kl(run)) is not None]
        return sum(values) / len(values) if values else None

    def kl(self, done: FinishedRun) -> float | None:
        """Return the KL to the start, in nats per response; best-of-n's is a bound."""
        if self.method == "best_of_n":
            n = float(str(done.run.place["reach"]))
            return math.log(n) - (n - 1) / n
        return done.figures.get("kl")

    def peak(self) -> list[float | Bounded | None]:
        """Return the cells of `PEAK` behind the labels."""
        known = {reach: rate for reach, runs in self.points.items() if (rate := over_seeds(runs, "win_rate"))}
        if not known:
            return [None] * (len(PEAK) - 2)
        best, last = max(known, key=lambda reach: known[reach].value), max(known)
        fall = gap_by_seed(self.points[last], self.points[best]) if last != best else None
        fitted = self.fitted_peak()
        at = fitted and Bounded(*(None if d is None else d * d for d in fitted))  # type: ignore[arg-type]
        return [best, known[best], last, fall, len(self.points[best]), fitted, at]

    def by_seed(self, figure: str) -> dict[int, list[tuple[float, float]]]:
        """Return a figure of each seed's runs over √KL, as (√KL, figure)s; what was not measured is left out."""
        found: dict[int, list[tuple[float, float]]] = {}
        for done in (done for runs in self.points.values() for done in runs):
            kl, value = self.kl(done), done.figures.get(figure)
            if kl is not None and value is not None:
                found.setdefault(done.run.seed, []).append((math.sqrt(max(0.0, kl)), value))
        return found

    def fitted(self, figure: str) -> list[tuple[float, float]]:
        """Trace the curve of a figure over √KL that is fitted to all runs; empty if there is none."""
        points = [point for points in self.by_seed(figure).values() for point in points]
        if (found := fit_curve(points, self.method)) is None:
            return []
        a, b, c = found
        low, high = min(d for d, _ in points), max(d for d, _ in points)
        places = [low + (high - low) * step / CURVE_STEPS for step in range(CURVE_STEPS + 1)]
        return [(d, a + b * d + c * bend(d, self.method)) for d in places]

    def fitted_peak(self) -> Bounded | None:
        """Fit the curve and return its peak in √KL, with the bootstrap's interval over seeds.

        None without a peak between the least and the furthest point. The interval is left out if more than one in
        twenty resamples have no peak there, or there are fewer than three seeds.
        """
        by_seed = self.by_seed("win_rate")
        peak = fit_peak([point for points in by_seed.values() for point in points], self.method)
        if peak is None:
            return None
        seeds, found = list(by_seed), []
        for draw in range(RESAMPLES if len(seeds) > 2 else 0):
            drawn = [seeds[int(len(seeds) * seeding.uniform("peak", draw, place))] for place in range(len(seeds))]
            again = fit_peak([point for seed in drawn for point in by_seed[seed]], self.method)
            found += [again] if again is not None else []
        if len(found) < 0.95 * RESAMPLES:
            return Bounded(peak)
        found.sort()
        return Bounded(peak, found[int(0.025 * len(found))], found[int(0.975 * len(found))])


def fit_peak(points: Sequence[tuple[float, float]], method: str) -> float | None:
    """Fit win rates over √KL, as (√KL, win rate)s, and return where the curve peaks.

    None for fewer than four places, or if the curve has no peak between the least and the furthest.
    """
    if (found := fit_curve(points, method)) is None:
        return None
    _, b, c = found
    if c >= 0:  # it bends upwards
        return None
    at = math.exp(min(50.0, -b / c - 1)) if method == "ppo" else -b / (2 * c)
    return at if min(d for d, _ in points) < at < max(d for d, _ in points) else None


def fit_curve(points: Sequence[tuple[float, float]], method: str) -> tuple[float, float, float] | None:
    """Fit figures over √KL by least squares. Returns a, b and c; None for fewer than four places."""
    import numpy as np

    if len({round(d, 9) for d, _ in points}) < FEWEST_POINTS:
        return None
    basis = [[1.0, d, bend(d, method)] for d, _ in points]
    a, b, c = np.linalg.lstsq(np.array(basis), np.array([figure for _, figure in points]), rcond=None)[0].tolist()
    return a, b, c


def bend(distance: float, method: str) -> float:
    """Return the third term of a method's curve."""
    if method != "ppo":
        return distance**2
    return distance * math.log(distance) if distance > 0 else 0.0


def _plots(method: str, curves: Mapping[str, Curve]) -> Iterator[StudyPlot]:
    """Plot win rate and true reward over √KL (reach, if unknown), and the win rate over the proxy."""
    known = all(curve.distance(runs) is not None for curve in curves.values() for runs in curve.points.values())
    for figure, title in (("win_rate", "win rate, %"), ("gold", "true reward")):
        series = []
        for labels, curve in curves.items():
            at = {curve.distance(runs) if known else reach: runs for reach, runs in curve.points.items()}
            line = {x: y for x, runs in at.items() if x is not None and (y := over_seeds(runs, figure)) is not None}
            fit = curve.fitted(figure) if known else []
            series += [Series(labels, list(line), list(line.values()), fit=fit)] if line else []
        if series:
            x_title = "√KL, √nats" if known else SETTINGS[method]
            name = f"{method}-{figure.replace('_', '-')}"
            level = 50 if figure == "win_rate" else None
            yield StudyPlot(name, f"{method}: {title}", x_title, title, series, log_x=not known, level=level)
    series = []
    for labels, curve in curves.items():
        both = [(over_seeds(runs, "reward"), over_seeds(runs, "win_rate")) for runs in curve.points.values()]
        pairs = [(proxy.value, rate) for proxy, rate in both if proxy is not None and rate is not None]
        series += [Series(labels, [x for x, _ in pairs], [y for _, y in pairs])] if pairs else []
    if series:
        title = f"{method}: win rate over proxy reward"
        yield StudyPlot(f"{method}-by-proxy", title, "mean score of the reward model", "win rate, %", series, level=50)
