"""The launcher `local:N`: stages side by side in worker processes of this machine."""

from __future__ import annotations

import multiprocessing
import os
import platform
import signal
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from afarm import ConfigError, Execute, Launcher, Needs, Outcome, Schedule, StageTask, TaskEvent, Tell

SPAWN = multiprocessing.get_context("spawn")
"""Workers begin afresh: a fork would share threads' locks and the accelerator's state."""

GRACE = 5.0
"""Seconds that a worker has to end before it is killed."""


class LocalLauncher(Launcher):
    """Makes stages in `N` worker processes, each with one stage at a time."""

    def __init__(self, config: None = None, spec: str = "", context: object = None):
        """Read the number of workers from `spec`. Raises `ConfigError` for what is none."""
        if not (spec.isdecimal() and spec.isascii() and int(spec) > 0):
            raise ConfigError([f"launcher local:{spec}: write how many stages may run at once, such as local:2"])
        self.at_once: int = int(spec)

    def describe(self) -> str:
        return f"{self.at_once} worker process{'es' if self.at_once > 1 else ''} of this machine"

    def requested_resources(self, needs: Needs) -> Needs:
        """Return the resources reserved for a task: no CPU and no GPU of its own."""
        return replace(needs, cpus=0, gpus=0)

    def nodes(self) -> Sequence[str]:
        return [platform.node()]

    def run(self, tasks: Sequence[StageTask], execute: Execute, tell: Tell) -> Mapping[str, Outcome]:
        schedule = Schedule(tasks, tell)
        workers: list[Worker] = []
        try:
            while not schedule.is_done:
                for task in schedule.ready():
                    if idle := _idle(workers, self.at_once, execute):
                        schedule.begin(task)
                        idle.begin(task)
                busy: dict[object, tuple[Worker, StageTask]] = {w.connection: (w, w.task) for w in workers if w.task}
                for connection in wait([w.connection for w, _ in busy.values()]) if busy else ():
                    worker, task = busy[connection]
                    try:
                        news = worker.connection.recv()
                    except (EOFError, OSError):
                        workers.remove(worker)
                        schedule.lose(task, worker.cause_of_death())
                        continue
                    if isinstance(news, Outcome):
                        worker.task = None
                        schedule.settle(news)
                    else:
                        tell(news)
        finally:
            for worker in workers:
                worker.leave()
            for worker in workers:
                worker.end()
        return schedule.outcomes


@dataclass(slots=True)
class Worker:
    """A process that makes one task after another, and this end of its pipe. `task` is the one at work."""

    process: BaseProcess
    connection: Connection[Any, Any]
    task: StageTask | None = None

    def begin(self, task: StageTask) -> None:
        """Send it a task. If it has ended meanwhile, the pipe says so when it is read."""
        self.task = task
        with suppress(OSError):
            self.connection.send(task)

    def cause_of_death(self) -> str:
        """Say how the process ended, once it has."""
        self.process.join()
        code = self.process.exitcode or 0
        how = f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return f"process {self.process.pid} {how}"

    def leave(self) -> None:
        """Tell it to end: at once if it is at work, else by itself.

        A process that is made to end leaves locks of the system behind.
        """
        self.connection.close()
        if self.task is not None:
            self.process.terminate()

    def end(self) -> None:
        """End the process, which was told to, whatever it does."""
        self.process.join(GRACE)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def _idle(workers: list[Worker], size: int, execute: Execute) -> Worker | None:
    """Return a worker that has nothing to do, a new one as long as there are fewer than `size`."""
    if idle := next((worker for worker in workers if worker.task is None), None):
        return idle
    if len(workers) >= size:
        return None
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=_serve, args=(theirs, execute), name=f"afarm worker {len(workers) + 1}")
    process.start()
    theirs.close()
    workers.append(Worker(process, ours))
    return workers[-1]


def _serve(connection: Connection[Any, Any], execute: Execute) -> None:
    """Make each task that comes through the pipe, until the command has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command ends its workers
    threading.Thread(target=_end_with_parent, name="afarm-parent", daemon=True).start()
    one_at_a_time = threading.Lock()

    def send(news: TaskEvent | Outcome) -> None:
        with one_at_a_time:
            connection.send(news)

    with suppress(EOFError, OSError):
        while True:
            send(execute(connection.recv(), send))


def _end_with_parent() -> None:
    """End this process when the command's is gone, however it ended: nobody waits for what is made here."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
