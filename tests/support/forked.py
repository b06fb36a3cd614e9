"""Processes that are there at once, as forks of this one: to start Python and import takes longer than what they do.

with forked(act, 2) as processes:    # before a server or another thread begins, of which they would hold a part
    for process in processes:
        process.begin("a", 7)
    found = [process.result() for process in processes]     # what act("a", 7) returned, by way of JSON
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any


class Forked:
    """A process that waits for arguments, calls `act` with them and ends."""

    def __init__(self, act: Callable[..., Any]):
        told, tell = os.pipe()
        self._tell = os.fdopen(tell, "w")
        self._returned = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.exitcode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            self._act(act, told)
        os.close(told)

    def _act(self, act: Callable[..., Any], told: int) -> None:
        code = 1
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            if arguments := os.fdopen(told).readline():  # not up to the end: who is forked later holds the pipe too
                json.dump(act(*json.loads(arguments)), self._returned)
                self._returned.flush()
                code = 0
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)

    def begin(self, *arguments: Any) -> None:
        print(json.dumps(arguments), file=self._tell, flush=True)

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None as long as it runs."""
        return self._wait(os.WNOHANG)

    def kill(self) -> None:
        """End it by SIGKILL, if it has not ended."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            self._wait()

    def result(self) -> Any:
        assert self._wait() == 0
        self._returned.seek(0)
        return json.load(self._returned)

    def close(self) -> None:
        self.kill()
        self._returned.close()
        self._tell.close()

    def _wait(self, how: int = 0) -> int | None:
        if self.exitcode is None:
            ended, status = os.waitpid(self.pid, how)
            self.exitcode = os.waitstatus_to_exitcode(status) if ended else None
        return self.exitcode


@contextmanager
def forked(act: Callable[..., Any], count: int) -> Iterator[Sequence[Forked]]:
    """So many processes, which have ended behind the `with` block."""
    processes = [Forked(act) for _ in range(count)]
    try:
        yield processes
    finally:
        for process in processes:
            process.close()
