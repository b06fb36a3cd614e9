"""What goes on beside the tests of several processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from places import ROOT, SUPPORT


@pytest.fixture(scope="session")
def lost_launches() -> Iterator[subprocess.Popen[str]]:
    """Launches of which a process is lost: they wait for half a minute, in which others train."""
    own = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), str(SUPPORT)])}
    command = [sys.executable, str(SUPPORT / "lost_launches.py")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=own) as started:
        yield started
        if started.poll() is None:
            started.communicate()
