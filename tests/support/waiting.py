"""Waits of tests: for what is there in the end, however busy the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable

LIMIT = 600
"""Seconds after which what is waited for is taken never to come."""


def wait_until(there: Callable[[], object]) -> None:
    """Wait until `there()` holds."""
    deadline = time.monotonic() + LIMIT
    while not there():
        assert time.monotonic() < deadline, f"it does not come in {LIMIT} s"
        time.sleep(0.05)
