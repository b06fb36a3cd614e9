"""Several processes that run one command together, as `accelerate launch` and `torchrun` start them.

The first one, rank 0, makes every artifact, as a process does that is alone; it alone prints, writes and asks judges.
The others follow it: they wait for each artifact by looking for it on the disk, so that no message between processes
waits for a judge and times out; and where a stage trains, they join in.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from afarm.store import CHECKPOINTS, Artifact, DirectoryCheckpoints, Store, write_json

T = TypeVar("T")

PAUSE = 0.2
"""Seconds between two looks at the disk."""

RANK = ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")
SIZE = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
"""The variables by which launchers and MPI tell a process its rank, those that accelerate reads."""

SESSION = "session.json"
"""Beside a stage's checkpoints: the launch whose first process trains it now."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process's number among those that run the same command, how many there are, and whether each keeps only its
    shard of what is trained (FSDP2)."""

    rank: int = 0
    size: int = 1
    sharded: bool = False

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Ranks:
        """As a launcher has written it to the environment; alone where none has."""
        rank, size = (next((int(environment[n]) for n in names if n in environment), None) for names in (RANK, SIZE))
        if rank is None or size is None or size == 1:
            return cls()
        return cls(rank, size, environment.get("ACCELERATE_USE_FSDP", "").lower() == "true")

    @property
    def first(self) -> bool:
        return self.rank == 0

    @property
    def several(self) -> bool:
        return self.size > 1


ALONE = Ranks()


class FollowedCheckpoints(DirectoryCheckpoints):
    """The checkpoints that the first process keeps in `directory`, for the others.

    `save` writes nothing and returns once the first has published that step, whatever it does in between (ask judges
    for hours, say): the processes go on together.
    """

    def save(self, step: int, write: Callable[[Path], None]) -> None:
        _found(lambda: (latest := self.latest()) and latest[0] >= step)


def announce(directory: Path, session: str) -> None:
    """Tell the others of this launch that the first process trains in `directory` now."""
    (directory / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
    write_json(directory / CHECKPOINTS / SESSION, session)


def follow(store: Store, stage: str, key: str, session: str, join: Callable[[Path], object] | None) -> Artifact:
    """The artifact that the first process makes or finds, once it is there.

    Where the first one trains it, `join(directory)` is called meanwhile. Whether it does cannot be told from the store
    alone, since a process of another launch may be making the same: so it is announced.
    """
    partial = store.partial(stage, key)
    marker = partial / CHECKPOINTS / SESSION

    def made_or_announced() -> Artifact | bool | None:
        if found := store.find(stage, key):
            return found
        return join is not None and _read(marker) == session

    while not isinstance(found := _found(made_or_announced), Artifact):
        assert join is not None
        join(partial)
        join = None
    return found


def _found(look: Callable[[], T | None]) -> T:
    """What `look` finds, as soon as it finds something."""
    while not (found := look()):
        time.sleep(PAUSE)
    return found


def _read(marker: Path) -> object:
    try:
        return json.loads(marker.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
