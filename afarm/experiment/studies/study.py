"""The interface of studies: a grid of runs, and the findings that are read off their figures."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from afarm.core.interfaces import AnnotateContext
from afarm.core.judge import ChatRequest, Completion
from afarm.core.records import JudgedPair, Output

Answers = Callable[[Sequence[str]], Mapping[str, Completion]]
"""Returns judges' answers, those that are there, by their keys in the ledger."""


@dataclass(frozen=True, slots=True)
class StudyRequest:
    """The request that a study states its grid for, beside its own settings.

    Args:
        method: The recipe's method.
        seeds: The seeds of the study; the recipe's if none were named.
        output_dir: Where runs are kept, for a study that reads those that are there.
    """

    method: str
    seeds: tuple[int, ...]
    output_dir: Path = Path("afarm-runs")


@dataclass(frozen=True, slots=True)
class StudyRun:
    """One run of a grid: a method with a seed under settings, as overrides of the recipe.

    `place` is its place in the grid, such as {"dpo.beta": "0.1"}: numbers and texts by which tables group runs.
    """

    method: str
    seed: int
    place: Mapping[str, Any] = field(default_factory=dict)
    settings: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Its place in words, with the method and the seed."""
        place = (
            f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in self.place.items()
        )
        return ", ".join([self.method, *place, f"seed {self.seed}"])


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A run of a grid that succeeded: its record's `name` and its `figures`.

    Figures are all numbers of its evaluations by their names (the first evaluation that has one gives it), the
    interval of its win rate over instructions as `win_rate_low` and `win_rate_high`, and the KL to the start as `kl`,
    in nats per response. What was not measured is absent.

    `checkpoints` are figures of the checkpoints that training compared on the validation split, in order of their
    `step`: the win rate there over the start policy (`win_rate`, with the ends of its interval), and the KL (`kl`), the
    score of the reward model (`reward`) and the length in characters (`avg_length`) as far as they were logged. Empty
    for methods without checkpoints, and if the last counts.

    `pairs()` reads the judged pairs of its main comparison, the reference's output first, anew at each call; `answers`
    returns the judges' answers behind them, by their keys in the ledger.
    """

    run: StudyRun
    name: str
    figures: Mapping[str, float]
    checkpoints: Sequence[Mapping[str, float]] = ()
    pairs: Callable[[], Sequence[JudgedPair]] = tuple
    answers: Answers = lambda keys: {}


class Bounded(NamedTuple):
    """A figure with its 95% interval; without one, `low` and `high` are None."""

    value: float
    low: float | None = None
    high: float | None = None


Cell = str | float | int | Bounded | None


@dataclass(frozen=True, slots=True)
class StudyTable:
    """A table: its columns with the format of their numbers (such as ".1f"; "" for text), and its rows.

    `name` is that of its files.
    """

    name: str
    title: str
    columns: Mapping[str, str]
    rows: Sequence[Sequence[Cell]]


class Series(NamedTuple):
    """Points of one colour, at `x` and `y` [points]; `labels` [points] name them, `joined` is a line.

    `fit` is a curve through them, as (x, y)s in order of x, which is drawn instead of the line.
    """

    name: str
    x: Sequence[float | str | Bounded]
    y: Sequence[Bounded]
    labels: Sequence[str] = ()
    joined: bool = True
    fit: Sequence[tuple[float, float]] = ()

    @classmethod
    def of_points(cls, name: str, points: Sequence[tuple[float | str | Bounded, Bounded, str]]) -> Series:
        """Return a series of points, one or more, as (x, y, label)s, that no line joins."""
        x, y, labels = zip(*points, strict=True)
        return cls(name, x, y, labels, joined=False)


@dataclass(frozen=True, slots=True)
class StudyPlot:
    """A plot of series over one axis: numbers, `log_x` on a logarithmic scale, or texts side by side.

    With `diagonal` both axes are alike, and the line where x is y is drawn; another one at the height `level`, such as
    50 where win rates are even. A plot of fewer than two points is not drawn.
    """

    name: str
    title: str
    x_title: str
    y_title: str
    series: Sequence[Series]
    log_x: bool = False
    diagonal: bool = False
    level: float | None = None


@dataclass(frozen=True, slots=True)
class Findings:
    """The findings of a study: tables, plots, and sentences on how to read them.

    `answer` is what the study found, in a sentence: pages and screens begin with it and with the first table. `files`
    are further texts that lie beside the page, by their file names.
    """

    tables: Sequence[StudyTable] = ()
    plots: Sequence[StudyPlot] = ()
    notes: Sequence[str] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    answer: str = ""


class Study(ABC):
    """A grid of runs and its analysis. Built as `Class(config)`, or `Class()` without a config.

    The settings of its config are the options of `afarm study NAME`.
    """

    reads_files = False
    """True if its findings come from files, so that its grid may be empty."""

    brief: ClassVar[Mapping[str, Any]] = {}
    """Settings of its own for a small grid, which `afarm study all` runs: minutes in the toy world."""

    never_opened: ClassVar[Collection[str]] = ()
    """Settings that look like files, such as base models, and which at most `look_up` opens: a replay keeps them."""

    @abstractmethod
    def grid(self, request: StudyRequest) -> Sequence[StudyRun]:
        """State the runs, each once, the same for equal requests. Raises `ConfigError`."""

    def look_up(self) -> Mapping[str, Any]:
        """Return the facts that its findings need beside runs and files, such as sizes of models, as JSON.

        They go into its record, so that a replay looks nothing up.
        """
        return {}

    def know(self, facts: Mapping[str, Any]) -> None:  # noqa: B027 - most studies look nothing up
        """Keep for `analyse` what `look_up` returned: now, or when the record was written (by anybody)."""

    @abstractmethod
    def analyse(self, finished: Sequence[FinishedRun]) -> Findings:
        """Read the findings off the runs that are there: all of the grid, some, or none.

        Raises `DataError` for a file of its own that cannot be read.
        """


class DataStudy(Study):
    """A study of the rows of the recipe's data set, which are read before its findings are."""

    reads_files = True

    @abstractmethod
    def read(self, load: Callable[[str], Sequence[Output]]) -> None:
        """Keep for `analyse` what it needs of the data set, whose splits `load` returns.

        `load` raises `DataError` for a split that is not there.
        """


class JudgingStudy(Study):
    """A study that has judges label pairs of its own, within its budget, before its findings are read.

    Answers are in the ledger, so one that was stopped goes on with the same command.
    """

    reads_files = True

    @abstractmethod
    def plan(self, context: AnnotateContext) -> Sequence[ChatRequest]:
        """Return the requests that `judge` would send now. Sends nothing."""

    @abstractmethod
    def judge(self, context: AnnotateContext) -> None:
        """Label the pairs and keep the labels for `analyse`.

        Raises `DataError` for a file that cannot be read, `JudgeError` and `BudgetError` as `context.ask` does.
        """
