"""Several processes that make one set of artifacts.

The main one makes every artifact, as a process does that is alone; it alone prints, writes and asks judges. The
follower processes wait for each artifact by looking for it on the disk, so that no message between processes waits for
a judge and times out. If a stage trains, they join in.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from afarm.storage.artifacts import Artifact, Store
from afarm.storage.checkpoints import CHECKPOINTS, wait_for
from afarm.storage.disk import write_json

SESSION = "session.json"
"""Beside a stage's checkpoints: the launch whose main process trains it now."""


def announce(directory: Path, session: str) -> None:
    """Tell the follower processes of this launch that the main one trains in `directory` now."""
    (directory / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
    write_json(directory / CHECKPOINTS / SESSION, session)


def follow(
    store: Store, stage: str, key: str, session: str, run_collective: Callable[[Path], object] | None
) -> Artifact:
    """Wait for the artifact that the main process makes or finds, and return it.

    If the main process trains it, `run_collective(directory)` is called meanwhile. That is announced, since the store
    alone does not tell: a process of another launch may be making the same.
    """
    partial = store.partial(stage, key)
    marker = partial / CHECKPOINTS / SESSION

    def fetch_or_announce() -> Artifact | bool | None:
        if found := store.find(stage, key):
            return found
        with suppress(FileNotFoundError):
            return run_collective is not None and json.loads(marker.read_text(encoding="utf-8")) == session
        return None

    while not isinstance(found := wait_for(fetch_or_announce), Artifact):
        assert run_collective is not None
        run_collective(partial)
        run_collective = None
    return found
