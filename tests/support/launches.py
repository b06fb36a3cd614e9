"""Launches of two processes over gloo."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest
import tasks
import torch
from ports import free_port

LIMIT = 900
"""Seconds after which a launch is taken to hang."""


def launched(arguments: Sequence[str], processes: int = 2, **environment: str) -> subprocess.Popen[str]:
    """Two processes, or so many, of `python ARGUMENTS`."""
    place = ["--nproc-per-node", str(processes), "--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    command = [sys.executable, "-m", "torch.distributed.run", *place, *arguments]
    own = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.Popen(command, env=own, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def kill(process: subprocess.Popen[str]) -> None:
    """End a launch with all that it has started, with no chance to clean up."""
    for started in [*psutil.Process(process.pid).children(recursive=True), process]:
        started.kill()
    process.communicate()


def finish(process: subprocess.Popen[str], limit: int = LIMIT) -> tuple[str, str]:
    """What it printed on stdout and stderr, once it has ended well."""
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        kill(process)
        pytest.fail(f"it still runs after {limit} s")
    assert process.returncode == 0, err
    return out, err


class Results:
    """What tasks ended with, by two processes and by one."""

    def __init__(self, directory: Path, alone: Path):
        self.directory, self.alone = directory, alone
        self._of_one: dict[str, tasks.Trained] = {}

    def beside(self, directory: Path) -> Results:
        """Return those of another launch: one process ends with the same."""
        other = Results(directory, self.alone)
        other._of_one = self._of_one
        return other

    def of(self, name: str, rank: int) -> tasks.Trained:
        return tasks.Trained(*torch.load(self.directory / f"{name}-{rank}.pt", weights_only=True))

    def of_one(self, name: str) -> tasks.Trained:
        if name not in self._of_one:
            self._of_one[name] = tasks.ALL[name](self.alone / name)
        return self._of_one[name]
