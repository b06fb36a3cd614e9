"""The record of a run while it is made: what it says, how it ends, and that it never costs the run."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from light_farm import light_farm, light_workspace
from rich.console import Console
from waiting import wait_until

from afarm.cli.farm_options import record_run
from afarm.cli.progress import ProgressBars
from afarm.core.errors import PluginError, TrainingError
from afarm.core.hooks import hookimpl
from afarm.experiment.farm import Farm
from afarm.experiment.run_record import HISTORY, record
from afarm.storage.runs import read_run
from afarm_plugins import view
from afarm_plugins.view.live_record import followed, process_identity, read_live
from afarm_plugins.view.run_details import describe_details
from afarm_plugins.view.sources import Sources


def test_a_finished_run_has_all_stages_and_a_log(made: Path) -> None:
    live = read_live(next((made / "runs").glob("*nudge*")))
    assert live is not None
    assert (live["status"], live["pid"]) == ("finished", os.getpid())
    assert all("reused" in stage for stage in live["stages"])
    assert live["spend"]["calls"] > 0
    assert any(text.startswith("train nudge: made in") for _, text in live["log"])


def test_a_command_has_its_run_followed_by_what_plugins_bring(tmp_path: Path) -> None:
    with light_farm(tmp_path, method="nudge", start="model") as farm:
        farm.workspace.components.plugins.manager.register(view)
        written, _ = record_run(farm, "nudge", time.time())
    assert (read_live(written.directory) or {})["status"] == "finished"


class Failing:
    @hookimpl
    def register_followers(self, followers: list[Any]) -> None:
        followers.append(lambda *run: 1 / 0)


def test_a_follower_that_fails_is_named_with_its_line(tmp_path: Path) -> None:
    with light_farm(tmp_path, method="nudge", start="model") as farm:
        farm.workspace.components.plugins.manager.register(Failing())
        with pytest.raises(PluginError, match=r"'register_followers' failed: ZeroDivisionError.*test_live_record\.py:"):
            record_run(farm, "nudge", 0.0)


def at_work(run: Path, label: str) -> bool:
    """Tell if the record says that this stage is at work."""
    live = read_live(run)
    stages = {stage["stage"]: stage for stage in live["stages"]} if live else {}
    return stages.get(label, {}).get("status") == "working"


def test_a_run_at_work_tells_its_stage_its_loop_and_its_curve(tmp_path: Path) -> None:
    screen = io.StringIO()
    bars = ProgressBars(Console(file=screen))
    workspace = light_workspace(tmp_path, method="nudge", start="model")
    workspace.components.progress = workspace.progress = bars
    seen: list[dict[str, object]] = []

    def look(label: str, run: object) -> None:
        if label == "outputs nudge" and run is None:
            wait_until(lambda: at_work(next((tmp_path / "out" / "runs").iterdir()), label))
            [one] = Sources([tmp_path / "out"]).runs().values()
            seen.append(describe_details(one))

    with workspace:
        workspace.on_stage = look
        with followed(workspace, "nudge", "afarm run --method nudge", 5.0):
            for _ in bars([1, 2], "pairs"):
                bars.notify("another process is making it")
            Farm.over(workspace).evaluate("nudge")
        assert workspace.on_stage is look
    [details] = seen
    assert (details["status"], details["method"], details["command"]) == (
        "running",
        "nudge",
        "afarm run --method nudge",
    )
    stages = {stage["stage"]: stage["status"] for stage in details["stages"]}  # type: ignore[attr-defined]
    assert (stages["train nudge"], stages["outputs nudge"]) == ("made", "working")
    by_label = {stage["stage"]: stage for stage in details["stages"]}  # type: ignore[attr-defined]
    assert by_label["evaluate nudge against base"]["inputs"] == ["outputs nudge", "outputs base", "fit-reward"]
    assert by_label["annotate"]["spend"]["calls"] > 0
    assert by_label["annotate"]["rows"] > 0
    assert details["live"]["calls_per_second"] == 0, "the calls were another stage's"  # type: ignore[index]
    assert [chart["name"] for chart in details["charts"]["main"]] == ["objective/kl"]  # type: ignore[index]
    assert screen.getvalue().count("another process is making it") == 2
    assert any(text == "another process is making it" for _, text in details["log"])  # type: ignore[attr-defined]
    [after] = Sources([tmp_path / "out"]).runs().values()
    assert after.live["status"] == "finished"


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (
            TrainingError("the loss is NaN, key sk-abcdefghij0123456789abcdefghij"),
            "failed",
            "the loss is NaN, key [key]",
        ),
        (ZeroDivisionError("secret"), "failed", "ZeroDivisionError"),
        (KeyboardInterrupt(), "interrupted", "KeyboardInterrupt"),
    ],
)
def test_the_record_ends_with_how_the_run_ended(tmp_path: Path, error: BaseException, status: str, said: str) -> None:
    def evaluate_and_fail() -> None:
        with followed(workspace, "nudge", "afarm run", 0.0):
            Farm.over(workspace).evaluate("nudge")
            raise error

    with light_workspace(tmp_path, method="nudge", start="model") as workspace, pytest.raises(type(error)):
        evaluate_and_fail()
    [run] = Sources([tmp_path / "out"]).runs().values()
    assert (run.live["status"], run.live["error"]) == (status, said)
    assert run.status == ("failed" if status == "failed" else "stopped")


@pytest.mark.parametrize("begun", [[], ["base"]])
def test_a_run_that_failed_before_its_first_stage_was_there_is_no_run(tmp_path: Path, begun: list[str]) -> None:
    def begin_and_fail() -> None:
        with followed(workspace, "nudge", "afarm run", 0.0):
            for label in begun:
                workspace.on_stage(label, None)
            raise TrainingError("no such model")

    with light_workspace(tmp_path, method="nudge", start="model") as workspace, pytest.raises(TrainingError):
        begin_and_fail()
    assert not list((tmp_path / "out" / "runs").iterdir())


def test_a_run_that_reuses_all_leaves_the_record_of_how_it_was_made(tmp_path: Path) -> None:
    kept = []
    for command in ("afarm run", "afarm compare"):
        with light_workspace(tmp_path, method="nudge", start="model") as workspace:
            with followed(workspace, "nudge", command, 5.0):
                result = Farm.over(workspace).evaluate("nudge")
            said = record(workspace, "nudge", result, command, 5.0)
        kept.append((read_run(said.directory), read_live(said.directory)))
    first, again = kept
    assert again[1] == first[1]
    assert [again[0][name] for name in (*HISTORY, "stages")] == [first[0][name] for name in (*HISTORY, "stages")]
    assert any(stage["why"] for stage in again[0]["stages"])
    assert (said["command"], {stage["reused"] for stage in said["stages"]}) == ("afarm compare", {True})


def test_a_directory_that_cannot_be_written_costs_the_record_alone(tmp_path: Path) -> None:
    with light_workspace(tmp_path, method="nudge", start="model") as workspace:
        (tmp_path / "out" / "runs").rmdir()
        (tmp_path / "out" / "runs").write_text("")
        with followed(workspace, "nudge", "afarm run", 0.0):
            made = workspace.run_name("nudge")
    assert not (tmp_path / "out" / "runs" / made).exists()


def test_loops_are_counted_and_end(tmp_path: Path) -> None:
    bars = ProgressBars(Console(file=io.StringIO()))
    loop = bars(iter("abc"), "letters", 3)
    next(loop)
    next(loop)
    assert bars.loops == [{"description": "letters", "done": 1, "total": 3}]
    loop.close()
    assert bars.loops == []


@pytest.mark.parametrize("text", ["", "{", "[]", "5", "[" * 5000])
def test_a_record_that_is_none_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "live.json").write_text(text)
    assert read_live(tmp_path) is None
    (tmp_path / "live.json").unlink()
    os.mkfifo(tmp_path / "live.json")
    assert read_live(tmp_path) is None


def test_records_are_whole_whenever_they_are_read(tmp_path: Path) -> None:
    with (
        light_workspace(tmp_path, method="nudge", start="model") as workspace,
        followed(workspace, "nudge", "afarm run", 0.0),
    ):
        workspace.on_stage("base", None)
        path = next((tmp_path / "out" / "runs").glob("*/live.json"))
        assert json.loads(path.read_text())["status"] == "running"
        assert [name.name for name in path.parent.iterdir()] == ["live.json"]


def test_of_two_processes_at_one_run_the_first_keeps_the_record_until_it_ends(tmp_path: Path) -> None:
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        with light_workspace(tmp_path, method="nudge", start="model") as workspace:
            with followed(workspace, "nudge", "afarm run", 0.0):
                workspace.on_stage("base", None)
                [directory] = (tmp_path / "out" / "runs").iterdir()
                theirs = json.dumps({"status": "running", "updated": time.time(), **process_identity(other.pid)})
                (directory / "live.json").write_text(theirs)
            assert (directory / "live.json").read_text() == theirs
            with followed(workspace, "nudge", "afarm run", 0.0):
                workspace.on_stage("base", None)
                other.kill()
                other.wait()
                wait_until(lambda: (read_live(directory) or {}).get("pid") == os.getpid())
    finally:
        other.kill()
        other.wait()
    assert (read_live(directory) or {})["status"] == "finished"
