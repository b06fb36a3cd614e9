"""Processes that make light stages, as forks of one that has imported what they need: the imports take most of a run.

Started afresh, as in use, they are where a test asks for nothing else.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from multiprocessing import forkserver, popen_forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace

import pytest
from places import SUPPORT
from warm import run_afarm

from afarm.experiment.launching import workers

FORKED = multiprocessing.get_context("forkserver")

SERVER = forkserver.ForkServer()
"""The server of this process for light forks, apart from the one of `warm`, which has torch."""
SERVER.set_forkserver_preload(["light_warmth"])


def workers_are_forks(patch: pytest.MonkeyPatch) -> None:
    """Have the workers of `local:N` be forks: everything else of them is as ever."""
    patch.setattr(workers, "SPAWN", FORKED)
    calls = SimpleNamespace(connect_to_new_process=connect, read_signed=forkserver.read_signed)
    patch.setattr(popen_forkserver, "forkserver", calls)


def connect(descriptors: Sequence[int]) -> tuple[int, int]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(SUPPORT), prepend=os.pathsep)
        patch.setenv("OMP_NUM_THREADS", "1")
        SERVER.ensure_running()
    return SERVER.connect_to_new_process(list(descriptors))


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
    run_afarm(arguments, said, {})
