"""Grids of runs: checked, priced, and run one after another or side by side.

Runs share artifacts, judge answers and one budget, so a grid that was stopped goes on with the same command.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar

from afarm import AfarmError, BudgetError, ConfigError, JudgeError, RunRecord, Study, StudyRequest, StudyRun, seeding
from afarm.experiments import (
    Answers,
    GridProgress,
    Launched,
    PlannedStage,
    Systems,
    Workspace,
    by_judge,
    identity,
    list_stages,
    plan_run,
    stored_answers,
    task_graph,
)

D = TypeVar("D")

LOOKED_AT = 24
"""Runs of a grid that are opened to price it; of more, these stand for all."""

MANY = 100
"""Runs from which a command asks before it begins."""

AT_ONCE = 32
"""Runs that a launcher is given at a time: each holds its workspace open."""

OpenWith = Callable[[StudyRun], Workspace]
"""Opens the workspace of a run."""

Evaluate = Callable[[StudyRun, Workspace], RunRecord]
"""Makes what is missing of a run and writes its record."""

Prepare = Callable[[Systems, str], Launched | None]
"""Has a launcher make what is missing of several runs, paid from an account."""


def checked_grid(study: Study, request: StudyRequest) -> list[StudyRun]:
    """Return the runs of a study. Raises `ConfigError` for none, or for one that is stated twice."""
    runs = list(study.grid(request))
    if not runs and not study.reads_files:
        raise ConfigError(["the study has no run: name values, methods or seeds"])
    counts = Counter((run.method, run.seed, run.settings) for run in runs)
    if twice := [run.label for run in runs if counts[run.method, run.seed, run.settings] > 1]:
        raise ConfigError([f"the study states a run twice: {twice[0]}"])
    return runs


def study_directory(root: Path, name: str, runs: Sequence[StudyRun], *more: object) -> Path:
    """Return where findings are kept: one place for an equal grid. `more` also sets studies apart."""
    grid = [{**asdict(run), "place": {key: str(value) for key, value in run.place.items()}} for run in runs]
    return root / "studies" / f"{name.replace('/', '_')}-{seeding.digest(grid, *more, length=6)}"


# ------------------------------------------------------------------------------------------------------------- running


def run_grid(
    runs: Sequence[StudyRun],
    lay_out_run: OpenWith,
    evaluate: Evaluate,
    account: str,
    prepare: Prepare | None = None,
    tell: Callable[[str], None] = lambda heading: None,
) -> Iterator[GridProgress]:
    """Run a grid, and yield its progress as each run ends: one that fails is kept, and the rest goes on.

    With `prepare`, a launcher makes the stages of many runs side by side. Raises `BudgetError` and `JudgeError`, after
    which no other run would come further.
    """
    progress = GridProgress(runs)
    waiting = iter(runs)
    while batch := list(islice(waiting, AT_ONCE if prepare else 1)):
        with ExitStack() as closing:
            opened: list[tuple[StudyRun, Workspace]] = []
            for run in batch:
                try:
                    opened.append((run, closing.enter_context(lay_out_run(run))))
                except AfarmError as error:
                    progress.failed[run.label] = str(error)
                    yield progress
            made = None
            try:
                made = prepare([(run.method, workspace) for run, workspace in opened], account) if prepare else None
            except (
                KeyboardInterrupt,
                BudgetError,
                JudgeError,
            ):  # complete runs are reported, then no more
                wanted = task_graph([(run.method, workspace) for run, workspace in opened], account).wanted
                for run, workspace in opened:
                    if not wanted[workspace]:
                        progress.add(run, evaluate(run, workspace), _answers(workspace))
                        yield progress
                raise
            for run, workspace in opened:
                if made is None:
                    done = len(progress.finished) + len(progress.failed)
                    tell(f"run {done + 1} of {len(runs)}: {run.label}")
                try:
                    with workspace.judges.client.charge_run(account):
                        if made is not None:
                            made.hand_over(workspace)
                        progress.add(run, evaluate(run, workspace), _answers(workspace))
                except (BudgetError, JudgeError):
                    raise
                except AfarmError as error:
                    progress.failed[run.label] = str(error)
                workspace.close()
                yield progress


def _answers(workspace: Workspace) -> Answers:
    """Return a reader of the judges' answers in the ledger, which outlives the workspace."""
    return partial(stored_answers, workspace.judges.ledger_place)


