"""Several processes for checks: forks of this one on the CPU, connected over gloo."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from afarm.core.interfaces import TrainContext
from afarm.storage.checkpoints import FollowedCheckpoints
from afarm.testing.conformance import ConformanceError
from afarm.testing.contexts import cpu_backend, train_context

PATIENCE = 60
"""Seconds that processes wait for one another."""


def train_together(train: Callable[[TrainContext], Any], processes: int, directory: Path) -> Any:
    """Return what `train` returns in the main one of several processes: tensors, numbers and texts.

    Raises `ConformanceError` with the error of a process that fails.
    """
    import torch
    from accelerate.state import AcceleratorState
    from torch.multiprocessing.spawn import ProcessException, start_processes

    context = train_context(directory)
    with socket.create_server(("127.0.0.1", 0)) as free:
        place = {"WORLD_SIZE": processes, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free.getsockname()[1]}
    place["OMP_NUM_THREADS"] = 1  # the threads of the process that is forked are not in its forks

    def act(rank: int) -> None:
        torch.set_num_threads(1)
        AcceleratorState._reset_state(reset_partial_state=True)
        os.environ.update({name: str(value) for name, value in {**place, "RANK": rank, "LOCAL_RANK": rank}.items()})
        kept = FollowedCheckpoints(directory) if rank else context.checkpoints
        backend = cpu_backend(PATIENCE, is_distributed=True)  # waits for the others
        trained = train(replace(context, backend=backend, checkpoints=kept))
        torch.distributed.barrier()  # all meet at the first one's address, so it stays until the last is done
        if rank == 0:
            torch.save(trained, directory / "trained.pt")

    try:
        start_processes(act, nprocs=processes, start_method="fork")
    except ProcessException as error:
        raise ConformanceError(f"in {processes} processes: {str(error).strip().splitlines()[-1]}") from error
    return torch.load(directory / "trained.pt", weights_only=True)
