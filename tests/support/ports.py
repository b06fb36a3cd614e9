"""Ports for servers that are told theirs before they listen."""

from __future__ import annotations

import os
import secrets
import socket

PORTS = 1000
"""Ports per test worker. They lie below those that the system hands out by itself, so nobody gets one meanwhile."""


def free_port() -> int:
    """Find a port that nobody listens on and that no other test worker looks for."""
    first = 20_000 + PORTS * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    while True:
        port = first + secrets.randbelow(PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
