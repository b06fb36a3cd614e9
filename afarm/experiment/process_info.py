"""Processes that run one command together, as `accelerate launch`, `torchrun` and Open MPI start them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

RANK = ("RANK", "OMPI_COMM_WORLD_RANK")
SIZE = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE")
"""The variables by which launchers and Open MPI tell a process its rank, which accelerate reads too."""

FSDP = "ACCELERATE_USE_FSDP", "FSDP_OFFLOAD_PARAMS"
"""The variables by which accelerate asks for shards, and for shards on the host."""


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """This process's rank among the `size` that run one command.

    `sharded`: each holds a shard (FSDP2). `offloads`: on the host, until it is used.
    """

    rank: int = 0
    size: int = 1
    sharded: bool = False
    offloads: bool = False

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> ProcessInfo:
        """Read the variables that a launcher set; a single process if none did."""
        rank, size = (next((int(environment[n]) for n in names if n in environment), None) for names in (RANK, SIZE))
        if rank is None or size is None or size == 1:
            return cls()
        sharded, offloads = (environment.get(n, "").lower() == "true" for n in FSDP)
        return cls(rank, size, sharded, sharded and offloads)

    @property
    def is_main_process(self) -> bool:
        return self.rank == 0

    @property
    def is_distributed(self) -> bool:
        return self.size > 1


SINGLE_PROCESS = ProcessInfo()
