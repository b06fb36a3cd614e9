"""`afarm view` as a command: ports, warnings, and options that contradict each other."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from said import Afarm

from afarm.core.errors import StoreError
from afarm_plugins.view.server import PORT, TRIES, is_loopback, take_port


def test_two_views_on_one_port(afarm: Afarm) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = afarm("view", "--port", str(port))
    assert said.code == 1
    assert f"port {port} is taken, perhaps by another view: --port 0 takes a free one" in " ".join(said.err.split())


def test_without_a_port_the_next_free_one_is_taken() -> None:
    with take_port("127.0.0.1", None) as first, take_port("127.0.0.1", None) as second:
        ports = [one.getsockname()[1] for one in (first, second)]
        assert first.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY), "each page takes 40 ms longer"
    assert ports[0] < ports[1] < PORT + TRIES
    assert ports[0] >= PORT


def test_a_host_that_is_not_this_machine(afarm: Afarm) -> None:
    with pytest.raises(StoreError, match="--host 203"):
        take_port("203.0.113.1", 0)


def test_others_may_not_stop_runs(afarm: Afarm) -> None:
    said = afarm("view", "--host", "0.0.0.0", "--allow-stop")
    assert said.code == 1
    assert "--allow-stop and --host 0.0.0.0 contradict each other" in " ".join(said.err.split())
    assert [is_loopback(host) for host in ("localhost", "127.0.0.9", "::1", "0.0.0.0", "box.lan")] == [
        *(True, True, True),
        *(False, False),
    ]


def test_a_run_made_by_the_command_is_exported(afarm: Afarm, tmp_path: Path) -> None:
    assert afarm("run", "--recipe", "light.yaml").code == 0
    said = afarm("view", "--export", "pages", "afarm-runs", "elsewhere")
    assert said.code == 0, said.err
    assert "elsewhere is not there yet" in said.err
    assert "files written to pages" in said.err
    assert len(list((tmp_path / "pages" / "run").glob("*.html"))) == 1
    live = next((tmp_path / "afarm-runs" / "runs").glob("*/live.json")).read_text()
    assert '"status":"finished"' in live.replace(": ", ":")
