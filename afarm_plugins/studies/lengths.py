"""The study `lengths`: outputs' lengths before and after each method, and wins by length.

Source: Dubois et al. 2023 (AlpacaFarm), tables 3, 6 and 7.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from afarm import (
    Bounded,
    Findings,
    FinishedRun,
    Series,
    Study,
    StudyPlot,
    StudyRequest,
    StudyRun,
    StudyTable,
    correlate_boards,
    mean_interval,
)
from afarm_plugins.studies.boards import FEWEST_SYSTEMS, read_systems
from afarm_plugins.studies.over_seeds import draw_lines, mean_share, say_highest
from afarm_plugins.studies.settings import LengthsConfig, split_names

ENDS = (0.5, 0.8, 1.25, 2.0)
"""The ends between bands of relative length: the output's characters over the reference's."""

BANDS = ("under half", "half to 0.8", "0.8 to 1.25", "1.25 to twice", "over twice")


@dataclass(frozen=True, slots=True)
class PairLengths:
    """One comparison with the reference: characters of both, the `task`, and the win if there is one."""

    seed: int
    task: str
    before: int
    after: int
    win: float | None

    @property
    def band(self) -> str:
        """The band of its relative length; an empty reference is shorter than anything else."""
        ratio = self.after / self.before if self.before else (float("inf") if self.after else 1.0)
        return BANDS[bisect_right(ENDS, ratio)]


class Lengths(Study):
    """Characters of outputs before and after each method, preference for the longer, and wins by length."""

    def __init__(self, config: LengthsConfig):
        self.config = config
        self.reads_files = bool(config.annotations)

    def grid(self, request: StudyRequest) -> Sequence[StudyRun]:
        if self.config.annotations:
            return []
        return [StudyRun(method, seed) for method in split_names(self.config.methods) for seed in request.seeds]

    def analyse(self, finished: Sequence[FinishedRun]) -> Findings:
        files = dict.fromkeys(self.config.annotations)
        compared = [(system, 0, judged) for file in files for system, judged in read_systems(file)]
        for done in finished:
            compared += [(done.run.method, done.run.seed, pair) for pair in done.pairs() if not pair.unanswered]
        systems: dict[str, list[PairLengths]] = {}
        for system, seed, judged in compared:
            pair = judged.pair
            lengths = PairLengths(seed, pair.instruction.id, len(pair.output_1), len(pair.output_2), judged.win)
            systems.setdefault(system, []).append(lengths)
        return length_findings(systems, self.config.difference)


# ----------------------------------------------------------------------------------------------------------- findings


def length_findings(systems: Mapping[str, Sequence[PairLengths]], difference: int) -> Findings:
    """Return lengths, wins by relative length, and the correlation of both over systems."""
    if not systems:
        return Findings()
    columns = {"system": "", "pairs": "d", "reference's characters": ".0f", "characters": ".0f", "times": ".2f"}
    columns |= {"win rate": ".1f", "prefers the longer, %": ".1f"}
    rows: list[Sequence[str | float | Bounded | None]] = []
    for system, found in systems.items():
        before, after = fmean(one.before for one in found), fmean(one.after for one in found)
        length = over_seeds_or_tasks([(one.seed, float(one.after)) for one in found])
        rate = over_seeds_or_tasks([(one.seed, one.win) for one in found if one.win is not None], mean_share)
        longer = over_seeds_or_tasks([(one.seed, c) for one in found for c in _choice(one, difference)], mean_share)
        rows.append([system, len(found), before, length, after / before if before else None, rate, longer])
    tables = [StudyTable("lengths", "Characters of outputs before and after, with 95% intervals", columns, rows)]
    bands = []
    for band in BANDS:
        within = {system: [one for one in found if one.band == band] for system, found in systems.items()}
        bands.append([band, sum(map(len, within.values())), *(_rate(found) for found in within.values())])
    columns = {"length over the reference's": "", "pairs": "d", **dict.fromkeys(systems, ".1f")}
    tables.append(StudyTable("by-length", "Win rate by relative length, with 95% intervals", columns, bands))
    seeds = any(len({one.seed for one in found}) > 1 for found in systems.values())
    notes = [
        f"Prefers the longer: of the judge's choices between outputs that differ by more than {difference} characters.",
        f"Intervals are over instructions{', in the first table over seeds' if seeds else ''}.",
        "A win rate that rises with relative length may be a judge's taste for length, or better answers that are "
        "longer: only people, a known reward, or the evaluator length_controlled tell them apart.",
    ]
    points = [(row[3], row[5], str(row[0])) for row in rows]
    known = [(x.value, y, name) for x, y, name in points if isinstance(x, Bounded) and isinstance(y, Bounded)]
    if len(known) >= FEWEST_SYSTEMS:
        rho = correlate_boards([x for x, _, _ in known], [y.value for _, y, _ in known])["Spearman"]
        between = f" (95% {rho.low:.2f} to {rho.high:.2f})" if rho and rho.low is not None else ""
        notes += [f"Over systems, length and win rate have Spearman's ρ {rho.value:.2f}{between}."] if rho else []
    return Findings(tables, _plots(known, systems), notes, answer=say_highest(tables[0]))


def _choice(one: PairLengths, difference: int) -> list[float]:
    """Return 1 for a choice of the longer output, 0 for the shorter; nothing if there is none to make."""
    if one.win is None or one.win == 0.5 or abs(one.after - one.before) <= difference:
        return []
    return [float((one.win > 0.5) == (one.after > one.before))]


def over_seeds_or_tasks(
    values: Sequence[tuple[int, float]], mean: Callable[[Sequence[float]], Bounded | None] = mean_interval
) -> Bounded | None:
    """Return the mean of values with its interval: over seeds if there are several, else over the values."""
    by_seed: dict[int, list[float]] = {}
    for seed, value in values:
        by_seed.setdefault(seed, []).append(value)
    if not by_seed:
        return None
    return mean([fmean(of) for of in by_seed.values()] if len(by_seed) > 1 else [v for _, v in values])


def _rate(found: Iterable[PairLengths]) -> Bounded | None:
    """Return a win rate in percent, an instruction's mean over seeds counting once."""
    by_task: dict[str, list[float]] = {}
    for one in found:
        if one.win is not None:
            by_task.setdefault(one.task, []).append(one.win)
    return mean_share([fmean(wins) for wins in by_task.values()])


def _plots(
    known: Sequence[tuple[float, Bounded, str]], systems: Mapping[str, Sequence[PairLengths]]
) -> list[StudyPlot]:
    plots = []
    if known:
        series = [Series.of_points("systems", known)]
        plots.append(StudyPlot("win-rate-by-length", "Win rate over length", "mean characters", "win rate, %", series))
    lines = {
        system: [(b, rate) for b in BANDS if (rate := _rate(one for one in found if one.band == b)) is not None]
        for system, found in systems.items()
    }
    title = "Win rate by an output's length over the reference's"
    plots.append(StudyPlot("by-length", title, "length over the reference's", "win rate, %", draw_lines(lines)))
    return plots