# ------------------------------------------------------------------------------------------------------------- pricing


def sample_runs(runs: Sequence[StudyRun]) -> list[StudyRun]:
    """Draw a representative sample of runs: a few seeds, each at the same few places of the grid.

    The sample shows which stages the runs of one seed share, and which all runs share.
    """
    if len(runs) <= LOOKED_AT:
        return list(runs)
    seeds = _draw_spread(list(dict.fromkeys(run.seed for run in runs)), max(2, LOOKED_AT // len(_by_place(runs))))
    of_seeds = [run for run in runs if run.seed in seeds]
    places = _draw_spread(list(_by_place(of_seeds)), LOOKED_AT // len(seeds))
    return [run for run in of_seeds if (run.method, run.settings) in places]


def _by_place(runs: Sequence[StudyRun]) -> dict[tuple[str, tuple[str, ...]], StudyRun]:
    """Return a run for each place of the grid, whatever its seed."""
    return {(run.method, run.settings): run for run in runs}


def _draw_spread(some: Sequence[D], most: int) -> list[D]:
    return [
        some[place] for place in sorted(range(len(some)), key=lambda place: seeding.uniform("looked at", place))[:most]
    ]


def require_possible(runs: Sequence[StudyRun], lay_out_run: OpenWith) -> None:
    """Lay out runs that stand for all, whatever their seed. Raises `ConfigError` for one that cannot be."""
    for run in _draw_spread(list(_by_place(runs).values()), LOOKED_AT):
        with lay_out_run(run) as workspace:
            list_stages(workspace, run.method)


def plan_grid(runs: Sequence[StudyRun], lay_out_run: OpenWith) -> list[PlannedStage]:
    """Plan what is missing of a grid by kinds of stages; stages that runs share are counted once.

    Of a large grid some runs, drawn, stand for all. Raises `ConfigError` for a run that cannot be.
    """
    groups: dict[tuple[str, bool], list[tuple[PlannedStage, float]]] = {}
    for stage, weight in weighted_stages(runs, lay_out_run).values():
        groups.setdefault((stage.kind, stage.reused), []).append((stage, weight))
    planned = []
    for some in groups.values():
        count = round(sum(weight for _, weight in some))
        judges = by_judge([stage.times(weight) for stage, weight in some])
        first = replace(some[0][0], judges=tuple(judges))
        planned.append(replace(first, label=f"{first.kind} × {count:,}", why="") if count > 1 else first)
    return planned


def weighted_stages(runs: Sequence[StudyRun], lay_out_run: OpenWith) -> dict[str, tuple[PlannedStage, float]]:
    """Return stages by name, each with how many of the grid's it stands for.

    They are those of runs that were drawn to stand for all. Raises `ConfigError` for a run that cannot be.
    """
    sample = sample_runs(runs)
    found: dict[str, PlannedStage] = {}
    seen: dict[str, Counter[int]] = {}
    for run in sample:
        with lay_out_run(run) as workspace:
            shared = {label: identity(stage) for label, stage in list_stages(workspace, run.method).items()}
            for stage in plan_run(workspace, run.method):
                name = shared.get(stage.label, stage.label)
                found.setdefault(name, stage)
                seen.setdefault(name, Counter())[run.seed] += 1
    drawn, of = (len({run.seed for run in some}) for some in (sample, runs))
    return {
        name: (stage, count_alike(seen[name], of / drawn, len(runs) / of / (len(sample) / drawn)))
        for name, stage in found.items()
    }


def count_alike(seen: Mapping[int, int], seeds: float, places: float) -> float:
    """Return how many of a grid's stages one stands for that so many runs of the sample have, by seed.

    Each seed and place of the sample stands for so many `seeds` and `places` of the grid. What one seed has alone the
    others have too, and what one place has alone.
    """
    return (seeds if len(seen) == 1 else 1.0) * (places if max(seen.values()) == 1 else 1.0)
