"""Processes that are there at once, as forks of this one: to start Python and import takes longer than what they do.

with forked(act, 2) as processes:    # before a server or another thread begins, of which they would hold a part
    for process in processes:
        process.begin("a", 7)
    found = [process.result() for process in processes]     # what act("a", 7) returned
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

FORK = multiprocessing.get_context("fork")


class Forked:
    """A process that waits for arguments, calls `act` with them and ends."""

    def __init__(self, act: Callable[..., Any]):
        self._ours, theirs = FORK.Pipe()
        self._process = FORK.Process(target=answer, args=(theirs, act))
        self._process.start()
        theirs.close()

    def begin(self, *arguments: Any) -> None:
        self._ours.send(arguments)

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None as long as it runs."""
        return self._process.exitcode

    def kill(self) -> None:
        """End it by SIGKILL, if it has not ended."""
        self._process.kill()
        self._process.join()

    def result(self) -> Any:
        returned = self._ours.recv()
        self._process.join()
        assert self._process.exitcode == 0
        return returned


def answer(connection: Connection, act: Callable[..., Any]) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    connection.send(act(*connection.recv()))


@contextmanager
def forked(act: Callable[..., Any], count: int) -> Iterator[Sequence[Forked]]:
    """So many processes, which have ended behind the `with` block."""
    processes = [Forked(act) for _ in range(count)]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
