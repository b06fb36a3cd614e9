"""Do the intervals hold, and the tests, and the stopping rule: `python -m benchmarks.evaluation_simulations`.

Draws data whose truth is known, many times over, and counts how often what afarm says of it is right; writes the tables
into docs/notes/statistics.md, between markers. Minutes on one core; `--runs 100` for a rough look, `--only ranks` for
one part. Small versions are in tests/evaluation/statistics.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import kendalltau, pearsonr, spearmanr

from afarm.core.seeding import integer
from afarm.evaluation.metrics import interval
from afarm.evaluation.statistics.correlation import BLOCK, correlation
from afarm.evaluation.statistics.intervals import (
    IntervalEstimate,
    instructions_needed,
    mean,
    minimum_detectable_difference,
)
from afarm.evaluation.statistics.paired import Difference, paired_difference, paired_differences
from afarm.evaluation.statistics.rank_intervals import rank_intervals
from afarm.evaluation.statistics.sequential import decision_times
from afarm_plugins.evaluators.prediction_powered import MeanWin, prediction_powered

PAGE = Path("docs/notes/statistics.md")
SIZES = (25, 100, 805)
Floats = NDArray[np.float64]
Generator = np.random.Generator
Table = list[str]


def rows(header: Sequence[str], lines: Sequence[Sequence[str]]) -> Table:
    return ["| " + " | ".join(line) + " |" for line in [header, ["---"] * len(header), *lines]]


def percent(shares: Sequence[bool] | Sequence[float], digits: int = 1) -> str:
    return f"{100 * np.mean(shares):.{digits}f}"


def generators(runs: int, *key: int) -> Iterator[Generator]:
    return (np.random.default_rng([run, *key]) for run in range(runs))


# -------------------------------------------------------------------------------------------------------- intervals


def even(random: Generator, n: int) -> Floats:
    return (random.random(n) < 0.5).astype(float)


def strong(random: Generator, n: int) -> Floats:
    return (random.random(n) < 0.95).astype(float)


def with_draws(random: Generator, n: int) -> Floats:
    return np.where(random.random(n) < 0.3, 0.5, random.random(n) < 0.7)


def weighted(random: Generator, n: int) -> Floats:
    return random.beta(0.3, 0.2, n)


WORLDS: dict[str, tuple[Callable[[Generator, int], Floats], float]] = {
    "wins half of the time": (even, 0.5),
    "wins 95%": (strong, 0.95),
    "30% draws, wins 70% of the rest": (with_draws, 0.3 * 0.5 + 0.7 * 0.7),
    "weighted preferences, mostly near 0 or 1": (weighted, 0.6),
}


def holds(found: IntervalEstimate | MeanWin, truth: float) -> bool:
    return found.low is not None and found.high is not None and found.low <= truth <= found.high


def bootstrap(values: Floats, resamples: int = 1000) -> IntervalEstimate:
    """The percentile interval of the mean over resampled instructions."""
    n = len(values)
    means = np.concatenate([counts @ values for counts in resampled(n, resamples, "bootstrap")]) / n
    low, high = np.quantile(means, [0.025, 0.975])
    return IntervalEstimate(float(values.mean()), float(means.std(ddof=1)), float(low), float(high), n, n)


def resampled(n: int, resamples: int, purpose: str) -> Iterator[Floats]:
    """Draw `n` instructions with replacement per resample: their counts, in blocks [some resamples, n]."""
    generator = np.random.default_rng(integer(0, purpose))
    block = max(1, BLOCK // n)
    for begin in range(0, resamples, block):
        size = min(block, resamples - begin)
        drawn = generator.integers(n, size=(size, n)) + n * np.arange(size)[:, None]
        yield np.bincount(drawn.ravel(), minlength=size * n).reshape(size, n).astype(np.float64)


def plus_four_interval(wins: Floats, clusters: Sequence[int] | None = None) -> IntervalEstimate:
    """The interval that is shown of every win rate, as a share."""
    found = mean(wins, clusters)
    low, high = interval(100 * found.value, 100 * (found.error or 0.0), found.n) or (0.0, 100.0)
    return replace(found, low=low / 100, high=high / 100)


def intervals(runs: int) -> Table:
    methods: dict[str, Callable[..., IntervalEstimate]] = {
        "**plus_four_interval** (two wins and losses added)": plus_four_interval,
        "mean (t)": mean,
        "percentile bootstrap": bootstrap,
    }
    lines = []
    for number, (world, (draw, truth)) in enumerate(WORLDS.items()):
        for name, method in methods.items():
            found = [
                percent([holds(method(draw(random, n)), truth) for random in generators(runs, number)]) for n in SIZES
            ]
            lines.append([world, name, *found])
    return rows(["a system that …", "interval", *(f"n = {n}" for n in SIZES)], lines)


def four_labels(random: Generator, n: int) -> tuple[Floats, NDArray[np.int64]]:
    """Four labels of each instruction, which agree more than by chance: each instruction has a win rate of its own."""
    own = random.beta(0.6, 0.4, n)
    return (random.random((n, 4)) < own[:, None]).astype(float).ravel(), np.repeat(np.arange(n), 4)


def clusters(runs: int) -> Table:
    lines = []
    for name, clustered in (("**clustered by instruction**", True), ("as if 4n labels were independent", False)):
        found = []
        for n in SIZES:
            drawn = (four_labels(random, n) for random in generators(runs, 9))
            found.append(
                percent([holds(plus_four_interval(y, list(which) if clustered else None), 0.6) for y, which in drawn])
            )
        lines.append([name, *found])
    return rows(["4 labels an instruction", *(f"n = {n}" for n in SIZES)], lines)


# ------------------------------------------------------------------------------------------------------- differences


def two_systems(random: Generator, n: int, differ: float, gap: float) -> tuple[Floats, Floats]:
    """Wins of two systems that come out differently on a share `differ` of the instructions, the first winning `gap`
    more of all."""
    shared = (random.random(n) < 0.5).astype(float)
    apart = random.random(n) < differ
    first_wins = (random.random(n) < 0.5 + gap / 2 / differ).astype(float)
    return np.where(apart, first_wins, shared), np.where(apart, 1 - first_wins, shared)


def students_t(gaps: Floats) -> float | None:
    return paired_difference(gaps, np.zeros(len(gaps))).p_value


def sign_flip(gaps: Floats, resamples: int = 1000) -> float:
    """Fisher's test: each difference could as well have had the other sign; McNemar's exact test without draws.

    Few differences are flipped in every way there is; otherwise the draws count the data as one of theirs, so that p is
    never 0 and errs high.
    """
    moved = gaps[gaps != 0]
    if not len(moved):
        return 1.0
    seen = abs(float(moved.sum())) - 1e-9  # sums that are equal but for rounding are equal
    if 2 ** len(moved) <= resamples:
        signs = 1 - 2 * ((np.arange(2 ** len(moved))[:, None] >> np.arange(len(moved))) & 1)
        return float((np.abs(signs @ moved) >= seen).mean())
    generator = np.random.default_rng(integer(0, "sign flips"))
    signs = generator.integers(2, size=(resamples, len(moved)), dtype=np.int8).astype(np.float32)
    return (int((np.abs(moved.sum() - 2 * (signs @ moved)) >= seen).sum()) + 1) / (resamples + 1)


def bootstrap_test(gaps: Floats, resamples: int = 1000) -> float:
    """Twice the share of resampled means on the other side of 0."""
    drawn = resampled(len(gaps), resamples, "paired bootstrap")
    means = np.concatenate([counts @ gaps for counts in drawn]) / len(gaps)
    smaller = min(int((means <= 0).sum()), int((means >= 0).sum()))
    return min(1.0, 2 * (smaller + 1) / (resamples + 1))


TESTS: dict[str, Callable[[Floats], float | None]] = {
    "t": students_t,
    "sign_flip": sign_flip,
    "bootstrap": bootstrap_test,
}


def tests(runs: int) -> Table:
    lines = []
    for differ in (0.5, 0.1):
        for test, p_value in TESTS.items():
            found = []
            for gap in (0.0, 0.05):
                for n in SIZES:
                    drawn = (two_systems(random, n, differ, gap) for random in generators(runs, 20))
                    p = [p_value(a - b) for a, b in drawn]
                    found.append(percent([value is not None and value <= 0.05 for value in p]))
            lines.append([percent([differ], 0) + "%", f"**{test}**" if test == "t" else test, *found])
    sizes = [f"n = {n}" for n in SIZES]
    return rows(
        ["come out differently", "test", *(f"equal, {s}" for s in sizes), *(f"5 apart, {s}" for s in sizes)], lines
    )


def significant(found: Difference | None) -> bool:
    return found is not None and found.adjusted is not None and found.adjusted <= 0.05


def many_comparisons(runs: int) -> Table:
    """Twenty systems that equal the baseline: how often any is called different."""
    alone, corrected, best, best_corrected = [], [], [], []
    for random in generators(max(1, runs // 2), 30):
        table = (random.random((20, 200)) < 0.5).astype(float)
        found = [d for d in paired_differences(table, 0) if d is not None]
        alone.append(any((d.p_value or 0) <= 0.05 for d in found))
        corrected.append(any(map(significant, found)))
        top = int(np.argmax(table.mean(axis=1)))
        best.append(any(map(significant, paired_differences(table, top))))
        best_corrected.append(any(map(significant, paired_differences(table, top, best=True))))
    lines = [
        ["with one that was named before, each test by itself", percent(alone)],
        ["**with one that was named before, Holm's correction**", percent(corrected)],
        ["with the best of them, corrected as if it had been named before", percent(best)],
        ["**with the best of them, corrected for every pair**", percent(best_corrected)],
    ]
    return rows(["20 equal systems, 200 instructions, each compared …", "any is called different, %"], lines)


def detectable(_: int) -> Table:
    lines = []
    for n in (25, 50, 100, 252, 805, 2000, 5000):
        found = [minimum_detectable_difference(n, 100 * deviation) for deviation in (0.5, 0.25, 0.5, 0.7)]
        lines.append([str(n), *(f"{value:.1f}" for value in found)])
    header = ["one system against 50%", *(f"two systems, deviation {d}" for d in ("0.25", "0.5", "0.7"))]
    return rows(["instructions", *header], lines)


# -------------------------------------------------------------------------------------------------------------- ranks

BOARDS: dict[str, Floats] = {
    "10 systems, 5 points apart": np.linspace(0.3, 0.75, 10),
    "10 systems, all equal": np.full(10, 0.5),
    "20 systems in pairs of equals, 2 points apart": np.repeat(np.linspace(0.4, 0.58, 10), 2),
}


def board(random: Generator, truth: Floats, n: int) -> Floats:
    """Wins [systems, n] with the means `truth`: easy instructions are easy for all."""
    easy = random.random(n)
    own = random.random((len(truth), n))
    chance = np.where(random.random((len(truth), n)) < 0.4, easy, own)
    return (chance < truth[:, None]).astype(float)


def resampled_ranks(table: Floats, random: Generator) -> list[tuple[int, int]]:
    """The usual way, for comparison: percentiles of the ranks in 300 resamples."""
    n = table.shape[1]
    means = np.stack([table[:, random.integers(n, size=n)].mean(axis=1) for _ in range(300)])
    drawn = 1 + (means[:, None, :] > means[:, :, None]).sum(axis=2)
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0, method="nearest")
    return list(zip(low.tolist(), high.tolist(), strict=True))


def rank_coverage(runs: int) -> Table:
    lines = []
    for name, truth in BOARDS.items():
        places = [1 + int((truth > own + 1e-9).sum()) for own in truth]
        for n in (100, 805):
            each, widths, usual, usual_widths = [], [], [], []
            for random in generators(max(1, runs // 4), 40):
                table = board(random, truth, n)
                found = rank_intervals(table, resamples=500)
                each += [r.low <= place <= r.high for r, place in zip(found, places, strict=True)]
                widths += [r.high - r.low + 1 for r in found]
                plain = resampled_ranks(table, random)
                usual += [low <= place <= high for (low, high), place in zip(plain, places, strict=True)]
                usual_widths += [high - low + 1 for low, high in plain]
            sure = f"{percent(each)} ({np.mean(widths):.1f} places)"
            lines.append([name, str(n), sure, f"{percent(usual)} ({np.mean(usual_widths):.1f} places)"])
    return rows(["board", "n", "**one system**", "percentiles of resampled ranks"], lines)


# ----------------------------------------------------------------------------------------------------------- stopping


def first_interval_without(values: Floats, truth: float) -> int | None:
    """When the 95% normal interval, looked at after each answer from the tenth on, first excludes `truth`."""
    n = np.arange(1, len(values) + 1)
    means = np.cumsum(values) / n
    spread = np.sqrt(np.maximum(np.cumsum(values**2) / n - means**2, 1e-12) / n)
    outside = np.flatnonzero((np.abs(means - truth) > 1.96 * spread) & (n >= 10))
    return int(outside[0]) + 1 if len(outside) else None


def stopping(runs: int) -> Table:
    lines = []
    for name, draw in (("even, no draws", even), ("even, 60% draws", partial(scored, rate=0.5, draws=0.6))):
        for most in (805, 5000):
            wrong, naive = [], []
            for random in generators(runs, 50):
                values = draw(random, most)
                wrong.append(any(time is not None for time in decision_times(values)))
                naive.append(first_interval_without(values, 0.5) is not None)
            lines.append([name, f"{most:,}", percent(wrong), percent(naive)])
    return rows(["truth", "answers", "**until decided**", "watching a 95% interval"], lines)


def scored(random: Generator, n: int, rate: float, draws: float) -> Floats:
    return np.where(random.random(n) < draws, 0.5, random.random(n) < rate)


def stopping_times(runs: int) -> Table:
    lines = []
    for rate in (0.52, 0.55, 0.6, 0.65, 0.7, 0.8, 0.9):
        for draws in (0.0, 0.6):
            truth = 0.5 * draws + (1 - draws) * rate
            times, stops, wrong = [], [], []
            for random in generators(max(1, runs // 4), 60):
                values = scored(random, 805, rate, draws)
                higher, lower = decision_times(values)
                stopped = min((t for t in (higher, lower) if t is not None), default=None)
                times.append(stopped or 805)
                stops.append(stopped is not None and stopped < 805)
                wrong.append(lower is not None and (higher is None or lower < higher))
            deviation = float(np.sqrt((1 - draws) * 0.25 + (1 - draws) * ((rate - 0.5) ** 2) - (truth - 0.5) ** 2))
            fixed = instructions_needed(truth - 0.5, deviation)
            asked = f"{np.mean(times):.0f} ({percent(stops, 0)}% stop)"
            lines.append([f"{100 * truth:.0f}%, {100 * draws:.0f}% draws", asked, percent(wrong), f"{fixed:,}"])
    return rows(["true win rate", "asked", "wrong, %", "fixed n for 80% power"], lines)


# -------------------------------------------------------------------------------------------------- prediction-powered


def judged(random: Generator, agreement: float, bias: float, n: int = 805) -> tuple[Floats, Floats]:
    """People's wins, 60% in truth, and a judge's: right on a share `agreement`, otherwise a coin, and for the system
    whatever it saw on a share `bias`."""
    people = (random.random(n) < 0.6).astype(float)
    judge = np.where(random.random(n) < agreement, people, random.random(n) < 0.5)
    return people, np.where(random.random(n) < bias, 1.0, judge)


JUDGES = {"good, unbiased": (0.8, 0.0), "good, biased": (0.8, 0.3), "as people among themselves, biased": (0.35, 0.2),
          "useless": (0.0, 0.3)}  # fmt: skip


def powered(runs: int) -> Table:
    lines = []
    for name, (agreement, bias) in JUDGES.items():
        for labelled in (25, 100, 300):
            covered, alone, judge_only, saved, half, half_alone = [], [], [], [], [], []
            for random in generators(runs, 70):
                people, judge = judged(random, agreement, bias)
                people[labelled:] = np.nan
                found = prediction_powered(people, judge)
                covered.append(holds(found.combined, 0.6))
                alone.append(holds(found.human, 0.6))
                judge_only.append(holds(found.simulated, 0.6))
                saved.append(max(0, int(found.effective - found.n_human)))
                half.append((found.combined.high - found.combined.low) / 2)
                half_alone.append((found.human.high - found.human.low) / 2)
            widths = [f"{percent(covered)} (± {percent(half)})", f"{percent(alone)} (± {percent(half_alone)})"]
            lines.append([name, str(labelled), *widths, percent(judge_only), f"{np.median(saved):.0f}"])
    header = ["judge", "labelled by people", "**combined**", "people alone", "judge alone", "human labels saved"]
    return rows(header, lines)


# --------------------------------------------------------------------------------------------------------- correlation


def correlations(runs: int) -> Table:
    """A judge whose true win rates are people's stretched, with an error of its own for each system."""
    lines = []
    references = {"spearman": spearmanr, "kendall": kendalltau, "pearson": pearsonr}
    for systems, n in ((10, 252), (20, 805)):
        for kind, exact in references.items():
            over_instructions, over_systems = [], []
            for random in generators(max(1, runs // 8), 80):
                truth = random.uniform(0.15, 0.85, (2000, 1))
                judge = np.clip(0.5 + 1.1 * (truth - 0.5) + 0.04 * random.standard_normal((2000, 1)), 0.02, 0.98)
                human, simulated = (board(random, board_truth[:systems, 0], n) for board_truth in (truth, judge))
                mine = exact(truth[:systems, 0], judge[:systems, 0]).statistic
                all_systems = exact(truth[:, 0], judge[:, 0]).statistic
                found = correlation(human, simulated, kind, resamples=500)  # type: ignore[arg-type]
                over_instructions.append((found.low or -1) <= mine <= (found.high or -1) + 1e-9)
                means = human.mean(axis=1), simulated.mean(axis=1)
                other = correlation(*means, kind, resamples=500)  # type: ignore[arg-type]
                over_systems.append((other.low or -1) <= all_systems <= (other.high or -1) + 1e-9)
            lines.append(
                [f"{systems} systems, {n} instructions", kind, percent(over_systems), percent(over_instructions)]
            )
    return rows(["boards", "correlation", "over systems", "over instructions"], lines)


PARTS: dict[str, Callable[[int], Table]] = {
    "intervals": intervals,
    "clusters": clusters,
    "tests": tests,
    "many-comparisons": many_comparisons,
    "detectable": detectable,
    "ranks": rank_coverage,
    "stopping": stopping,
    "stopping-times": stopping_times,
    "prediction-powered": powered,
    "correlations": correlations,
}


def put(table: Table, name: str, page: Path) -> None:
    """Write it between the markers of its name."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(f"<!-- simulated: {name} -->")
    _, end, after = rest.partition("<!-- /simulated -->")
    if not begin or not end:
        raise SystemExit(f"{page} has no place for the table: <!-- simulated: {name} --> … <!-- /simulated -->")
    page.write_text("\n".join([before + begin, "", *table, "", end + after]), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000, help="simulations a figure; boards take fewer")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    arguments = parser.parse_args()
    for name in arguments.only:
        sys.stderr.write(f"{name} …\n")
        table = PARTS[name](arguments.runs)
        sys.stdout.write("\n".join(table) + "\n\n")
        put(table, name, PAGE)


if __name__ == "__main__":
    main()
