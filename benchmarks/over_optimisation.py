"""Over-optimisation in the toy world, with and without label noise: best-of-n by n, and long PPO by steps.

Every setting is the toy recipe's but those named here. Best-of-n is one draw of the largest n per seed. The paper's
figures 5, 12 and 13 show it for people and for the pool with noise, and not for single labels of GPT-4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from afarm import Farm
from afarm.statistics import mean
from afarm_plugins.best_of_n.command import curve
from benchmarks.toy_plots import over_seeds, plot_curves

BEST_OF = (1, 4, 16, 64, 256)
STEPS = (20, 80, 200)
KL = 0.02
"""PPO's KL coefficient, a tenth of what it was tried with first, so that it goes far."""

NOISE = {"25% flipped": 0.25, "none flipped": 0.0}
"""Shares of flipped labels, by their name in tables."""

FIGURES = {"win rate": ".1f", "gold": ".2f", "reward": ".2f"}
"""Figures with the format of each: percent against SFT, the true reward, and the reward model's score."""

Curve = Mapping[str, Sequence[float]]
"""Each figure of one seed, by n or steps."""

Measure = Callable[[int, Path, Sequence[str]], Curve]
"""Makes the curve of a seed under settings, in an output directory."""


def best_of_n_curves(seeds: Sequence[int], output_dir: Path, plots: Path) -> list[str]:
    """Tables and plot of best-of-n by n."""
    return _curves("best of n", BEST_OF, best_of_n, seeds, output_dir, plots / "toy-best-of-n.svg")


def long_ppo_curves(seeds: Sequence[int], output_dir: Path, plots: Path) -> list[str]:
    """Tables and plot of PPO by steps."""
    return _curves("PPO steps", STEPS, long_ppo, seeds, output_dir, plots / "toy-long-ppo.svg")


def _curves(
    title: str, places: Sequence[int], measure: Measure, seeds: Sequence[int], output_dir: Path, plot: Path
) -> list[str]:
    curves = {
        labels: [measure(seed, output_dir, [f"annotate.label_noise={noise:g}"]) for seed in seeds]
        for labels, noise in NOISE.items()
    }
    plot_curves(curves, places, title, plot)
    picture = f"![Win rate, gold and score by {title}, with and without label noise]({plot.name})"
    return [*_table(title, places, curves), "", *_falls(places, curves), "", picture]


def best_of_n(seed: int, output_dir: Path, settings: Sequence[str]) -> Curve:
    sampling = [*settings, f"best_of_n.n={max(BEST_OF)}", "best_of_n.keep_scores=true"]
    with Farm("toy", seed=seed, output_dir=output_dir, settings=sampling, progress=False) as farm:
        rows = list(curve(farm, list(BEST_OF)))
    return {name: [float(row[name.replace(" ", "_")]) for row in rows] for name in FIGURES}


def long_ppo(seed: int, output_dir: Path, settings: Sequence[str]) -> Curve:
    found: dict[str, list[float]] = {name: [] for name in FIGURES}
    for steps in STEPS:
        changed = [*settings, f"ppo.kl_coef={KL}", f"ppo.total_steps={steps}"]
        with Farm("toy", seed=seed, output_dir=output_dir, settings=changed, progress=False) as farm:
            result = farm.evaluate("ppo")
        for name, values in found.items():
            values.append(result.metric(name.replace(" ", "_")))
    return found


def _table(title: str, places: Sequence[int], curves: Mapping[str, Sequence[Curve]]) -> list[str]:
    lines = [f"| {title} | labels | " + " | ".join(FIGURES) + " |", "|---" * (len(FIGURES) + 2) + "|"]
    for labels, runs in curves.items():
        for index, place in enumerate(places):
            cells = [over_seeds([run[name][index] for run in runs], spec) for name, spec in FIGURES.items()]
            lines.append(f"| {place} | {labels} | " + " | ".join(cells) + " |")
    return lines


def _falls(places: Sequence[int], curves: Mapping[str, Sequence[Curve]]) -> list[str]:
    """Say how far the win rate of the last place is below the best mean, paired by seed."""
    lines = []
    for labels, runs in curves.items():
        means = [sum(run["win rate"][index] for run in runs) for index in range(len(places))]
        peak = means.index(max(means))
        if peak == len(places) - 1:
            lines.append(f"- {labels}: the win rate is highest at the last, {places[-1]}.")
            continue
        gap = mean([run["win rate"][-1] - run["win rate"][peak] for run in runs])
        between = f" (95 % {gap.low:+.1f} to {gap.high:+.1f})" if gap.low is not None else ""
        lines.append(f"- {labels}: from the peak at {places[peak]} to {places[-1]}, {gap.value:+.1f} points{between}.")
    return lines
