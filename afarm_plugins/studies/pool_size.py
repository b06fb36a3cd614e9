"""The study `pool-size`: what do more members give to a pool of annotators?

Members stand in a circle, in an order drawn from the seed, and a pool is so many of them side by side; pools of one
size begin at places evenly apart. So they differ, each member is in about as many, and a larger one holds the smaller.

Source: Dubois et al. 2023 (AlpacaFarm), section 3 and appendix C, for a pool of 13.
"""

from __future__ import annotations

from collections.abc import Sequence

from afarm import (
    HUMANS,
    AnnotatorReport,
    Bounded,
    ConfigError,
    Findings,
    FinishedRun,
    Label,
    Study,
    StudyPlot,
    StudyRequest,
    StudyRun,
    StudyTable,
    as_bounded,
    compare_annotators,
    mean_percent,
    seeding,
)
from afarm_plugins.studies.labels import Labels, labels_in_run
from afarm_plugins.studies.over_seeds import draw_lines, grouped, measured_figures, over_seeds, say_highest
from afarm_plugins.studies.settings import PoolSizeConfig, split_names, whole_numbers

SIZE, POOL, DRAW = "members", "pool", "draw"
"""The places of a run: a pool's size (0 for people), its number, and which of its labels (0 to learn from them)."""

SHOWN = ("agreement", "bias", "variance")


class PoolSize(Study):
    """Agreement, bias and variance of pools by their size, and what methods learn from them."""

    brief = {"sizes": "1,4,13", "pools": 2, "draws": 3}

    def __init__(self, config: PoolSizeConfig):
        self.config = config
        self.members = split_names(config.members)
        self.sizes = whole_numbers("sizes", config.sizes)
        self.methods = split_names(config.methods) if config.methods else []
        if self.sizes[-1] > len(self.members):
            raise ConfigError([f"sizes: {self.sizes[-1]}: there are {len(self.members)} members to draw from"])

    def grid(self, request: StudyRequest) -> Sequence[StudyRun]:
        runs = []
        people, draws = Labels(self.config.people, 0.0), range(1, self.config.draws + 1)
        learned = *Labels("pool", self.config.noise).settings, f"evaluate.annotator={people.annotator}"
        for seed in request.seeds:
            places = [{SIZE: 0, POOL: 0, DRAW: draw} for draw in draws]
            runs += [StudyRun(self.config.method, seed, place, people.judging(place[DRAW])) for place in places]
            for size in self.sizes:
                for number, pool in enumerate(draw_pools(self.members, size, self.config.pools, seed), start=1):
                    place, own = {SIZE: size, POOL: number}, f"pool.members=[{', '.join(pool)}]"
                    for draw in draws:
                        judging = *Labels("pool", 0.0).judging(draw), own
                        runs.append(StudyRun(self.config.method, seed, {**place, DRAW: draw}, judging))
                    runs += [StudyRun(method, seed, {**place, DRAW: 0}, (*learned, own)) for method in self.methods]
        return runs

    def analyse(self, finished: Sequence[FinishedRun]) -> Findings:
        labels: dict[str, list[Label]] = {HUMANS: []}
        for done in finished:
            if done.run.place[DRAW]:
                size, seed = int(done.run.place[SIZE]), done.run.seed
                name = f"{size} {done.run.place[POOL]} {seed}" if size else HUMANS
                labels.setdefault(name, []).extend(labels_in_run(done, name))
        learned = [done for done in finished if not done.run.place[DRAW]]
        return pool_findings(compare_annotators({n: found for n, found in labels.items() if found}), learned)


def draw_pools(members: Sequence[str], size: int, pools: int, seed: int) -> list[list[str]]:
    """Draw `pools` different pools of one size, or all of them if there are fewer."""
    circle = sorted(members, key=lambda member: seeding.uniform("pool size", seed, member))
    starts = dict.fromkeys(len(circle) * number // pools for number in range(pools))
    drawn = dict.fromkeys(frozenset((circle * 2)[start : start + size]) for start in starts)
    return [[member for member in members if member in pool] for pool in drawn]


# ----------------------------------------------------------------------------------------------------------- findings


def pool_findings(report: AnnotatorReport, learned: Sequence[FinishedRun]) -> Findings:
    """Return pools' figures by size, and those of methods that learned from their labels."""
    by_size: dict[int, list[dict[str, Bounded]]] = {}
    for profile in report.profiles:
        if profile.annotator != HUMANS:
            figures = {name: figure for name in SHOWN if (figure := as_bounded(getattr(profile, name))) is not None}
            by_size.setdefault(int(profile.annotator.split()[0]), []).append(figures)
    rows, lines = [], dict[str, list[tuple[float, Bounded]]]()
    for size, pools in sorted(by_size.items()):
        means = {name: over_pools([pool[name] for pool in pools if name in pool]) for name in SHOWN}
        agreements = [pool["agreement"].value for pool in pools if "agreement" in pool]
        rows.append([size, len(pools), *means.values(), min(agreements, default=None), max(agreements, default=None)])
        for name, mean in means.items():
            lines.setdefault(name, []).extend([(float(size), mean)] if mean is not None else [])
    columns = {SIZE: "d", "pools": "d", **{f"{name}, %": ".1f" for name in SHOWN}}
    columns |= {"least agreement": ".1f", "most agreement": ".1f"}
    title = "Pools by their number of members, with 95% intervals"
    tables = [StudyTable("pools", title, columns, rows)] if rows else []
    series = draw_lines(lines)
    plots = [StudyPlot("pools", "Pools beside people", SIZE, "of labels, %", series)] if series else []
    if learned:
        table, plot = _learned(learned)
        tables, plots = [*tables, table], [*plots, plot]
    return Findings(tables, plots, NOTES if rows else [], answer=say_highest(tables[0]) if tables else "")


NOTES = [
    "Agreement is that of one label with the mode of all labels of people; bias is the error of the mode of a pool's "
    "labels, variance that of one label against the mode of the pool's others.",
    "Intervals are over pools and seeds; of a single pool, over pairs. They leave out that all judge the same pairs.",
]


def over_pools(figures: Sequence[Bounded]) -> Bounded | None:
    """Return the mean of pools' figures with its interval over pools; of one pool its own."""
    if len(figures) < 2:
        return figures[0] if figures else None
    return mean_percent([figure.value for figure in figures])


def _learned(finished: Sequence[FinishedRun]) -> tuple[StudyTable, StudyPlot]:
    """Table and plot what methods learned, judged by people."""
    figures = measured_figures(finished)
    columns = {"method": "", SIZE: "d", "runs": "d", **dict(figures.values())}
    rows, lines = [], dict[str, list[tuple[float, Bounded]]]()
    for method in dict.fromkeys(done.run.method for done in finished):
        groups = grouped([done for done in finished if done.run.method == method], SIZE)
        for size, runs in sorted((int(str(size)), runs) for (size,), runs in groups.items()):
            rows.append([method, size, len(runs), *(over_seeds(runs, name) for name in figures)])
            if (rate := over_seeds(runs, "win_rate")) is not None:
                lines.setdefault(method, []).append((float(size), rate))
    table = StudyTable("methods", "Learned from pools' labels, judged by people, with 95% intervals", columns, rows)
    return table, StudyPlot("methods", "Win rate by people", SIZE, "win rate, %", draw_lines(lines))
