"""A launcher whose only node is this process, in which code, clock or directories may differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest

from afarm.experiment import tasks
from afarm.experiment.launching.launcher import Execute, Launcher, Outcome, StageTask, TaskEvent, Tell

Change = Callable[[pytest.MonkeyPatch], None]


class OneNode(Launcher):
    """Runs tasks in this process, of which `change` makes another machine, as do other values of the `farm`."""

    def __init__(self, change: Change = lambda there: None, **farm: str):
        self.change, self.farm = change, farm

    def nodes(self) -> Sequence[str]:
        return ["node2"]

    nodes_at_once = nodes

    def run(self, tasks: Sequence[StageTask], execute: Execute, tell: Tell) -> Mapping[str, Outcome]:
        (task,) = tasks
        assert task.needs.node == "node2"
        task = replace(task, farm=replace(task.farm, **self.farm))
        told: list[TaskEvent] = []
        with pytest.MonkeyPatch.context() as there:
            self.change(there)
            outcome = execute(task, told.append)
        for event in told:
            tell(event)
        return {task.id: outcome}


def another_code(there: pytest.MonkeyPatch) -> None:
    there.setattr(tasks, "code_digest", lambda kind: f"edited {kind}")


def another_plugin(there: pytest.MonkeyPatch) -> None:
    digest = tasks.plugin_digest
    there.setattr(tasks, "plugin_digest", lambda c: "edited" if c.plugin == "afarm:judges" else digest(c))
