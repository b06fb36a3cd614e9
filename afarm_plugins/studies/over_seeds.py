"""Figures of equal runs with several seeds, as one figure with its interval."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from afarm import Bounded, FinishedRun, Series, StudyTable, mean_interval, mean_percent
from afarm.report import cell_text

SHOWN: Mapping[str, tuple[str, str]] = {
    "win_rate": ("win rate", ".1f"),
    "kl": ("KL", ".2f"),
    "reward": ("reward", ".2f"),
    "gold": ("gold", ".2f"),
    "avg_length": ("characters", ".0f"),
}
"""The figures that tables show if runs have them: their headings and formats, the win rate in percent."""


def grouped(finished: Sequence[FinishedRun], *names: str) -> dict[tuple[Hashable, ...], list[FinishedRun]]:
    """Group runs by these of their places, in the order they come."""
    groups: dict[tuple[Hashable, ...], list[FinishedRun]] = {}
    for done in finished:
        groups.setdefault(tuple(done.run.place[name] for name in names), []).append(done)
    return groups


def over_seeds(runs: Sequence[FinishedRun], figure: str) -> Bounded | None:
    """Return the mean of a figure over runs with its 95% interval; None if none has it.

    Over several seeds that is Student's interval of their mean. The win rate of a single one has that over its
    instructions.
    """
    values = [run.figures[figure] for run in runs if figure in run.figures]
    if not values:
        return None
    if len(values) > 1:
        return mean_percent(values) if figure == "win_rate" else mean_interval(values)
    [run] = (run for run in runs if figure in run.figures)
    return Bounded(values[0], run.figures.get(f"{figure}_low"), run.figures.get(f"{figure}_high"))


def mean_share(shares: Sequence[float]) -> Bounded | None:
    """Return the mean of shares in percent, as `mean_percent` does; None if there is none."""
    return mean_percent([100 * share for share in shares]) if shares else None


def gap_by_seed(runs: Sequence[FinishedRun], others: Sequence[FinishedRun]) -> Bounded | None:
    """Return the points by which the win rate of `runs` is above that of `others`, paired by seed.

    With its 95% interval over seeds; None if they share none.
    """
    theirs = {done.run.seed: done.figures["win_rate"] for done in others if "win_rate" in done.figures}
    gaps = [
        done.figures["win_rate"] - theirs[done.run.seed]
        for done in runs
        if done.run.seed in theirs and "win_rate" in done.figures
    ]
    return mean_interval(gaps) if gaps else None


def say_highest(table: StudyTable) -> str:
    """Say which row has the highest first figure, and which intervals overlap that row's."""
    places = [
        place for place in range(len(table.columns)) if any(isinstance(row[place], Bounded) for row in table.rows)
    ]
    names = [place for place, form in enumerate(table.columns.values()) if not form] or [0]
    known = [(row[places[0]], ", ".join(str(row[n]) for n in names)) for row in table.rows if places]
    ranked = [(figure, name) for figure, name in known if isinstance(figure, Bounded)]
    ranked.sort(key=lambda pair: -pair[0].value)
    if len(ranked) < 2:
        return ""
    (best, first), *others = ranked
    near = [name for each, name in others if best.low is None or each.high is None or each.high >= best.low]
    apart = f"not clearly apart from it: {'; '.join(near[:5])}{' …' * (len(near) > 5)}" if near else "clearly ahead"
    heading, form = list(table.columns.items())[places[0]]
    return f"{first} has the highest {heading}, {cell_text(best, form)}; {apart}."


def draw_lines(lines: Mapping[str, Sequence[tuple[float | str, Bounded]]], joined: bool = True) -> list[Series]:
    """Return a series for each name that has points, as (x, y)s."""
    return [
        Series(name, [x for x, _ in line], [y for _, y in line], joined=joined) for name, line in lines.items() if line
    ]


def measured_figures(finished: Sequence[FinishedRun]) -> dict[str, tuple[str, str]]:
    """Return those of `SHOWN` that some run has."""
    return {name: form for name, form in SHOWN.items() if any(name in run.figures for run in finished)}
