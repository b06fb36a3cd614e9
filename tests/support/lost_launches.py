"""Launches of which a process is lost: `main` prints how those left have ended, as JSON.

All run at once, in forks of one process: importing torch takes longer than all of them.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from forks import fork
from ports import free_port

from afarm.backend import Backend, distributed
from afarm.core.config import BackendConfig
from afarm.storage.checkpoints import wait_for

TIMEOUT = 15
"""Seconds, in which nine processes have to come together on a busy machine."""


def stopped(backend: Backend) -> None:
    if distributed.rank() == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    distributed.all_reduce_sum([torch.ones(3)])


def killed(backend: Backend) -> None:
    if distributed.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    distributed.all_reduce_sum([torch.ones(3)])


def followed(backend: Backend) -> None:
    """The first process dies while the second waits for a file."""
    both_here = Path(os.environ["SCRATCH"]) / "both are here"
    if distributed.rank() == 0:
        wait_for(both_here.exists)
        os.kill(os.getpid(), signal.SIGKILL)
    both_here.touch()
    wait_for(lambda: False)


def ended(backend: Backend) -> None:
    """Nothing goes wrong."""
    distributed.all_reduce_sum([torch.ones(3)])


def alone(backend: Backend) -> None:
    """The second process is never started."""


LAUNCHES: dict[Callable[[Backend], None], tuple[int, ...]] = {
    stopped: (0, 1),
    killed: (0, 1),
    followed: (0, 1),
    ended: (0, 1),
    alone: (0,),
}
"""What processes do, and the ranks that are started of two."""


def one_of_them(act: Callable[[Backend], None], stderr: Path) -> None:
    os.dup2(os.open(stderr, os.O_WRONLY | os.O_CREAT), 2)
    os.environ["SCRATCH"] = str(stderr.parent)
    try:
        backend = Backend(BackendConfig(device="cpu", timeout=TIMEOUT), is_distributed=True)
        with backend.naming_lost("train ppo"):
            act(backend)
    except Exception as error:
        print("".join(traceback.format_exception_only(error)), file=sys.stderr, end="", flush=True)
        sys.exit(1)


def main(directory: Path) -> None:
    children = {}
    for act, ranks in LAUNCHES.items():
        port = free_port()
        for rank in ranks:
            name = f"{act.__name__} {rank}"
            children[fork(partial(one_of_them, act, directory / name), rank, 2, port)] = name
    ended = {}
    while children.keys() - ended.keys():
        process, status = os.waitpid(-1, os.WUNTRACED)
        ended[process] = -signal.SIGSTOP if os.WIFSTOPPED(status) else os.waitstatus_to_exitcode(status)
    for process, code in ended.items():
        if code == -signal.SIGSTOP:
            os.kill(process, signal.SIGKILL)
    last = {name: (directory / name).read_text().splitlines()[-1:] for name in children.values()}
    print(json.dumps({name: (ended[process], last[name]) for process, name in children.items()}))
