"""Systems with their evaluations, figures and judged samples, whatever file has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from afarm import Message


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a system, in percent unless `unit` says otherwise; a higher one is better.

    `low` to `high` is a 95% interval, made by `method`. `error` is the standard error, `n` the number of samples.
    """

    name: str
    value: float
    error: float | None = None
    low: float | None = None
    high: float | None = None
    n: int | None = None
    method: str = ""
    bounds: tuple[float, float] = (0.0, 100.0)

    @property
    def interval(self) -> str:
        """The interval in words, such as "95% interval 46.4 to 76.3"; empty if it is unknown."""
        return "" if self.low is None or self.high is None else f"95% interval {self.low:.1f} to {self.high:.1f}"


@dataclass(frozen=True, slots=True)
class Sample:
    """A task with what a system said, and the credit that it got: from 0 to 1.

    `references` are the answers that it was compared with, or the right ones. `choices` are those that a judge chose
    from. `extracted` is the verdict, found by `method`: "llm_judge", "formula", "human" or "rule".
    """

    id: str
    prompt: str
    answers: tuple[str, ...]
    references: tuple[str, ...]
    score: float
    method: str
    extracted: str
    turns: tuple[Message, ...] = ()
    choices: tuple[str, ...] = ()
    details: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Figures of a system that were measured in one way, such as by one judge against one reference.

    `judges` are the identities of the language models that judged; of formulas and people there are none. `judged_by`
    names all. `of_figure` is the figure that is the mean of the samples' scores.
    """

    name: str
    figures: tuple[Figure, ...]
    judged_by: str
    annotator: str = ""
    judges: tuple[str, ...] = ()
    details: Mapping[str, str] = field(default_factory=dict)
    samples: tuple[Sample, ...] = ()
    of_figure: str = ""


@dataclass(frozen=True, slots=True)
class BenchRow:
    """A row of a benchmark of judges: outputs, of which those numbered in `right` are right (none: a tie).

    `judges` has by judge its verdicts of a pair in both orders, whose `label` is the win of the second output, or its
    scores of more answers, without a label. `credit` is from 0 to 1.
    """

    id: str
    subset: str
    prompt: str
    outputs: Sequence[str]
    right: Sequence[int]
    label: float | None
    judges: Mapping[str, Sequence[float | None]]
    credit: Mapping[str, float]
    turns: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class System:
    """A policy, a model's outputs, or a judge, with its evaluations, the main one first.

    `data` names the evaluated tasks, `repository` is their data set on the Hub, if known. `created` is in seconds since
    1970. `trained_here` is True for the policy of a run, `of_board` if figures are all that is known. `generation` has
    temperature, top_p and max_tokens, and `rows` are those of the benchmark that measured a judge.
    """

    name: str
    evaluations: tuple[Evaluation, ...]
    data: str = ""
    repository: str = ""
    created: float = 0.0
    version: str = "unknown"
    trained_here: bool = False
    details: Mapping[str, str] = field(default_factory=dict)
    generation: Mapping[str, Any] = field(default_factory=dict)
    rows: tuple[BenchRow, ...] = ()
    of_board: bool = False

    @property
    def date(self) -> str:
        """When it was made, in ISO 8601 and UTC; empty if that is not known or no date."""
        try:
            return datetime.fromtimestamp(self.created, UTC).isoformat(timespec="seconds") if self.created else ""
        except (ValueError, OverflowError, OSError):
            return ""
