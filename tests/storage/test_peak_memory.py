"""An artifact says the most memory that its making held, whatever was held before."""

from __future__ import annotations

from mmap import MAP_ANONYMOUS, MAP_PRIVATE, PAGESIZE, mmap
from pathlib import Path

import pytest

from afarm.storage.artifacts import Store
from afarm.storage.peak_memory import CLEAR, begin_peak, peak_memory

MEGABYTE = 2**20


def test_the_peak_of_one_artifact_is_not_that_of_another(tmp_path: Path) -> None:
    if not begin_peak():
        pytest.skip(f"{CLEAR} takes no order here: peaks are not known")
    store = Store(tmp_path)
    store.create()

    def write(size: int) -> int:
        def fill(directory: Path) -> dict[str, int]:
            # Pages from the system itself: an allocator may serve any size from what earlier tests freed and it kept.
            with mmap(-1, size, flags=MAP_PRIVATE | MAP_ANONYMOUS) as held:
                held[::PAGESIZE] = bytes(size // PAGESIZE)
                return {"held": len(held)}

        return store.make("test", {"size": size}, fill)[0].meta["memory"]

    large, small = write(300 * MEGABYTE), write(MEGABYTE)
    assert large - small > 200 * MEGABYTE


def test_an_unknown_peak_is_left_out() -> None:
    assert "memory" not in peak_memory(is_known=False)
