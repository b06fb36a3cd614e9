"""The study `eval-sets`: do systems rank alike on each part of the evaluation instructions?

A set is a part of the instructions: a data set that they come from, those that begin with one word, one that a file
names, or a set of one's own. Systems are methods that are trained, or those of files of annotations.

Source: Dubois et al. 2023 (AlpacaFarm), section 2 and figure 6, where win rates on the evaluation instructions are held
against those on questions that people asked a demonstration.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from afarm import (
    Bounded,
    ConfigError,
    DataError,
    Findings,
    FinishedRun,
    JudgedPair,
    Series,
    Study,
    StudyPlot,
    StudyRequest,
    StudyRun,
    StudyTable,
    is_on_hub,
    mean_interval,
    read_placed_rows,
    seeding,
    why_no_file,
)
from afarm_plugins.studies.boards import FEWEST_SYSTEMS, correlate_shared, read_systems
from afarm_plugins.studies.over_seeds import mean_share, say_highest
from afarm_plugins.studies.settings import EvalSetsConfig, split_names

SET = "set"
"""The place of a run: the set of one's own that it is evaluated on, empty for the recipe's instructions."""

DATASET, FIRST_WORD = "dataset", "first-word"
OTHERS, UNNAMED = "others", "unnamed"

RANDOM_SETS = 200


class EvalSets(Study):
    """Win rates of systems on each set of evaluation instructions, and how the rankings agree."""

    def __init__(self, config: EvalSetsConfig):
        self.config = config
        self.reads_files = bool(config.annotations)
        self._own = dict(_own_set(text) for text in config.own)
        self._set_of = read_sets(config.by)
        if len(self._own) < len(config.own):
            raise ConfigError(["own: two sets have one name"])

    def grid(self, request: StudyRequest) -> Sequence[StudyRun]:
        if self.config.annotations:
            if self._own:
                raise ConfigError(["--own is for methods: in a file of annotations a row names its set in 'dataset'"])
            return []
        places = {"": (), **{name: (f"eval_set={file}", "rows.evaluation=all") for name, file in self._own.items()}}
        return [
            StudyRun(method, seed, {SET: name} if name else {}, settings)
            for name, settings in places.items()
            for method in split_names(self.config.methods)
            for seed in request.seeds
        ]

    def analyse(self, finished: Sequence[FinishedRun]) -> Findings:
        wins: list[Win] = []
        for file in dict.fromkeys(self.config.annotations):
            labelled = [self._win(system, judged) for system, judged in read_systems(file) if judged.win is not None]
            if not labelled:
                raise DataError(f"{file}: has no label")
            wins += labelled
        for done in finished:
            own = str(done.run.place.get(SET, ""))
            wins += [self._win(done.run.method, judged, own) for judged in done.pairs() if judged.win is not None]
        return board_findings(Board.of(wins, self.config.fewest)) if wins else Findings()

    def _win(self, system: str, judged: JudgedPair, own: str = "") -> Win:
        """Return a system's win in a labelled pair, of the set `own` or the one that it belongs to."""
        instruction = judged.pair.instruction
        text = instruction.instruction or (instruction.messages[-1].content if instruction.messages else "")
        if isinstance(self._set_of, Mapping):
            named = self._set_of.get((text, instruction.input), OTHERS)
        elif self._set_of == FIRST_WORD:
            named = "".join(re.findall(r"[^\W\d_]+", text)[:1]).casefold()
        else:
            named = instruction.dataset
        assert judged.win is not None
        return Win(system, own or named or UNNAMED, (own, instruction.id), judged.win)


def _own_set(text: str) -> tuple[str, str]:
    """Split NAME=FILE. Raises `ConfigError`."""
    name, _, file = (part.strip() for part in text.partition("="))
    if not name or not file:
        raise ConfigError([f"own: {text!r}: a name and a file of instructions, such as --own demo=demo.json"])
    if not is_on_hub(file) and (problem := why_no_file(file)):
        raise ConfigError([f"own: {file}: {problem}"])
    return name, file


def read_sets(by: str) -> str | Mapping[tuple[str, str], str]:
    """Return `DATASET`, `FIRST_WORD`, or the sets that a file names, by instruction and input.

    Raises `ConfigError` for no file, and `DataError` for a row without instruction or set.
    """
    if by in (DATASET, FIRST_WORD):
        return by
    if not by or not Path(by).exists():
        raise ConfigError([f"by: {by!r}: {DATASET}, {FIRST_WORD}, or a file of instructions with a field 'dataset'"])
    sets = {}
    for where, row in read_placed_rows(by):
        for field in ("instruction", "dataset"):
            if not isinstance(row.get(field), str) or not row[field].strip():
                raise DataError(f"{where}: field {field!r} is missing; its fields are {', '.join(map(repr, row))}")
        sets[row["instruction"], str(row.get("input") or "")] = row["dataset"].strip()
    return sets


