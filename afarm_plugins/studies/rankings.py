"""The study `rankings`: do simulated annotators rank systems as people do?

With a file of people's labels the systems are those that people compared. Without one, methods are trained and
evaluated twice: by the recipe's simulated annotators, and on labels of people, or of an annotator that stands for them,
with other seeds.

Source: Dubois et al. 2023 (AlpacaFarm), section 4.1, figure 3 and table 2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations

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
    correlate_boards,
    mean_interval,
    rank_of_each,
)
from afarm_plugins.studies.boards import FEWEST_SYSTEMS, Board, correlate_shared, say_agreement
from afarm_plugins.studies.labels import HumanLabels
from afarm_plugins.studies.over_seeds import over_seeds
from afarm_plugins.studies.people import PEOPLE, PairsOfPeople, read_people, require_both
from afarm_plugins.studies.settings import RankingsConfig, split_names

SIMULATED = "simulated"

OTHER_SEEDS = 1000
"""What is added to a seed for runs by people: what both have of one seed would pass for agreement."""

Rates = Mapping[str, Bounded]
"""The win rate of each system in percent, with its 95% interval."""


class Rankings(Study):
    """Systems ranked by people and by simulated annotators."""

    never_opened = ("people_preferences",)

    def __init__(self, config: RankingsConfig):
        self.config = config
        self.reads_files = bool(config.humans)
        self.methods = split_names(config.methods)
        self.people = HumanLabels.parse(config.people, config.people_preferences, self.methods)

    def grid(self, request: StudyRequest) -> Sequence[StudyRun]:
        require_both(self.config.humans, self.config.judged)
        if self.config.humans and self.people.files:
            raise ConfigError(["--humans ranks systems that are there, --people-preferences trains some: give one"])
        if self.config.humans:
            return []
        learned = {method: self.people.settings(method) for method in self.methods}
        simulated = [StudyRun(method, seed, {"by": SIMULATED}) for method in self.methods for seed in request.seeds]
        return simulated + [
            StudyRun(method, seed + OTHER_SEEDS, {"by": PEOPLE}, (*settings, *self.people.judging))
            for method, settings in learned.items()
            if settings is not None
            for seed in request.seeds
        ]

    def analyse(self, finished: Sequence[FinishedRun]) -> Findings:
        if self.config.humans:
            return of_files(read_people(self.config.humans, self.config.judged))
        return of_runs(finished, self.people, self.methods)


# ------------------------------------------------------------------------------------------------------------- files


def of_files(games: PairsOfPeople) -> Findings:
    """Rank the systems of files by people and by each judge."""
    systems = games.systems
    raters = {PEOPLE: games.people, **{judge: [judge] for judge in games.judges}}
    boards = {name: games.board(members) for name, members in raters.items()}
    measured = {name: _rate_and_rank(systems, board) for name, board in boards.items()}
    rates, ranks = ({name: both[place] for name, both in measured.items()} for place in (0, 1))
    rows, answers = [], []
    for judge in games.judges:
        cells = _cells(correlate_shared(boards[judge], boards[PEOPLE]))
        answers.append(say_agreement(judge, "people do", len(systems), cells[0]))
        rows.append([judge, PEOPLE, games.answered(judge), games.unanswered[judge], *cells])
    for person in games.people if len(games.people) > 1 else ():
        others = [other for other in games.people if other != person]
        cells = _cells(correlate_shared(games.board([person]), games.board(others)))
        rows.append([person, "the other people", games.answered(person), 0, *cells])
    columns = {"rater": "", "with": "", "pairs": "d", "no answer": "d", **_CORRELATIONS}
    agreement = StudyTable("agreement", "Agreement of rankings, with 95% intervals over instructions", columns, rows)
    notes = [
        "A win rate is the mean over instructions of a system's comparisons with all others, a draw as half a win; "
        "its interval is over instructions.",
        "A rank's interval holds those ranks that the data do not rule out, other systems taken together.",
        *(f"{judge} has no label for {s}." for judge in games.judges for s in systems if s not in rates[judge]),
        *(note for judge in games.judges for note in _mismatches(judge, rates, boards, systems)),
    ]
    tables = [_board(systems, rates, ranks), agreement]
    return Findings(tables, [_plot(systems, rates)], notes, answer=" ".join(filter(None, answers)))


def _rate_and_rank(systems: Sequence[str], board: Board) -> tuple[Rates, Rates]:
    """Return the win rate and the rank of each system that has two instructions."""
    known = {
        system: values
        for system, values in zip(systems, board, strict=True)
        if sum(not math.isnan(value) for value in values) > 1
    }
    rates = {name: mean_interval([100 * v for v in values if not math.isnan(v)]) for name, values in known.items()}
    ranks = rank_of_each(list(known.values())) if known else []
    return rates, dict(zip(known, ranks, strict=True))


def _mismatches(
    judge: str, rates: Mapping[str, Rates], boards: Mapping[str, Board], systems: Sequence[str]
) -> list[str]:
    """Name the systems that a judge puts in another order than people, and how sure people are."""
    notes = []
    for one, two in combinations([s for s in systems if s in rates[judge] and s in rates[PEOPLE]], 2):
        gap, theirs = (rates[name][one].value - rates[name][two].value for name in (judge, PEOPLE))
        if gap * theirs < 0:
            better, worse = (one, two) if theirs > 0 else (two, one)
            first, second = (boards[PEOPLE][systems.index(system)] for system in (better, worse))
            met = [100 * (a - b) for a, b in zip(first, second, strict=True) if not math.isnan(a - b)]
            sure = mean_interval(met) if met else None
            between = f", 95% {sure.low:+.1f} to {sure.high:+.1f} on shared instructions" if sure and sure.low else ""
            notes.append(
                f"Mismatch: {judge} puts {worse} above {better} by {abs(gap):.1f} points, people {better} above "
                f"{worse} by {abs(theirs):.1f}{between}."
            )
    return notes


# -------------------------------------------------------------------------------------------------------------- runs


def of_runs(finished: Sequence[FinishedRun], people: HumanLabels, methods: Sequence[str]) -> Findings:
    """Rank methods by their win rates in both worlds; those that one world lacks are named."""
    worlds: dict[str, dict[str, list[FinishedRun]]] = {PEOPLE: {}, SIMULATED: {}}
    for done in finished:
        worlds[str(done.run.place["by"])].setdefault(done.run.method, []).append(done)
    rates = {
        by: {method: rate for method, runs in methods.items() if (rate := over_seeds(runs, "win_rate")) is not None}
        for by, methods in worlds.items()
    }
    either = list(dict.fromkeys([*rates[PEOPLE], *rates[SIMULATED]]))
    both = [method for method in either if all(method in rates[by] for by in worlds)]
    theirs, simulated = ([rates[by][method].value for method in both] for by in worlds)
    what = RATE if people.annotator else RATE_BY_ONE_JUDGE
    notes = people.notes(methods) if finished else []
    notes += [
        f"{method} is left out of the correlation: one world lacks it." for method in either if method not in both
    ]
    rows, answer = [], ""
    if len(both) >= FEWEST_SYSTEMS:
        cells = _cells(correlate_boards(simulated, theirs))
        answer = say_agreement("The simulation", "people do", len(both), cells[0])
        rows = [[SIMULATED, PEOPLE, len(both), "methods", *cells]]
        seeds = {done.run.seed for runs in worlds[SIMULATED].values() for done in runs}
        seeds |= {done.run.seed - OTHER_SEEDS for runs in worlds[PEOPLE].values() for done in runs}
        if len(seeds) > 1:
            boards = [
                _by_seed([worlds[by][method] for method in both], [seed + more for seed in sorted(seeds)])
                for by, more in ((SIMULATED, 0), (PEOPLE, OTHER_SEEDS))
            ]
            rows.append([SIMULATED, PEOPLE, len(both), "seeds", *_cells(correlate_boards(*boards))])
    elif finished:
        notes.append(f"A correlation needs {FEWEST_SYSTEMS} methods in both worlds; there are {len(both)}.")
    for one, two in combinations(both, 2):
        gap, other = (rates[by][one].value - rates[by][two].value for by in (SIMULATED, PEOPLE))
        if gap * other < 0:
            notes.append(f"Mismatch: {one} less {two} is {gap:+.1f} points simulated and {other:+.1f} by people.")
    columns = {"rater": "", "with": "", "methods": "d", "interval over": "", **_CORRELATIONS}
    agreement = StudyTable("agreement", "Agreement of rankings, with 95% intervals", columns, rows)
    plots = [_plot(both, rates, what)] if both else []
    return Findings([_board(either, rates, {}, what), agreement], plots, notes, answer=answer)


def _by_seed(methods: Sequence[Sequence[FinishedRun]], seeds: Sequence[int]) -> Board:
    """Return the win rate of each method with each seed, NaN without one."""
    by_seed = [{done.run.seed: done.figures.get("win_rate", math.nan) for done in runs} for runs in methods]
    return [[rates.get(seed, math.nan) for seed in seeds] for rates in by_seed]


# ------------------------------------------------------------------------------------------------------------- tables

RATE, RATE_BY_ONE_JUDGE = "win rate by", "win rate, labels by"
"""The heading of win rates before the rater; the second if one judge rates what each rater's labels have taught."""

