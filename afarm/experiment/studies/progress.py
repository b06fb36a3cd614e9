"""Progress of a grid of runs, and the figures of those that have finished."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from afarm.evaluation.metrics import NORMAL_95, finite_number, win_rate_interval, within_percent
from afarm.experiment.studies.study import Answers, FinishedRun, StudyRun
from afarm.storage.rows import read_preferences, read_rows
from afarm.storage.runs import METRICS, OUTPUTS, RunRecord, simulated_judges


@dataclass(slots=True)
class GridProgress:
    """The runs of a grid: those `finished`, and the errors of those `failed`, by their labels.

    `simulated` names the judges of finished runs that are formulas.
    """

    runs: Sequence[StudyRun]
    finished: list[FinishedRun] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    simulated: set[str] = field(default_factory=set)

    @property
    def missing(self) -> int:
        """The runs that were not begun, or not ended."""
        return len(self.runs) - len(self.finished) - len(self.failed)

    def add(self, run: StudyRun, record: RunRecord, answers: Answers = lambda keys: {}) -> None:
        """Add a run that has ended with its record; `answers` returns those of judges by their keys."""
        self.finished.append(_finished(run, record, answers))
        self.simulated.update(simulated_judges(record))


def _finished(run: StudyRun, record: RunRecord, answers: Answers) -> FinishedRun:
    figures: dict[str, float] = {}
    for result in record.results:
        for name, value in result.metrics.items():
            if (number := finite_number(value)) is not None:
                figures.setdefault(name, number)
        if "win_rate" in result.metrics and "win_rate_low" not in figures:
            ends = win_rate_interval(result.metrics)
            figures |= {} if ends is None else {"win_rate_low": ends[0], "win_rate_high": ends[1]}
    if (kl := finite_number(record.section("headline").get("kl"))) is not None:
        figures["kl"] = kl
    checkpoints = read_checkpoints(record.directory / METRICS)
    pairs = partial(read_preferences, record.directory / OUTPUTS)
    return FinishedRun(run, record.name, figures, checkpoints, pairs, answers)


LOGGED = {
    "validation/win_rate": "win_rate",
    "objective/kl": "kl",
    "objective/scores": "reward",
    "validation/length": "avg_length",
}
"""What training logs about a checkpoint, by its name there, and as a figure of a study."""


def read_checkpoints(path: Path) -> list[dict[str, float]]:
    """Read the figures of the checkpoints that training compared, in order of their step.

    None without the file. Of a step that was logged twice, as after a kill, the later row counts.
    """
    by_step: dict[float, dict[str, float]] = {}
    for row in read_rows(path) if path.is_file() else ():
        step = finite_number(row.get("step"))
        if row.get("stage") == "train" and step is not None:
            known = {name: number for name, value in row.items() if (number := finite_number(value)) is not None}
            by_step.setdefault(step, {}).update(known)
    found = []
    for step, logged in sorted(by_step.items()):
        if "validation/win_rate" not in logged:
            continue
        figures = {"step": step, **{figure: logged[name] for name, figure in LOGGED.items() if name in logged}}
        if (error := logged.get("validation/standard_error")) is not None:
            rate, half = figures["win_rate"], NORMAL_95 * error
            figures["win_rate_low"], figures["win_rate_high"] = within_percent(rate - half, rate + half)
        found.append(figures)
    return found
