"""The server of a view: on this machine alone unless told otherwise."""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Callable, Collection

from afarm import StoreError
from afarm_plugins.view.app import View, view_app

PORT = 8640
"""The first port that is tried."""

TRIES = 20
"""Ports that are tried from there on, if none was asked for."""


def take_port(host: str, port: int | None) -> socket.socket:
    """Bind `port`, 0 for any free one, None for the first free from `PORT` on. Raises `StoreError`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for one in [port] if port is not None else range(PORT, PORT + TRIES):
        try:
            listening = socket.create_server((host, one), family=family, backlog=128)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise StoreError(f"--host {host} --port {one}: {error.strerror or error}") from error
            continue
        # asyncio does so for its own sockets alone; else a page's body waits 40 ms for an answer to its headers
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    taken = f"port {port} is" if port is not None else f"ports {PORT} to {PORT + TRIES - 1} are"
    raise StoreError(f"{taken} taken, perhaps by another view: --port 0 takes a free one")


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def serve(view: View, listening: socket.socket, hosts: Collection[str], ready: Callable[[str], None]) -> None:
    """Serve until Ctrl-C; `ready` is called with the address."""
    import uvicorn

    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    config = uvicorn.Config(
        view_app(view, hosts), log_level="warning", access_log=False, lifespan="off", server_header=False
    )
    server = uvicorn.Server(config)
    ready(f"http://{shown}:{port}/")
    server.run(sockets=[listening])
