"""Conformance of studies: their grid, and the findings from all, some and none of its runs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from afarm.core.errors import ConfigError, type_name
from afarm.core.seeding import uniform
from afarm.experiment.studies.findings import require_findings
from afarm.experiment.studies.study import Bounded, Findings, FinishedRun, Study, StudyRequest, StudyRun
from afarm.testing.conformance import as_in_a_run, require

REQUEST = StudyRequest("ppo", (1, 2))


def check_study(study: Study) -> None:
    """Check that a study states the same grid each time, and analyses whatever runs are there.

    Facts that it looks up must be JSON. A study whose grid needs further settings (`ConfigError`) is checked without
    runs. Raises `ConformanceError` naming the broken promise.
    """
    try:
        runs = study.grid(REQUEST)
    except ConfigError:
        _check_findings(study.analyse([]))
        return
    require(isinstance(runs, Sequence), f"grid must return a list of afarm.StudyRun, not {type_name(runs)}")
    runs = list(runs)
    require(runs != [] or study.reads_files, "grid must state a run, unless the study reads files")
    require(all(isinstance(run, StudyRun) for run in runs), "grid must return afarm.StudyRun")
    require(list(study.grid(REQUEST)) == runs, "grid must state the same runs for the same request")
    facts = study.look_up()
    try:
        is_kept = isinstance(facts, Mapping) and json.loads(json.dumps(dict(facts))) == facts
    except (TypeError, ValueError):
        is_kept = False
    require(is_kept, "look_up must return JSON, which its record keeps")
    study.know(facts)
    labels = [(run.method, run.seed, run.settings) for run in runs]
    require(len(set(labels)) == len(labels), "grid must state each run once")
    fewer = study.grid(StudyRequest(REQUEST.method, REQUEST.seeds[:1]))
    require(len(fewer) <= len(runs), "grid must not state more runs for fewer seeds")
    finished = [_finished(run) for run in runs]
    for some in (finished, finished[::2], finished[:1], []):
        _check_findings(study.analyse(some))
        require(study.analyse(some) == study.analyse(some), "analyse must find the same in the same runs")


def _finished(run: StudyRun) -> FinishedRun:
    """Make up a run's figures."""
    rate, size = 100 * uniform("rate", run.label), uniform("size", run.label)
    figures = {"win_rate": rate, "win_rate_low": rate - 2, "win_rate_high": rate + 2, "standard_error": 1.0}
    figures |= {"kl": 10 * size, "reward": 3 * size, "gold": 1 - size, "avg_length": 100 + 50 * size}
    checkpoints = [{"step": 10.0 * step, "win_rate": rate + step, "kl": size * step} for step in (1, 2)]
    return FinishedRun(run, f"run-{run.label}", figures, checkpoints)


def _check_findings(findings: Findings) -> None:
    with as_in_a_run():
        require_findings(findings, "study")
    for table in findings.tables:
        numbers = [number for row in table.rows for cell in row for number in _numbers(cell)]
        require(all(map(math.isfinite, numbers)), f"table {table.name}: numbers must be finite: {table.rows}")
    for plot in findings.plots:
        numbers = [number for series in plot.series for y in series.y for number in _numbers(y)]
        require(all(map(math.isfinite, numbers)), f"plot {plot.name} must have finite numbers")


def _numbers(cell: object) -> Sequence[float]:
    if isinstance(cell, Bounded):
        return [end for end in cell if end is not None]
    return [cell] if isinstance(cell, int | float) else []
