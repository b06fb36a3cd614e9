"""Nodes that differ from the command's machine: each difference is named, with what mends it."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from light_farm import light_plugins, light_workspace
from light_plugin import CountingJudge
from one_node import Change, OneNode, another_code, another_plugin

from afarm.experiment import tasks
from afarm.experiment.launching.launcher import Launcher
from afarm.experiment.workspace import versions
from afarm_plugins.cluster import nodes
from afarm_plugins.cluster.nodes import NodeReport, check_nodes

Check = Callable[[Launcher], NodeReport]


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Check:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tasks, "_plugins", lambda *chosen: light_plugins())

    def look(launcher: Launcher) -> NodeReport:
        with light_workspace(tmp_path, store=str(tmp_path / "store")) as opened:
            (report,) = check_nodes(launcher, opened, "nudge", "a run")
        assert not [*tmp_path.rglob(".check-*"), *tmp_path.rglob("check-*")], "nothing is left behind"
        return report

    return look


def test_a_node_that_has_all_has_no_problems(check: Check) -> None:
    report = check(OneNode())
    assert report.problems == []
    assert report.seconds_ahead == pytest.approx(0, abs=nodes.TOLERANCE)
    assert report.versions == versions()


def another_torch(there: pytest.MonkeyPatch) -> None:
    there.setattr(nodes, "versions", lambda: {**versions(), "torch": "1.0"})


def another_clock(there: pytest.MonkeyPatch) -> None:
    now = time.time
    there.setattr(time, "time", lambda: now() - 12)


def locks_of_its_own(there: pytest.MonkeyPatch) -> None:
    there.setattr(fcntl, "flock", lambda handle, how: None)


def no_key(there: pytest.MonkeyPatch) -> None:
    there.setattr(CountingJudge, "check_access", lambda self: ["no key: set LIGHT_API_KEY"])


def no_ledger(there: pytest.MonkeyPatch) -> None:
    from afarm.core.errors import StoreError
    from afarm.judging.ledger import Ledger

    def fail(self: Ledger) -> None:
        raise StoreError("the ledger cannot be written: database or disk is full")

    there.setattr(Ledger, "heartbeat", fail)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (another_code, "another code of afarm: install the same on every machine"),
        (another_plugin, "another code of afarm:judges: install the same on every machine"),
        (another_torch, "other libraries: torch 1.0 (here"),
        (another_clock, "s behind: synchronise clocks"),
        (locks_of_its_own, "a lock that the command holds in"),
        (no_key, "no key: set LIGHT_API_KEY"),
        (no_ledger, "the ledger cannot be written: database or disk is full"),
    ],
)
def test_what_differs_is_named_and_nothing_else(check: Check, change: Change, problem: str) -> None:
    (named,) = check(OneNode(change)).problems
    assert problem in named


def test_a_directory_that_is_not_shared_is_named_both_ways(check: Check, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    seen_there, seen_here = check(OneNode(output_dir=str(tmp_path / "own"))).problems
    assert "what is written to" in seen_there
    assert "by the command is not seen: share that directory, at the same path" in seen_there
    assert f"what it writes to {tmp_path / 'out'} is not seen here" in seen_here


def test_a_shared_store_that_is_another_one_there_is_named(check: Check, tmp_path: Path) -> None:
    (named,) = check(OneNode(store=str(tmp_path / "own store"))).problems
    assert named == (
        f"what the command writes to the store {tmp_path / 'own store'} is not there: name one that all machines share"
    )


def test_a_directory_that_is_missing_is_named(check: Check, tmp_path: Path) -> None:
    problems = check(OneNode(output_dir=str(tmp_path / "nowhere"))).problems
    assert any(f"sees no directory {tmp_path / 'nowhere'}: share it with every machine" in text for text in problems)
