"""`check_launcher` goes red for launchers that break one promise each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from afarm import Execute, Launcher, Outcome, Schedule, StageTask, Tell
from afarm.testing import ConformanceError, check_launcher
from afarm_plugins.local_workers.launcher import LocalLauncher


class Altered(LocalLauncher):
    """Two workers whose tasks, or what is told of them, are altered by subclasses."""

    def __init__(self) -> None:
        super().__init__(spec="2")


class Unordered(Altered):
    def run(self, tasks: Sequence[StageTask], execute: Execute, tell: Tell) -> Mapping[str, Outcome]:
        return super().run([replace(task, after=()) for task in reversed(tasks)], execute, tell)


class Mute(Altered):
    def run(self, tasks: Sequence[StageTask], execute: Execute, tell: Tell) -> Mapping[str, Outcome]:
        return super().run(tasks, execute, lambda event: tell(event) if event.news == "ended" else None)


class HidesLosses(Altered):
    def run(self, tasks: Sequence[StageTask], execute: Execute, tell: Tell) -> Mapping[str, Outcome]:
        return super().run(tasks, execute, lambda event: tell(event) if event.news != "lost" else None)


class StopsWhatIsBehind(Altered):
    def run(self, tasks: Sequence[StageTask], execute: Execute, tell: Tell) -> Mapping[str, Outcome]:
        harsh = [replace(task, after=(*task.after, *task.behind), behind=()) for task in tasks]
        return super().run(harsh, execute, tell)


class ForgetsOutcomes(Altered):
    def run(self, tasks: Sequence[StageTask], execute: Execute, tell: Tell) -> Mapping[str, Outcome]:
        return dict(list(super().run(tasks, execute, tell).items())[:-1])


class TriesFailuresAgain(Launcher):
    """In this process: it gets no further than the failures."""

    def run(self, tasks: Sequence[StageTask], execute: Execute, tell: Tell) -> Mapping[str, Outcome]:
        schedule = Schedule(tasks, tell)
        while not schedule.is_done:
            for task in schedule.ready():
                schedule.begin(task)
                outcome = execute(task, tell)
                schedule.settle(execute(task, tell) if outcome.error else outcome)
        return schedule.outcomes


BROKEN: dict[type[Launcher], str] = {
    Unordered: "before all that it comes after are done",
    Mute: "what execute tells must be handed on",
    HidesLosses: "a lost worker must be told of",
    StopsWhatIsBehind: "a task behind one that failed must be run",
    ForgetsOutcomes: "run must return an afarm.Outcome for 'last'",
    TriesFailuresAgain: "a task that failed is not run again",
}


@pytest.mark.parametrize("launcher", BROKEN, ids=lambda launcher: launcher.__name__)
def test_a_broken_promise_is_named(launcher: type[Launcher], tmp_path: Path) -> None:
    with pytest.raises(ConformanceError, match=BROKEN[launcher]):
        check_launcher(launcher(), tmp_path)
