"""The order of tasks: which can begin now, what a failure stops, what is begun again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from afarm.core.errors import ConfigError
from afarm.experiment.launching.launcher import Outcome, StageTask, TaskEvent, Tell

ATTEMPTS = 3
"""Times that a task is begun before it is given up, if its worker is lost each time."""


class Schedule:
    """The tasks of a launcher that begins them itself, and their `outcomes` so far, by their ids.

    Raises `ConfigError` if a task comes before one that it waits for, or two have one id.
    """

    def __init__(self, tasks: Sequence[StageTask], tell: Tell):
        self.outcomes: dict[str, Outcome] = {}
        self._tell = tell
        self._waiting: dict[str, StageTask] = {}
        self._attempts = dict.fromkeys((task.id for task in tasks), 0)
        for task in tasks:
            if task.id in self._waiting or not task.may_begin(self._waiting):
                raise ConfigError(f"task {task.id!r} is there twice, or comes before one that it waits for")
            self._waiting[task.id] = task

    @property
    def is_done(self) -> bool:
        """True once every task has its outcome."""
        return len(self.outcomes) == len(self._attempts)

    def ready(self) -> Iterator[StageTask]:
        """Yield the tasks that can begin now, in order: for each call `begin`, or leave it for later.

        Those that a failure has stopped get their outcome.
        """
        for task in list(self._waiting.values()):
            ended = [self.outcomes[name] for name in task.after if name in self.outcomes]
            if failed := next((outcome for outcome in ended if not outcome.is_done), None):
                del self._waiting[task.id]
                self.settle(Outcome(task.id, error=f"{failed.task} failed" if failed.error_type else failed.error))
            elif task.may_begin(self.outcomes):
                yield task

    def begin(self, task: StageTask) -> None:
        """Note that a task is at work."""
        del self._waiting[task.id]
        self._attempts[task.id] += 1

    def settle(self, outcome: Outcome) -> None:
        """Note and tell what came of a task."""
        self.outcomes[outcome.task] = outcome
        self._tell(TaskEvent(outcome.task, "ended", outcome.place, outcome=outcome))

    def lose(self, task: StageTask, cause: str) -> None:
        """Note that a task's worker is gone: unless that was the last time, it waits to begin again."""
        if self._attempts[task.id] < ATTEMPTS:
            self._tell(TaskEvent(task.id, "lost", text=cause))
            self._waiting = {task.id: task, **self._waiting}
        else:
            error = f"its worker was lost {ATTEMPTS} times, at last: {cause}. What it made so far is kept"
            self.settle(Outcome(task.id, error=error, error_type="AfarmError"))