_CORRELATIONS = {"Spearman": ".2f", "Kendall": ".2f", "R²": ".2f"}


def _cells(correlations: Mapping[str, Bounded | None]) -> list[Bounded | None]:
    return [correlations.get(name) for name in _CORRELATIONS]


def _board(
    systems: Sequence[str], rates: Mapping[str, Rates], ranks: Mapping[str, Rates], what: str = RATE
) -> StudyTable:
    """Table the systems, best by people first."""
    columns = {"system": ""}
    for rater in rates:
        columns |= {f"{what} {rater}": ".1f"} | ({f"rank by {rater}": ".0f"} if rater in ranks else {})
    rows = []
    for system in sorted(systems, key=lambda name: -(rates[PEOPLE].get(name) or Bounded(-1)).value):
        cells: list[Bounded | None] = []
        for rater in rates:
            cells += [rates[rater].get(system), *([ranks[rater].get(system)] if rater in ranks else [])]
        rows.append([system, *cells])
    return StudyTable("board", "Win rates in percent, with 95% intervals", columns, rows)


def _plot(systems: Sequence[str], rates: Mapping[str, Rates], what: str = RATE) -> StudyPlot:
    """Plot the win rates by each rater over those by people."""
    series = []
    for rater in (name for name in rates if name != PEOPLE):
        known = [system for system in systems if system in rates[rater] and system in rates[PEOPLE]]
        x = [rates[PEOPLE][system] for system in known]
        series.append(Series(rater, x, [rates[rater][system] for system in known], known, joined=False))
    title = f"Win rates{what.removeprefix('win rate')} people and simulated"
    return StudyPlot("rankings", title, f"{what} people, %", "simulated, %", series, diagonal=True)
