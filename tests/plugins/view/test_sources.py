"""Runs as they are on disk: every state, and everything that may be wrong with a directory."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from afarm.storage.runs import read_run
from afarm_plugins.view import sources
from afarm_plugins.view.app import View, encode
from afarm_plugins.view.live_record import process_identity
from afarm_plugins.view.run_table import describe_row
from afarm_plugins.view.sources import SeenRun, Sources

WriteRun = Callable[..., Path]


def live(**changes: Any) -> str:
    """The live record of a run that this very process makes."""
    about = {"status": "running", "command": "afarm run", "updated": time.time(), "created": 1.0, "method": "ppo"}
    stages = [
        {"stage": "sft", "reused": False},
        {"stage": "train ppo", "status": "working"},
        {"stage": "evaluate"},
    ]
    return json.dumps({**about, "stages": stages, **process_identity(os.getpid()), **changes})


def only(directory: Path) -> SeenRun:
    [run] = Sources([directory.parents[1]]).runs().values()
    return run


def test_finished_runs_are_read_and_the_newest_comes_first(made: Path) -> None:
    runs = list(Sources([made]).runs().values())
    assert [run.status for run in runs] == ["finished", "finished"]
    assert [run.about["method"] for run in runs] == ["direct", "nudge"]
    [newer, row] = map(describe_row, runs)
    assert all(stage["reused"] for stage in runs[0].record.stages[:2]), "it shares the first stages"
    assert newer["seconds"] == round(sum(stage["seconds"] for stage in runs[0].record.stages), 1)
    assert (row["method"], row["judge"], row["calls"]) == ("nudge", "counting:", runs[1].about["spend"]["calls"])
    assert row["win_rate"] == runs[1].about["headline"]["win_rate"]


def test_one_run_is_looked_up_by_its_own_files(write_run: WriteRun, tmp_path: Path) -> None:
    places = [tmp_path / "one", tmp_path / "two"]
    first, second = (write_run("twin", {"method": place.name}, output_dir=place) for place in places)
    sources = Sources(places)
    by_directory = {run.directory: run.id for run in sources.runs().values()}
    assert by_directory[first] == "twin" != by_directory[second]
    (second / "run.json").write_text(json.dumps({"method": "another one"}))
    found = sources.run(by_directory[second])
    assert found is not None
    assert (found.id, found.about["method"]) == (by_directory[second], "another one")
    shutil.rmtree(first)
    left = sources.run("twin")
    assert left is not None
    assert left.directory == second, "the name is free now, and the other has it"
    write_run("new", {"method": "ppo"}, output_dir=places[0])
    assert sources.run("new") is not None
    assert sources.run("newer") is None


def test_of_a_run_that_is_asked_for_at_once_no_other_is_read(
    write_run: WriteRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = [tmp_path / "one", tmp_path / "two"]
    first, second = (write_run("twin", {"method": place.name}, output_dir=place) for place in places)
    write_run("other", {}, output_dir=places[0])
    read: list[Path] = []
    monkeypatch.setattr(sources, "read_run", lambda directory: read.append(directory) or read_run(directory))
    asked = Sources(places)
    found = asked.run("twin")
    assert (found and found.directory, read) == (first, [first])
    assert asked.run("../runs/twin") is None
    twin = next(run for run in Sources(places).runs().values() if run.directory == second)
    assert Sources(places).run(twin.id) == twin, "an id that is no directory's name"


def test_a_flag_that_every_evaluator_raises_is_listed_once(write_run: WriteRun) -> None:
    red = {"flags": [{"name": "place", "count": 9, "of": 9, "says": "the judge goes by place"}]}
    row = {"system": "a", "reference": "b", "metrics": {}, "red_flags": red}
    results = [{**row, "evaluator": name} for name in ("win_rate", "gold")]
    directory = write_run("flagged", {"results": results})
    assert len(describe_row(only(directory))["flags"]) == 1


def test_a_run_at_work_shows_its_stage(write_run: WriteRun) -> None:
    directory = write_run("at-work")
    (directory / "live.json").write_text(live())
    row = describe_row(only(directory))
    assert (row["status"], row["stage"], row["problem"]) == ("running", "train ppo, 2 of 3", "")


def test_a_run_whose_process_is_gone_is_stopped_and_names_the_command(write_run: WriteRun) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    directory = write_run("gone")
    (directory / "live.json").write_text(live(pid=gone.pid))
    row = describe_row(only(directory))
    assert row["status"] == "stopped"
    assert row["problem"] == f"process {gone.pid} is gone without a word; the same command goes on: afarm run"


def test_a_number_that_another_process_has_by_now_is_no_sign_of_life(write_run: WriteRun) -> None:
    directory = write_run("reused-number")
    (directory / "live.json").write_text(live(process_start="1"))
    assert only(directory).status == "stopped"


@pytest.mark.parametrize(("age", "status"), [(5, "running"), (60, "stopped")])
def test_a_run_of_another_machine_is_believed_while_there_is_news(write_run: WriteRun, age: int, status: str) -> None:
    directory = write_run("elsewhere")
    (directory / "live.json").write_text(live(host="other", updated=time.time() - age))
    assert only(directory).status == status


def test_a_dying_run_is_seen_to_stop(write_run: WriteRun) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        directory = write_run("dying")
        (directory / "live.json").write_text(live(**process_identity(process.pid)))
        sources = Sources([directory.parents[1]])
        assert next(iter(sources.runs().values())).status == "running"
        process.kill()
        process.wait()
        assert next(iter(sources.runs().values())).status == "stopped"


def test_a_finished_run_that_is_made_again_is_running(output_dir: Path) -> None:
    directory = next((output_dir / "runs").iterdir())
    (directory / "live.json").write_text(live())
    assert Sources([output_dir]).runs()[directory.name].status == "running"
    (directory / "live.json").write_text(live(process_start="1"))
    assert Sources([output_dir]).runs()[directory.name].status == "finished"


@pytest.mark.parametrize(
    "record",
    [
        "",
        "{",
        "[]",
        "null",
        '{"stages": {"a": 1}, "results": 5, "headline": [], "judges": "x", "config": 1}',
        "[" * 5000,
    ],
    ids=["empty", "cut", "list", "null", "other-types", "deep"],
)
def test_a_record_that_cannot_be_read_says_so_and_the_others_are_shown(write_run: WriteRun, record: str) -> None:
    directory = write_run("broken", record)
    write_run("sound", {"method": "ppo", "created": 5, "results": []})
    view = View([directory.parents[1]])
    rows = {row["name"]: row for row in view.table()["runs"]}
    assert rows["sound"]["status"] == "finished"
    assert rows["broken"]["status"] in ("unreadable", "finished")
    for run in view.sources.runs():
        encode(view.details(run))
    encode([view.artifacts(), view.ledgers(), view.documents()])


def test_a_run_that_is_deleted_is_gone_and_comes_back(output_dir: Path) -> None:
    sources = Sources([output_dir])
    first, second = sources.runs()
    (output_dir / "runs" / first / "run.json").unlink()
    row = describe_row(sources.runs()[first])
    assert row["status"] == "unreadable"
    assert row["problem"].startswith(
        "it finished, but its run.json is gone; the same command writes it again: afarm run"
    )
    (output_dir / "runs" / first / "live.json").unlink()
    assert sources.runs()[first].status == "unreadable"
    assert sources.runs()[second].status == "finished"


def test_what_is_no_directory_or_leads_elsewhere_is_left_out(write_run: WriteRun, tmp_path: Path) -> None:
    runs = write_run("sound", {"method": "ppo"}).parent
    elsewhere = write_run("hidden", {"method": "ppo"}, output_dir=tmp_path / "elsewhere")
    (runs / "link").symlink_to(elsewhere)
    (runs / "file").write_text("")
    assert list(Sources([runs.parent]).runs()) == ["sound"]
    assert Sources([tmp_path / "nothing"]).runs() == {}


def test_ids_are_safe_whatever_a_run_is_called_and_tell_equal_names_apart(write_run: WriteRun, tmp_path: Path) -> None:
    names = ["<script>alert(1)<", "a..%2f..", "a b&c=d", "\x1b[31m", "ünï", "-option", "n" * 200]
    for name in names:
        write_run(name, {"method": name})
    write_run("same", {}, output_dir=tmp_path / "one")
    write_run("same", {}, output_dir=tmp_path / "two")
    runs = Sources([tmp_path / "hand", tmp_path / "one", tmp_path / "two"]).runs()
    assert len(runs) == len(names) + 2
    assert all(run_id.replace("-", "").replace("_", "").isalnum() and run_id.isascii() for run_id in runs)
    assert sorted(run.name for run in runs.values()) == sorted([*names, "same", "same"])


def test_compared_files_go_by_the_name_of_their_system_and_each_flag_is_said_once(write_run: WriteRun) -> None:
    flagged = {"red_flags": {"flags": [{"says": "all are odd"}]}}
    results = [
        {"system": "alpaca-7b", "reference": "ref", "evaluator": name, "metrics": {"win_rate": 58.9}, **flagged}
        for name in ("win_rate", "fitted")
    ]
    files = {"name": "files", "files": {"outputs": "/far/alpaca-7b.json"}, "stages": [], "results": results}
    details = View([write_run("files", files).parents[1]]).details("files")
    assert (details["method"], details["flags"]) == ("alpaca-7b", ["all are odd"])


def test_a_run_of_an_older_version_is_shown_without_what_it_lacks(write_run: WriteRun) -> None:
    directory = write_run("old", {"name": "old", "method": "dpo", "stages": [{"stage": "sft"}], "results": []})
    details = View([directory.parents[1]]).details("old")
    assert (details["method"], details["win_rate"], details["stages"][0]["stage"]) == ("dpo", None, "sft")
