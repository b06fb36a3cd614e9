"""Conformance of launchers: the order of tasks, failed ones, and workers that are killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from afarm.experiment.launching.launcher import FarmSpec, Launcher, Needs, Outcome, StageTask, TaskEvent, Tell
from afarm.experiment.launching.schedule import ATTEMPTS
from afarm.testing.conformance import require


def check_launcher(launcher: Launcher, directory: Path) -> None:
    """Check that tasks run in order and once, and how failures and lost workers are handled.

    Workers must be able to write to `directory`, an empty one. Raises `ConformanceError` naming the broken promise.
    """
    require(dict(launcher.run([], act, lambda event: None)) == {}, "run of no tasks must return no outcomes")
    require(isinstance(launcher.describe(), str) and launcher.describe() != "", "describe must say what it runs on")
    _check_order(launcher, _empty(directory / "order"))
    _check_failure(launcher, _empty(directory / "failure"))
    _check_lost_worker(launcher, _empty(directory / "lost"))
    _check_hopeless_task(launcher, _empty(directory / "hopeless"))


def _check_order(launcher: Launcher, directory: Path) -> None:
    base, left, right = (_task(directory, name) for name in ("base", "left", "right"))
    left, right = replace(left, after=("base",)), replace(right, after=("base",))
    last = _task(directory, "last", after=("left", "right"))
    outcomes, events = _run(launcher, [base, left, right, last])
    done = [f"made/{name}" for name in ("base", "left", "right", "last")]
    require([outcome.artifact for outcome in outcomes] == done, "run must return what execute returned, task by task")
    lines = _lines(directory)
    require(sorted(lines) == ["base", "last", "left", "right"], "a task that is done must be run once")
    require((lines[0], lines[-1]) == ("base", "last"), "a task must not begin before all that it comes after are done")
    for task in ("base", "left", "right", "last"):
        news = [event.news for event in events if event.task == task]
        require(news[:1] == ["started"], f"what execute tells must be handed on, first that {task} is started: {news}")
        require("noted" in news, f"what execute tells must be handed on, notes too: {news}")
        require(news[-1:] == ["ended"] and news.count("ended") == 1, f"each outcome is told once, at last: {news}")


def _check_failure(launcher: Launcher, directory: Path) -> None:
    fails = _task(directory, "fails", does="fail")
    after = _task(directory, "after", after=("fails",))
    later = _task(directory, "later", after=("after",))
    behind = replace(_task(directory, "behind"), behind=("fails",))
    outcomes, _ = _run(launcher, [fails, after, later, behind])
    failed, stopped, stopped_too, done = outcomes
    require((failed.error, failed.error_type) == ("no luck", "TrainingError"), "a failed task must keep its error")
    require(
        _lines(directory).count("fails") == 1, "a task that failed is not run again: only lost workers are no answer"
    )
    for outcome in (stopped, stopped_too):
        named = "fails" in outcome.error and not outcome.error_type and not outcome.artifact
        require(named, f"a task after a failed one must not begin, and its outcome names that one: {outcome}")
    in_order = done.is_done and _lines(directory) == ["fails", "behind"]
    require(in_order, "a task behind one that failed must be run, once that has ended")


def _check_lost_worker(launcher: Launcher, directory: Path) -> None:
    dies = _task(directory, "dies", does="die once")
    outcomes, events = _run(launcher, [dies, _task(directory, "after", after=("dies",)), _task(directory, "other")])
    require(
        all(outcome.is_done for outcome in outcomes), f"a task whose worker was killed must be run again: {outcomes}"
    )
    require(_lines(directory).count("dies") == 2, "a task whose worker was killed must be run again, once")
    require(("dies", "lost") in [(event.task, event.news) for event in events], "a lost worker must be told of")


def _check_hopeless_task(launcher: Launcher, directory: Path) -> None:
    outcomes, _ = _run(launcher, [_task(directory, "dies", does="die"), _task(directory, "other")])
    hopeless, other = outcomes
    named = hopeless.error != "" and hopeless.error_type != ""
    require(named, "a task whose worker is lost each time must fail in the end, with an error")
    tried = _lines(directory).count("dies")
    require(tried == ATTEMPTS, f"a task whose worker is lost each time is begun {ATTEMPTS} times, not {tried}")
    require(other.is_done, "a task that kills its workers must not keep others from being run")


def _run(launcher: Launcher, tasks: Sequence[StageTask]) -> tuple[list[Outcome], list[TaskEvent]]:
    events: list[TaskEvent] = []
    outcomes: Mapping[str, Outcome] = launcher.run(tasks, act, events.append)
    for task in tasks:
        require(isinstance(outcomes.get(task.id), Outcome), f"run must return an afarm.Outcome for {task.id!r}")
    told = {event.task: event.outcome for event in events if event.news == "ended"}
    require(told == dict(outcomes), "the outcomes that are told and those that are returned must be the same")
    return [outcomes[task.id] for task in tasks], events


def _task(directory: Path, name: str, after: tuple[str, ...] = (), does: str = "end well") -> StageTask:
    farm = FarmSpec("", {}, {}, str(directory.absolute()), str(directory.absolute()), "", "")
    return StageTask(name, does, "made", after, Needs(), farm)


def act(task: StageTask, tell: Tell) -> Outcome:
    """Execute a task: write its line, then end well, fail, or kill this process, once or each time."""
    tell(TaskEvent(task.id, "started", f"process {os.getpid()}"))
    tell(TaskEvent(task.id, "noted", text="at work"))
    directory = Path(task.farm.output_dir)
    before = _lines(directory).count(task.id)
    with (directory / "lines").open("a") as handle:
        handle.write(f"{task.id}\n")
    if task.stage == "die" or (task.stage == "die once" and not before):
        os.kill(os.getpid(), signal.SIGKILL)
    if task.stage == "fail":
        return Outcome(task.id, error="no luck", error_type="TrainingError")
    return Outcome(task.id, f"made/{task.id}", place=f"process {os.getpid()}")


def _lines(directory: Path) -> list[str]:
    path = directory / "lines"
    return path.read_text().split() if path.exists() else []


def _empty(directory: Path) -> Path:
    directory.mkdir(parents=True)
    return directory
