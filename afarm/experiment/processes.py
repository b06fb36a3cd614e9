"""How several processes make one set of artifacts.

The first one, rank 0, makes every artifact, as a process does that is alone; it alone prints, writes and asks judges.
The others follow it: they wait for each artifact by looking for it on the disk, so that no message between processes
waits for a judge and times out; and where a stage trains, they join in.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from afarm.core.processes import wait_for
from afarm.storage.artifacts import Artifact, Store
from afarm.storage.checkpoints import CHECKPOINTS
from afarm.storage.disk import write_json

SESSION = "session.json"
"""Beside a stage's checkpoints: the launch whose first process trains it now."""


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

    while not isinstance(found := wait_for(made_or_announced), Artifact):
        assert join is not None
        join(partial)
        join = None
    return found


def _read(marker: Path) -> object:
    try:
        return json.loads(marker.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
