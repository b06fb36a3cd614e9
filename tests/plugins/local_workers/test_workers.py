"""The launcher `local:N`: it keeps the promises of launchers, and leaves no process behind."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from afarm.core.errors import ConfigError
from afarm.experiment.launching.launcher import FarmSpec, Needs, Outcome, StageTask, TaskEvent, Tell
from afarm.testing import check_launcher
from afarm_plugins.local_workers.launcher import LocalLauncher

LIMIT = 300
"""Seconds after which a process is taken to hang."""


def task(directory: Path, name: str, after: tuple[str, ...] = ()) -> StageTask:
    return StageTask(name, name, "made", after, Needs(), FarmSpec("", {}, {}, str(directory), str(directory), "", ""))


def test_it_keeps_the_promises_of_launchers(tmp_path: Path) -> None:
    check_launcher(LocalLauncher(spec="2"), tmp_path)


@pytest.mark.parametrize("spec", ["", "0", "-1", "two", "2.5", "²"])
def test_a_number_of_workers_that_is_none_is_refused(spec: str) -> None:
    with pytest.raises(ConfigError, match="such as local:2"):
        LocalLauncher(spec=spec)


def meet(task: StageTask, tell: Tell) -> Outcome:
    """Wait until another task has begun: alone it would wait for ever."""
    directory = Path(task.farm.output_dir)
    (directory / task.id).touch()
    while len(list(directory.iterdir())) < 2:
        time.sleep(0.01)
    return Outcome(task.id, f"made/{task.id}", place=str(os.getpid()))


def test_tasks_run_at_once_in_processes_of_their_own(tmp_path: Path) -> None:
    outcomes = LocalLauncher(spec="2").run([task(tmp_path, "a"), task(tmp_path, "b")], meet, lambda event: None)
    assert len({outcome.place for outcome in outcomes.values()} - {str(os.getpid())}) == 2


def test_a_task_before_the_one_it_comes_after_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="comes before one that it waits for"):
        LocalLauncher(spec="1").run([task(tmp_path, "a", after=("b",)), task(tmp_path, "b")], meet, lambda event: None)


def test_a_task_of_several_processes_is_a_problem_before_it_runs(tmp_path: Path) -> None:
    gang = StageTask("gang", "gang", "train", (), Needs(processes=2), task(tmp_path, "gang").farm)
    assert LocalLauncher(spec="2").problems([gang]) == [
        "gang needs several processes that start together, which it cannot give"
    ]


def hang(task: StageTask, tell: Tell) -> Outcome:
    """Never end."""
    tell(TaskEvent(task.id, "started", str(os.getpid())))
    while True:
        time.sleep(1)


def interrupted(tell: list[TaskEvent]) -> Tell:
    def hear(event: TaskEvent) -> None:
        tell.append(event)
        raise KeyboardInterrupt

    return hear


def test_an_interrupt_ends_every_worker(tmp_path: Path) -> None:
    heard: list[TaskEvent] = []
    with pytest.raises(KeyboardInterrupt):
        LocalLauncher(spec="2").run([task(tmp_path, "a"), task(tmp_path, "b")], hang, interrupted(heard))
    assert not psutil.pid_exists(int(heard[0].place))


def lock(task: StageTask, tell: Tell) -> Outcome:
    """Take a lock of the system, as bars of progress do: one that only its process gives back."""
    globals()["kept"] = multiprocessing.get_context("spawn").RLock()
    return Outcome(task.id, f"made/{task.id}")


ENDED = """
import sys
from pathlib import Path
import test_workers
from afarm_plugins.local_workers.launcher import LocalLauncher
tasks = [test_workers.task(Path(sys.argv[1]), name) for name in "ab"]
LocalLauncher(spec="2").run(tasks, test_workers.lock, lambda event: None)
"""


def test_workers_that_are_done_give_back_their_locks(tmp_path: Path) -> None:
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    command = [sys.executable, "-c", ENDED, str(tmp_path)]
    said = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths}, check=True)
    assert not said.stderr, "Python tells of locks that were left"


COMMAND = """
import sys
from pathlib import Path
import test_workers
from afarm_plugins.local_workers.launcher import LocalLauncher
tasks = [test_workers.task(Path(sys.argv[1]), "a")]
LocalLauncher(spec="1").run(tasks, test_workers.hang, lambda event: print(event.place, flush=True))
"""


def test_workers_end_with_a_command_that_was_killed(tmp_path: Path) -> None:
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    command = subprocess.Popen(
        [sys.executable, "-c", COMMAND, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert command.stdout is not None
    worker = psutil.Process(int(command.stdout.readline()))
    command.kill()
    command.communicate()
    worker.wait(LIMIT)