# -------------------------------------------------------------------------------------------------------------- board


@dataclass(frozen=True, slots=True)
class Win:
    """The win of a `system` on a task that belongs to a `set`: 0, 1 or between."""

    system: str
    set: str
    task: tuple[str, str]
    win: float


@dataclass(frozen=True, slots=True)
class Board:
    """The mean win of each system on each task, [systems, tasks], NaN without one; and tasks' sets."""

    systems: Sequence[str]
    wins: Sequence[Sequence[float]]
    sets: Sequence[str]

    @classmethod
    def of(cls, wins: Iterable[Win], fewest: int) -> Board:
        """Build it; sets of fewer than `fewest` tasks are put together. Systems come best first."""
        cells: dict[tuple[str, object], list[float]] = {}
        set_of: dict[object, str] = {}
        for win in wins:
            cells.setdefault((win.system, win.task), []).append(win.win)
            set_of.setdefault(win.task, win.set)
        sizes = Counter(set_of.values())
        sets = [name if sizes[name] >= fewest else OTHERS for name in set_of.values()]
        board: dict[str, list[float]] = {}
        for system in dict.fromkeys(system for system, _ in cells):
            found = (cells.get((system, task), ()) for task in set_of)
            board[system] = [sum(values) / len(values) if values else math.nan for values in found]
        systems = sorted(board, key=lambda system: -_mean(board[system]))
        return cls(systems, [board[system] for system in systems], sets)

    @property
    def names(self) -> list[str]:
        """The sets, the largest first."""
        return [name for name, _ in Counter(self.sets).most_common()]

    def on(self, name: str, *, without: bool = False) -> list[list[float]]:
        """Return the wins on a set alone, or `without` it, all others NaN."""
        kept = [(one == name) != without for one in self.sets]
        return [[win if keep else math.nan for win, keep in zip(row, kept, strict=True)] for row in self.wins]


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return math.fsum(known) / len(known) if known else math.nan


def _rate(values: Sequence[float]) -> Bounded | None:
    """Return a win rate in percent, with its interval over tasks."""
    return mean_share([value for value in values if not math.isnan(value)])


# ----------------------------------------------------------------------------------------------------------- findings


def board_findings(board: Board) -> Findings:
    """Return win rates by set, and how the ranking on each agrees with that on the others."""
    names = board.names
    columns = {"system": "", "all": ".1f", **dict.fromkeys(names, ".1f")}
    on_sets = [[_rate(row) for row in board.on(name)] for name in names]
    whole = [_rate(row) for row in board.wins]
    rows = [[system, whole[n], *(on[n] for on in on_sets)] for n, system in enumerate(board.systems)]
    tables = [StudyTable("board", "Win rates in percent, with 95% intervals over instructions", columns, rows)]
    notes = []
    if len(names) < 2:
        notes.append(f"All instructions are of one set, {names[0]}: part them with --by {FIRST_WORD} or --by FILE.")
        return Findings(tables, [], notes, answer=say_highest(tables[0]))
    if len(board.systems) < FEWEST_SYSTEMS:
        notes.append(f"A correlation needs {FEWEST_SYSTEMS} systems; there are {len(board.systems)}.")
    else:
        tables += [_agreement(board), _tabulate_left_out(board)]
        notes += NOTES
    series = []
    for name, rates in zip(names, on_sets, strict=True):
        points = [
            (every.value, rate, system)
            for every, rate, system in zip(whole, rates, board.systems, strict=True)
            if every is not None and rate is not None
        ]
        series.append(Series.of_points(name, points))
    title = "Win rates by set of instructions"
    plot = StudyPlot("eval-sets", title, "win rate on all instructions, %", "on the set, %", series)
    return Findings(tables, [plot], [*notes, *_mismatches(board)], answer=say_highest(tables[0]))


NOTES = [
    "A set is compared with the rest of the instructions, which it has no part in; intervals are over instructions.",
    f"Random: the same for {RANDOM_SETS} sets of that many instructions drawn from all, and the range that holds "
    "95% of them. A set below that range ranks systems otherwise, not only with fewer instructions.",
]


