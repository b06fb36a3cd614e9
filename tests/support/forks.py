"""Processes of one launch as forks of this one: to import torch takes longer than what tests have them do."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import traceback
from collections.abc import Callable

import torch
from ports import free_port

SHARDED = {"ACCELERATE_USE_FSDP": "true"}
"""The environment by which accelerate asks for shards."""
OFFLOADED = {**SHARDED, "FSDP_OFFLOAD_PARAMS": "true"}
"""The same for shards on the host."""


def fork(act: Callable[[], None], rank: int, size: int, port: int, **environment: str) -> int:
    """Begin a process that acts as one of so many, and return its id.

    It ends as one does that is no fork: with 0, with 1 if `act` raised, with 3 if its launch outlives it.
    """
    if child := os.fork():
        return child
    code = 1
    try:
        atexit._clear()  # what this process has to do at its end is no business of theirs
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        os.environ.update({**{name: str(value) for name, value in place.items()}, **environment})
        act()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        if torch.distributed.is_initialized() or any(thread.name == "afarm-launch" for thread in threading.enumerate()):
            print("the launch outlives its process", file=sys.stderr)
            code = 3
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def together(act: Callable[[], None], processes: int, **environment: str) -> None:
    """Have so many processes act, and wait for them. If one fails, the others are killed and this process ends."""
    port = free_port()
    left = {fork(act, rank, processes, port, **environment) for rank in range(processes)}
    while left:
        process, status = os.wait()
        left.discard(process)
        if status:
            for other in left:
                os.kill(other, 9)
            raise SystemExit(f"a process ended with {os.waitstatus_to_exitcode(status)}")
