"""The server of the page: on this machine alone unless told otherwise."""

from __future__ import annotations

import errno
import ipaddress
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from afarm import StoreError
from afarm_people.app import label_app
from afarm_people.rules import Project

PORT = 8650
"""The first port that is tried."""
TRIES = 20


@dataclass(frozen=True, slots=True)
class Place:
    """The place of the page; `address` is the one that people open, if a proxy is between."""

    host: str = "127.0.0.1"
    port: int | None = None
    address: str = ""
    certificate: str | None = None
    key: str | None = None

    @property
    def is_loopback(self) -> bool:
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def is_secure(self) -> bool:
        """Tell if people open it over TLS."""
        return urlsplit(self.address).scheme == "https" if self.address else bool(self.certificate)

    @property
    def public(self) -> str:
        """The name of the address as browsers send it: in small letters, without the port of its scheme."""
        parts = urlsplit(self.address.lower())
        return parts.netloc.removesuffix(f":{PORTS[parts.scheme]}") if self.address else ""

    def check(self, is_open: bool) -> list[str]:
        """List what is wrong with it; an open page is one without sign-in links."""
        problems = []
        if is_open and not (self.is_loopback and not self.address):
            where = f"--address {self.address}" if self.address else f"--host {self.host}"
            problems.append(f"{where} needs sign-in links, or anybody could label: add --people NAME,NAME or --join")
        if self.address and not is_base(self.address):
            problems.append(
                f"--address {self.address}: give scheme and name, without a path, such as https://labels.example.org"
            )
        if bool(self.certificate) != bool(self.key):
            problems.append("--certificate and --key belong together: give both")
        elif self.certificate and self.key:
            problems += check_certificate(self.certificate, self.key)
        return problems


PORTS = {"http": 80, "https": 443}


def check_certificate(certificate: str, key: str) -> list[str]:
    """List what is wrong with a certificate and its key."""
    for option, file in (("--certificate", certificate), ("--key", key)):
        try:
            with open(file, "rb"):
                pass
        except OSError as error:
            return [f"{option} {file}: cannot be read ({error.strerror or error})"]
    try:
        # the password answers for a key that has one: OpenSSL would ask on the terminal, at every start
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except (OSError, ValueError) as error:
        files = f"--certificate {certificate} --key {key}"
        return [f"{files}: give a certificate in PEM and its own key, without a password ({error})"]
    return []


def is_base(address: str) -> bool:
    """Tell if an address is a scheme and a name, with a port or without."""
    try:
        parts = urlsplit(address)
        parts.port  # noqa: B018  # one that is none raises
    except ValueError:
        return False
    rest = parts.path.strip("/") or parts.query or parts.fragment or "@" in parts.netloc
    return parts.scheme in PORTS and bool(parts.hostname) and not rest


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
    raise StoreError(f"{taken} taken, perhaps by another page: --port 0 takes a free one")


def serve(project: Project, place: Place, ready: Callable[[str], None]) -> None:
    """Serve until Ctrl-C; `ready` is called once the port is taken, with the address, no slash at its end."""
    import uvicorn

    listening = take_port(place.host, place.port)
    host, port = listening.getsockname()[:2]
    own = f"{'https' if place.certificate else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
    names = {place.host, urlsplit(place.address).hostname or place.host}
    config = uvicorn.Config(
        label_app(project, names, place.is_secure, place.public),
        log_level="warning",
        access_log=False,
        lifespan="off",
        server_header=False,
        ssl_certfile=place.certificate,
        ssl_keyfile=place.key,
        timeout_graceful_shutdown=5,
    )
    ready(place.address.rstrip("/") or own)
    uvicorn.Server(config).run(sockets=[listening])
