"""A view whose process may not read all that is there: it says so, and shows the rest."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from afarm_plugins.view.sources import CLOSED

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away, and become nobody")

NOBODY = 65534

SERVE = """
import os, sys
from pathlib import Path

import uvicorn
from starlette.testclient import TestClient

from afarm_plugins.view.app import View, view_app
from afarm_plugins.view.server import serve, take_port

number, readable, *places = sys.argv[1:]
view = View([Path(readable)])
with TestClient(view_app(view), base_url="http://127.0.0.1:8640") as client:
    for run in view.sources.runs():
        for path in ("run/{}", "outputs/{}", "pair/{}/0", "annotators/{}/training", "annotators", "ledger"):
            client.get(f"/data/{path.format(run)}.json")
listening = take_port("127.0.0.1", 0)
os.setgroups([])
os.setgid(int(number))
os.setuid(int(number))
serve(View([Path(place) for place in places]), listening, (), lambda address: print(address, flush=True))
"""
"""A view's server that looks at what it may read, so that all code is loaded, and then gives up its rights: the
environment itself may be root's alone."""


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that everybody may read, as pytest's own are not."""
    place = Path(tempfile.mkdtemp(prefix="afarm-rights-"))
    place.chmod(0o755)
    yield place
    shutil.rmtree(place)


@pytest.fixture
def ask(made: Path, place: Path) -> Iterator[Any]:
    """Asks a view that runs as nobody, over a real output directory with closed things in it, and a closed one."""
    shutil.copytree(made, place / "runs-of-mine")
    first, second = sorted((place / "runs-of-mine" / "runs").iterdir())
    (place / "runs-of-mine" / "runs" / "closed").mkdir(0o700)
    shutil.copytree(first, place / "runs-of-mine" / "runs" / "sealed")
    for closed in (second / "run.json", first / "outputs.jsonl", place / "runs-of-mine" / "ledger.sqlite"):
        closed.chmod(0o600)
    (place / "runs-of-mine" / "runs" / "sealed").chmod(0o700)
    (place / "runs-of-mine" / "artifacts" / "annotate").chmod(0o700)
    for folder in ("boards", "studies"):
        (place / "runs-of-mine" / folder).mkdir(0o700)
    (place / "yours").mkdir(0o700)
    places = [str(place / name) for name in ("runs-of-mine", "yours")]
    command = [sys.executable, "-c", SERVE, str(NOBODY), str(made), *places]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = server.stdout.readline().strip()

        def ask(path: str) -> Any:
            try:
                with urlopen(f"{address}data/{path}.json", timeout=300) as answer:
                    return json.load(answer)
            except HTTPError as error:
                return json.load(error)  # which an error within the view has not

        yield ask
        server.kill()


def test_a_view_without_rights_says_what_it_may_not_read_and_shows_the_rest(ask: Any) -> None:
    table = ask("runs")
    mine, yours = table["output_dirs"]
    assert [place["closed"] for place in (mine, yours)] == [False, True]
    runs = {row["name"]: row for row in table["runs"]}
    readable, unreadable = (next(row for name, row in runs.items() if method in name) for method in ("direct", "nudge"))
    assert readable["status"] == "finished"
    assert readable["win_rate"] is not None
    assert {runs[name]["problem"] for name in ("closed", "sealed")} == {CLOSED}
    assert unreadable["status"] == "unreadable"
    assert "run.json: no run to report on (Permission denied)" in unreadable["problem"]

    for row in table["runs"]:
        assert ask(f"run/{row['id']}")["name"] == row["name"]
    assert ask(f"outputs/{readable['id']}")["problem"].endswith("outputs.jsonl: Permission denied")
    assert ask(f"annotators/{readable['id']}/evaluation")["problem"].endswith("cannot be read: Permission denied")
    assert ask(f"annotators/{readable['id']}/training")["problem"].endswith("has no training labels")

    kinds = {row["stage"]: row["problem"] for store in ask("artifacts")["stores"] for row in store["rows"]}
    assert kinds["annotate"] == CLOSED
    assert set(kinds.values()) == {CLOSED, ""}
    problems = [ledger["problem"] for ledger in ask("ledger")["ledgers"]]
    assert all("ledger.sqlite cannot be read: " in problem for problem in problems)
    assert len(problems) == 2
    assert ask("costs")["runs"]
    assert ask("annotators")["files"]
    assert ask("boards") == {"boards": [], "studies": []}
