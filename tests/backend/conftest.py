"""What goes on beside the tests of several processes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def lost_launches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BaseProcess, Path]]:
    """Launches of which a process is lost, and where they print: they wait for half a minute, in which others train."""
    import lost_launches
    import warm

    directory = tmp_path_factory.mktemp("lost")
    started = warm.begin(partial(lost_launches.main, directory), directory / "said")
    yield started, directory / "said"
    started.join()
