"""Findings of a comparison of methods: win rates, and their price in KL, time and dollars."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from statistics import fmean

from afarm.evaluation.boards.board import Leaderboard
from afarm.evaluation.boards.rendering import answer, flags, rank_text
from afarm.evaluation.run_stages import sum_costs
from afarm.experiment.studies.estimates import undominated
from afarm.experiment.studies.progress import GridProgress
from afarm.experiment.studies.study import Bounded, Cell, Findings, FinishedRun, Series, StudyPlot, StudyRun, StudyTable
from afarm.storage.runs import RunRecord

COLUMNS = {
    "reward": ("reward", ".2f"),
    "gold": ("gold", ".2f"),
    "kl": ("KL, nats", ".2f"),
    "avg_length": ("characters", ",.0f"),
}
"""Figures of runs that the table has beside the win rate, with their headings and formats."""

EVEN = 50.0
"""The win rate of the reference against itself, in percent."""


def build_progress(records: Sequence[RunRecord]) -> GridProgress:
    """Build a grid's progress from the runs of a comparison."""
    progress = GridProgress([StudyRun(record.results[0].system, int(record.get("seed") or 0)) for record in records])
    for run, record in zip(progress.runs, records, strict=True):
        progress.add(run, record)
    return progress


def comparison_findings(board: Leaderboard, records: Sequence[RunRecord], progress: GridProgress) -> Findings:
    """Rank the systems of a board; plot win rates over KL and cost, and gold over reward."""
    runs: dict[str, list[FinishedRun]] = {}
    all_costs: dict[str, list[tuple[float, float]]] = {}
    for done, record in zip(progress.finished, records, strict=True):
        runs.setdefault(done.run.method, []).append(done)
        all_costs.setdefault(done.run.method, []).append(sum_costs(record.stages))
    costs = {name: tuple(map(fmean, zip(*some, strict=True))) for name, some in all_costs.items()}
    rates = {
        entry.system: Bounded(entry.win_rate or 0.0, *(entry.interval or (None, None)))
        for entry in board.entries
        if entry.system in runs
    }
    several = any(len(some) > 1 for some in runs.values())
    series = [Series("mean" if several else "win rate, %", list(rates), list(rates.values()), joined=False)]
    if several:
        each = [(name, Bounded(run.figures["win_rate"])) for name in rates for run in runs[name]]
        series.append(Series("each seed", [name for name, _ in each], [rate for _, rate in each], joined=False))
    paid = any(dollars for _, dollars in costs.values())  # else the cost is time
    cost = {name: costs[name][1 if paid else 0] for name in rates}
    best = undominated({name: (cost[name], -rate.value) for name, rate in rates.items()})
    unit = "judge dollars per run" if paid else "seconds per run"
    reference = _reference(board, runs)
    shown = {**runs, reference.run.method: [reference]}
    plots = [
        StudyPlot("win-rates", "Win rates, with 95% intervals", "", "win rate, %", series, level=EVEN),
        _over(shown, "kl", "win_rate", "Win rate and KL", "KL from the starting policy, nats", "win rate, %"),
        _over(shown, "reward", "gold", "Reward model and gold", "reward model’s score", "gold reward"),
        frontier_plot(rates, cost, best, unit, log_x=min(cost.values()) > 0),
    ]
    over = "seeds (Student’s t)" if several else "instructions"
    alone = "Seconds are wall time; they and dollars are those of a run made alone, whose stages nothing shares."
    flagged = [f"Flag: {flag}" for flag in flags(board)]
    notes = [board.note, *flagged, f"Intervals of win rates are over {over}. {alone}"]
    table = _table(board, shown, rates, costs, reference.run.method)
    return Findings([table], plots, notes, answer=answer(board))


def _reference(board: Leaderboard, runs: Mapping[str, Sequence[FinishedRun]]) -> FinishedRun:
    """Return the reference as an entry of its own: 50 % by definition, with no KL from itself."""
    ending, every = "_reference", [run.figures for some in runs.values() for run in some]
    figures = {name.removesuffix(ending): v for one in every for name, v in one.items() if name.endswith(ending)}
    names = dict.fromkeys(entry.source.reference for entry in board.entries)
    run = StudyRun(f"{' or '.join(names)} (the reference)", 0)
    return FinishedRun(run, "", {**figures, "win_rate": EVEN, "kl": 0.0})


def _table(
    board: Leaderboard,
    runs: dict[str, list[FinishedRun]],
    rates: dict[str, Bounded],
    costs: Mapping[str, Sequence[float]],
    reference: str,
) -> StudyTable:
    ran = [run for name, some in runs.items() if name != reference for run in some]
    names = [name for name in COLUMNS if any(name in run.figures for run in ran)]
    ranks = {entry.system: rank_text(entry) for entry in board.entries}
    place = sum((entry.win_rate or 0.0) >= EVEN for entry in board.entries)
    rows: list[list[Cell]] = []
    for system in [*list(ranks)[:place], reference, *list(ranks)[place:]]:
        some = runs.get(system, [])
        known = [[run.figures[name] for run in some if name in run.figures] for name in names]
        means = [fmean(values) if values else None for values in known]
        rate = rates.get(system) or Bounded(EVEN)
        rows.append([ranks.get(system), system, rate, *means, *costs.get(system, (None, None))])
    headings = dict(COLUMNS[name] for name in names)
    columns = {"rank": "", "system": "", "win rate, %": ".1f", **headings, "seconds": ",.0f", "judge, $": ",.2f"}
    return StudyTable("board", "Ranking", columns, rows)


def _over(runs: dict[str, list[FinishedRun]], x: str, y: str, title: str, x_title: str, y_title: str) -> StudyPlot:
    """Plot one figure of each run over another, a series per system."""
    series = []
    for name, some in runs.items():
        both = [run for run in some if x in run.figures and y in run.figures]
        if both:
            ends = [(run.figures.get(f"{y}_low"), run.figures.get(f"{y}_high")) for run in both]
            rates = [Bounded(run.figures[y], *pair) for run, pair in zip(both, ends, strict=True)]
            series.append(Series(name, [run.figures[x] for run in both], rates, joined=False))
    level = EVEN if y == "win_rate" else None
    return StudyPlot(f"{y}-over-{x}".replace("_", "-"), title, x_title, y_title, series, level=level)


def frontier_plot(
    rates: Mapping[str, Bounded], costs: Mapping[str, float], best: Collection[str], unit: str, log_x: bool = True
) -> StudyPlot:
    """Plot win rates in percent over costs in a unit, by system; a line joins the `best`."""
    series = []
    for title, names in (
        ("frontier", sorted(best, key=lambda name: (costs[name], name))),
        ("beaten", [name for name in rates if name not in best]),
    ):
        if names:
            x, y = [costs[name] for name in names], [rates[name] for name in names]
            series.append(Series(title, x, y, names, joined=title == "frontier"))
    return StudyPlot("frontier", "Quality and cost", unit, "win rate, %", series, log_x=log_x, level=EVEN)