def _agreement(board: Board) -> StudyTable:
    """Table how the ranking on each set agrees with that on the rest."""
    columns = {"set": "", "instructions": "d"}
    columns |= {f"{of}{name}": ".2f" for name in SHOWN for of in ("", "random: ")}
    rows = []
    for name in board.names:
        found = correlate_shared(board.on(name), board.on(name, without=True))
        size = sum(one == name for one in board.sets)
        by_chance = of_random_sets(board.wins, size)
        rows.append([name, size, *(cell for of in SHOWN for cell in (found.get(of), by_chance.get(of)))])
    return StudyTable("agreement", "The ranking on each set and that on the rest", columns, rows)


SHOWN = ("Spearman", "R²")


def _tabulate_left_out(board: Board) -> StudyTable:
    """Compare the rankings by each set alone, and without it, with the ranking by all instructions."""
    columns = {"set": "", "alone": ".2f", "left out": ".2f", "moves most": "", "by": "+.1f"}
    rows: list[list[str | float | Bounded | None]] = []
    for name in board.names:
        alone, without = board.on(name), board.on(name, without=True)
        both = [correlate_shared(part, board.wins).get("Spearman") for part in (alone, without)]
        moves = {
            system: 100 * (_mean(row) - _mean(every))
            for system, row, every in zip(board.systems, without, board.wins, strict=True)
            if not math.isnan(_mean(row))
        }
        most = max(moves, key=lambda system: abs(moves[system]), default="")
        rows.append([name, *both, most, moves.get(most)])
    title = "Spearman with the ranking by all instructions, of a set alone and if it is left out"
    return StudyTable("left-out", title, columns, rows)


def of_random_sets(wins: Sequence[Sequence[float]], size: int) -> dict[str, Bounded]:
    """Correlate random sets of `size` tasks with the rest: of each of `SHOWN` the mean and 95% range.

    `wins` is [systems, tasks]. Empty if there is no rest, or systems do not differ.
    """
    import numpy as np
    from scipy.stats import rankdata

    table = np.asarray(wins, dtype=np.float64)
    there, count = ~np.isnan(table), table.shape[1]
    if not 0 < size < count:
        return {}
    draw = np.random.default_rng(seeding.integer("random sets", size, count))
    chosen = np.zeros((RANDOM_SETS, count))
    for row in chosen:
        row[draw.permutation(count)[:size]] = 1
    with np.errstate(invalid="ignore"):
        first, second = (
            (part @ np.where(there, table, 0).T) / (part @ there.T.astype(np.float64)) for part in (chosen, 1 - chosen)
        )
        whole = ~np.isnan(first + second).any(axis=1)
        first, second = first[whole], second[whole]
        found = {
            "Spearman": _row_by_row(rankdata(first, axis=1), rankdata(second, axis=1)),
            "R²": _row_by_row(first, second) ** 2,
        }
    ranges = {name: values[np.isfinite(values)] for name, values in found.items()}
    return {
        name: Bounded(float(values.mean()), *(float(end) for end in np.quantile(values, [0.025, 0.975])))
        for name, values in ranges.items()
        if len(values)
    }


def _row_by_row(first: Any, second: Any) -> Any:
    """Return Pearson's r of each row of one array with that of the other."""
    first, second = (part - part.mean(axis=1, keepdims=True) for part in (first, second))
    return (first * second).sum(axis=1) / ((first**2).sum(axis=1) * (second**2).sum(axis=1)) ** 0.5


def _mismatches(board: Board) -> Iterator[str]:
    """Name the pairs of systems that a set surely orders otherwise than the rest; count the others."""
    unsure = 0
    for name in board.names:
        alone, without = board.on(name), board.on(name, without=True)
        for one, two in combinations(range(len(board.systems)), 2):
            gaps = [100 * (a - b) for a, b in zip(alone[one], alone[two], strict=True) if not math.isnan(a - b)]
            rest = 100 * (_mean(without[one]) - _mean(without[two]))
            gap = mean_interval(gaps) if gaps else None
            if gap is None or math.isnan(rest) or gap.value * rest >= 0:
                continue
            if gap.low is None or gap.high is None or gap.low <= 0 <= gap.high:
                unsure += 1
                continue
            first, second = board.systems[one], board.systems[two]
            yield (
                f"Mismatch: on {name}, {first} less {second} is {gap.value:+.1f} points (95% {gap.low:+.1f} to "
                f"{gap.high:+.1f}), on the rest {rest:+.1f}."
            )
    if unsure:
        yield f"{unsure} pair{'s' * (unsure > 1)} of systems change places on a set, by no more than its error."
