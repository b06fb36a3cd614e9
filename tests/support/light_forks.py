"""Processes that make light stages, as forks of one that has imported what they need: the imports take most of a run.

Started afresh, as in use, they are where a test asks for nothing else.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing import forkserver, popen_forkserver
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace
from typing import TypeVar

import pytest
from places import SUPPORT
from warm import be, run_afarm

from afarm_plugins.local_workers import launcher as workers

T = TypeVar("T")

FORKED = multiprocessing.get_context("forkserver")

SERVER = forkserver.ForkServer()
"""The server of this process for light forks, apart from the one of `warm`, which has torch."""
SERVER.set_forkserver_preload(["light_warmth"])


def forks_are_light(patch: pytest.MonkeyPatch) -> None:
    """Have the server of light forks start what `FORKED` starts."""
    calls = SimpleNamespace(connect_to_new_process=connect, read_signed=forkserver.read_signed)
    patch.setattr(popen_forkserver, "forkserver", calls)


def workers_are_forks(patch: pytest.MonkeyPatch) -> None:
    """Have the workers of `local:N` be light forks: everything else of them is as ever."""
    forks_are_light(patch)
    patch.setattr(workers, "SPAWN", FORKED)


def connect(descriptors: Sequence[int]) -> tuple[int, int]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(SUPPORT), prepend=os.pathsep)
        patch.setenv("OMP_NUM_THREADS", "1")
        SERVER.ensure_running()
    return SERVER.connect_to_new_process(list(descriptors))


def call(function: Callable[..., T], *arguments: object) -> T:
    """Return what a function returns in a process of its own, which has not seen what this one has."""
    with pytest.MonkeyPatch.context() as patch:
        forks_are_light(patch)
        ours, theirs = FORKED.Pipe(duplex=False)
        process = FORKED.Process(target=answer, args=(theirs, function, arguments))
        process.start()
        theirs.close()
        try:
            returned: T = ours.recv()
        finally:
            process.join()
    return returned


def answer(connection: Connection[object, object], function: Callable[..., object], arguments: tuple[object]) -> None:
    connection.send(function(*arguments))


def start(arguments: Sequence[str], said: Path) -> BaseProcess:
    """Start `afarm ARGUMENTS` where `workers_are_forks`; what it prints goes to files in the directory `said`."""
    said.mkdir()
    process = FORKED.Process(target=command, args=(list(arguments), said))
    process.start()
    return process


def command(arguments: list[str], said: Path) -> None:
    """Be the command, in the process that was started; its workers come from the same server."""
    workers.SPAWN = FORKED  # type: ignore[assignment]
    forkserver._forkserver.ensure_running = lambda: None  # or Python starts another, for a process that came from one
    be(partial(run_afarm, arguments), said, {})
