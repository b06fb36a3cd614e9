"""Output directories for the view: two light runs with their ledger, made once, and runs written by hand."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hostile import hostile_directory
from light_farm import light_farm
from starlette.testclient import TestClient

from afarm.experiment import run_record
from afarm_plugins.view.app import View, view_app
from afarm_plugins.view.live_record import followed

Rows = Sequence[dict[str, Any]]


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output directory with two runs of the light plugin, judged in both orders by its counting judge."""
    directory = tmp_path_factory.mktemp("view")
    for method in ("nudge", "direct"):
        settings = ("pool.both_orders=true",)
        with light_farm(directory, *settings, method=method, start="model") as farm:
            command, started = f"afarm run --method {method}", time.time()
            with followed(farm.workspace, method, command, started):
                result = farm.evaluate(method)
                run_record.record(farm.workspace, method, result, command, started)
    return directory / "out"


@pytest.fixture
def output_dir(made: Path, tmp_path: Path) -> Path:
    """A copy of `made` that a test may change."""
    return shutil.copytree(made, tmp_path / "afarm-runs")


def run_id(view: View, method: str) -> str:
    return next(run.id for run in view.sources.runs().values() if run.about.get("method") == method)


@pytest.fixture(scope="session")
def id_of() -> Callable[[View, str], str]:
    """The id of a method's run."""
    return run_id


@pytest.fixture(scope="session")
def hostile_view(tmp_path_factory: pytest.TempPathFactory) -> View:
    """A view of everything that there can be, all of it hostile, that may stop runs."""
    return View([hostile_directory(tmp_path_factory.mktemp("hostile"))], may_stop=True)


@pytest.fixture
def view(made: Path) -> View:
    return View([made])


@pytest.fixture
def client(view: View) -> Iterator[TestClient]:
    with TestClient(view_app(view), base_url="http://127.0.0.1:8640") as client:
        yield client


@pytest.fixture
def write_run(tmp_path: Path) -> Callable[..., Path]:
    """`write_run(name, record, outputs)` writes a run below `tmp_path / "hand"` and returns its directory."""

    def write(name: str, record: Any = None, outputs: Rows = (), output_dir: Path | None = None) -> Path:
        directory = (output_dir or tmp_path / "hand") / "runs" / name
        directory.mkdir(parents=True)
        if record is not None:
            text = record if isinstance(record, str) else json.dumps(record)
            (directory / "run.json").write_text(text, encoding="utf-8")
        if outputs:
            (directory / "outputs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in outputs), "utf-8")
        return directory

    return write
