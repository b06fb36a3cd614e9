"""A PostgreSQL server for tests, out of Debian's package, and a wire to it that can be cut."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from ports import free_port

USER = "afarm_tests"
ENCODING = ("--encoding=UTF8", "--locale=C", "--no-sync")


def binaries() -> Path | None:
    """Return the directory of the server's programs, the newest version's; None if it is not installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    return Path(on_path).resolve().parent if on_path else None


def why_not() -> str:
    """Say what is missing for a server; empty if nothing is."""
    if binaries() is None:
        return "needs PostgreSQL: apt-get install postgresql"
    return "" if _runner() is not None or os.geteuid() != 0 else "needs a user other than root, such as postgres"


def _runner() -> str | None:
    """The user that runs the server if this is root, whom PostgreSQL refuses."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    return None


class PostgresServer:
    """A server with a data directory of its own, on a port of an address and a socket; passwords are asked for on the
    port alone. What it has committed survives a kill of the server, not one of the machine. `inside` begins a command
    that runs on another machine, whose `address` is then given too."""

    def __init__(self, address: str = "127.0.0.1", inside: Sequence[str] = ()) -> None:
        self.address, self.inside = address, inside
        self.directory = Path(tempfile.mkdtemp(prefix="afarm-postgres-", dir="/tmp"))  # sockets need short paths
        if user := _runner():
            shutil.chown(self.directory, user)
        self.port = free_port()
        self._made: set[str] = set()
        self._run("initdb", "--auth-local=trust", "--auth-host=scram-sha-256", "--username", USER, *ENCODING)
        with (self.directory / "data" / "pg_hba.conf").open("a") as access:
            access.write(f"host all all {address}/24 scram-sha-256\n")
        self.start()

    def start(self) -> None:
        options = f"-c listen_addresses={self.address} -p {self.port} -k {self.directory} -F -c max_connections=200"
        self._run("pg_ctl", "--wait", "--log", str(self.directory / "log"), "--options", options, "start")

    def stop(self, mode: str = "fast") -> None:
        """Stop the server; "immediate" is a crash."""
        self._run("pg_ctl", "--wait", "--mode", mode, "stop")

    def remove(self) -> None:
        with suppress(subprocess.CalledProcessError):
            self.stop("immediate")
        shutil.rmtree(self.directory, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> None:
        folder = binaries()
        assert folder is not None
        command = [str(folder / program), "--pgdata", str(self.directory / "data"), *arguments]
        if user := _runner():
            command = [*self.inside, "runuser", "-u", user, "--", *command]
        environment = {**os.environ, "LC_ALL": "C"}
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd="/", env=environment)

    def sql(self, *statements: str, database: str = "postgres") -> None:
        """Execute statements as the owner of the server."""
        import psycopg

        with psycopg.connect(self.url(database), autocommit=True) as db:
            for statement in statements:
                db.execute(statement.encode())

    def database(self, number: int = 0) -> str:
        """Return the URL of a database without a ledger. The same number gives the same one: to make one takes long."""
        name = f"ledger{number}"
        if name in self._made:
            self.sql("DROP SCHEMA IF EXISTS afarm CASCADE", database=name)
        else:
            self.sql(f"CREATE DATABASE {name}")
            self._made.add(name)
        return self.url(name)

    def url(self, database: str, port: int = 0, login: str = USER) -> str:
        """Return the URL of a database, by the socket or by a port of its address."""
        if port:
            return f"postgresql://{login}@{self.address}:{port}/{database}"
        return f"postgresql://{login}@/{database}?host={self.directory}&port={self.port}"


class Wire:
    """A port of 127.0.0.1 that leads to a server, and that is cut when `cut_at` says so of what a client sends.

    `cut_at` gets the bytes, and returns "" to go on, "before" to cut before the server gets them, and "after" to cut
    once the server has answered, which the client never hears.
    """

    def __init__(self, server: PostgresServer, cut_at: Callable[[bytes], str]):
        self.target = f"{server.directory}/.s.PGSQL.{server.port}"
        self.cut_at = cut_at
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # to close it would leave it to the thread that waits in `accept`
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        mute, answered = threading.Event(), threading.Event()

        def answer() -> None:
            with suppress(OSError):
                while reply := server.recv(1 << 16):
                    if not mute.is_set():
                        client.sendall(reply)
                    answered.set()

        with client, socket.socket(socket.AF_UNIX) as server, suppress(OSError):
            server.connect(self.target)
            threading.Thread(target=answer, daemon=True).start()
            while sent := client.recv(1 << 16):
                cut = self.cut_at(sent)
                if cut == "before":
                    break
                answered.clear()
                if cut == "after":
                    mute.set()
                server.sendall(sent)
                if cut == "after":
                    answered.wait(30)
                    break
            for end in (client, server):
                end.shutdown(socket.SHUT_RDWR)
