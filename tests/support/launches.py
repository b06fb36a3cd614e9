"""Launches of two processes over gloo."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest
import tasks
import torch

LIMIT = 300
"""Seconds after which a launch is taken to hang."""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    return port


SHARDED = {"ACCELERATE_USE_FSDP": "true"}
"""The environment by which accelerate asks for shards."""


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


def finish(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What it printed on stdout and stderr, once it has ended well."""
    try:
        out, err = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        kill(process)
        pytest.fail(f"two processes still run after {LIMIT} s")
    assert process.returncode == 0, err
    return out, err


class Results:
    """What tasks ended with, by two processes and by one."""

    def __init__(self, directory: Path, alone: Path):
        self.directory, self.alone = directory, alone
        self._of_one: dict[str, tasks.Trained] = {}

    def of(self, name: str, rank: int) -> tasks.Trained:
        return tasks.Trained(*torch.load(self.directory / f"{name}-{rank}.pt", weights_only=True))

    def of_one(self, name: str) -> tasks.Trained:
        if name not in self._of_one:
            self._of_one[name] = tasks.ALL[name](self.alone / name)
        return self._of_one[name]
