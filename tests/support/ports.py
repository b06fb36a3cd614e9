"""Ports for servers that are told theirs before they listen."""

from __future__ import annotations

import os
import secrets
import socket

PORTS = 1000
"""Ports per test worker. They lie below those that the system hands out by itself, so nobody gets one meanwhile."""


given: set[int] = set()
"""Ports that this process was given: their servers may not listen yet."""


def free_port() -> int:
    """Find a port that nobody listens on, that no other test worker looks for, and that is new to this process."""
    first = 20_000 + PORTS * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    while True:
        port = first + secrets.randbelow(PORTS)
        if port in given:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        given.add(port)
        return port
