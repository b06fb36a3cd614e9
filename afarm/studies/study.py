"""The interface of studies: a grid of runs, and the findings that are read off their figures."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True)
class StudyRequest:
    """The request that a study states its grid for, beside its own settings.

    Args:
        method: The recipe's method.
        seeds: The seeds of the study; the recipe's if none were named.
    """

    method: str
    seeds: tuple[int, ...]


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
        return ", ".join([self.method, *(f"{name} {value}" for name, value in self.place.items()), f"seed {self.seed}"])


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A run of a grid that succeeded: its record's `name` and its `figures`.

    Figures are all numbers of its evaluations by their names (the first evaluation that has one gives it), the
    interval of its win rate over instructions as `win_rate_low` and `win_rate_high`, and the KL to the start as `kl`,
    in nats per response. What was not measured is absent.
    """

    run: StudyRun
    name: str
    figures: Mapping[str, float]


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
    """Points of one colour, at `x` and `y` [points]; `labels` [points] name them, `joined` is a line."""

    name: str
    x: Sequence[float | str]
    y: Sequence[Bounded]
    labels: Sequence[str] = ()
    joined: bool = True


@dataclass(frozen=True, slots=True)
class StudyPlot:
    """A plot of series over one axis: numbers, `log_x` on a logarithmic scale, or texts side by side."""

    name: str
    title: str
    x_title: str
    y_title: str
    series: Sequence[Series]
    log_x: bool = False


@dataclass(frozen=True, slots=True)
class Findings:
    """The findings of a study: tables, plots, and sentences on how to read them."""

    tables: Sequence[StudyTable] = ()
    plots: Sequence[StudyPlot] = ()
    notes: Sequence[str] = ()


class Study(ABC):
    """A grid of runs and its analysis. Built as `Class(config)`, or `Class()` without a config.

    The settings of its config are the options of `afarm study NAME`.
    """

    reads_files = False
    """True if its findings come from files, so that its grid may be empty."""

    @abstractmethod
    def grid(self, request: StudyRequest) -> Sequence[StudyRun]:
        """State the runs, each once, the same for equal requests. Raises `ConfigError`."""

    @abstractmethod
    def analyse(self, finished: Sequence[FinishedRun]) -> Findings:
        """Read the findings off the runs that are there: all of the grid, some, or none.

        Raises `DataError` for a file of its own that cannot be read.
        """
