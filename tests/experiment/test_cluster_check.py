"""Nodes that differ from the command's machine: each difference is named, with what mends it."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from light_farm import light_plugins, light_workspace
from light_plugin import CountingJudge

from afarm.core.errors import ConfigError
from afarm.experiment import cluster_check, tasks
from afarm.experiment.cluster_check import NodeReport, check_nodes, require_same_code
from afarm.experiment.launching.launcher import Execute, Launcher, Outcome, StageTask, TaskEvent, Tell
from afarm.experiment.workspace import versions

Change = Callable[[pytest.MonkeyPatch], None]
Check = Callable[[Launcher], NodeReport]


class OneNode(Launcher):
    """Runs tasks in this process, of which `change` makes another machine, as do other values of the `farm`."""

    def __init__(self, change: Change = lambda there: None, **farm: str):
        self.change, self.farm = change, farm

    def nodes(self) -> Sequence[str]:
        return ["node2"]

    nodes_at_once = nodes

    def run(self, tasks: Sequence[StageTask], execute: Execute, tell: Tell) -> Mapping[str, Outcome]:
        (task,) = tasks
        assert task.needs.node == "node2"
        task = replace(task, farm=replace(task.farm, **self.farm))
        told: list[TaskEvent] = []
        with pytest.MonkeyPatch.context() as there:
            self.change(there)
            outcome = execute(task, told.append)
        for event in told:
            tell(event)
        return {task.id: outcome}


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Check:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tasks, "_plugins", light_plugins)

    def look(launcher: Launcher) -> NodeReport:
        with light_workspace(tmp_path, store=str(tmp_path / "store")) as opened:
            (report,) = check_nodes(launcher, opened, "nudge", "a run")
        assert not [*tmp_path.rglob(".check-*"), *tmp_path.rglob("check-*")], "nothing is left behind"
        return report

    return look


def test_a_node_that_has_all_has_no_problems(check: Check) -> None:
    report = check(OneNode())
    assert report.problems == []
    assert report.seconds_ahead == pytest.approx(0, abs=cluster_check.TOLERANCE)
    assert report.versions == versions()


def another_code(there: pytest.MonkeyPatch) -> None:
    there.setattr(cluster_check, "code_digest", lambda kind: f"edited {kind}")


def another_plugin(there: pytest.MonkeyPatch) -> None:
    digest = cluster_check.plugin_digest
    there.setattr(cluster_check, "plugin_digest", lambda c: "edited" if c.plugin == "afarm:judges" else digest(c))


def another_torch(there: pytest.MonkeyPatch) -> None:
    there.setattr(cluster_check, "versions", lambda: {**versions(), "torch": "1.0"})


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


@pytest.fixture
def require(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Launcher], None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tasks, "_plugins", light_plugins)

    def ask(launcher: Launcher) -> None:
        with light_workspace(tmp_path) as opened:
            require_same_code(launcher, opened, "nudge", "a run")

    return ask


def test_a_node_with_the_same_code_may_begin_stages(require: Callable[[Launcher], None]) -> None:
    require(OneNode())
    require(OneNode(another_clock))  # which only the whole check looks at


@pytest.mark.parametrize(("change", "name"), [(another_code, "afarm"), (another_plugin, "afarm:judges")])
def test_a_node_with_another_code_is_named_before_a_stage(
    require: Callable[[Launcher], None], change: Change, name: str
) -> None:
    with pytest.raises(ConfigError, match=f"node2: another code of {name}: install the same on every machine"):
        require(OneNode(change))


def test_a_node_that_sees_no_directory_is_named_before_a_stage(
    require: Callable[[Launcher], None], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"node2: .* sees no directory .*nowhere: share it with every machine"):
        require(OneNode(output_dir=str(tmp_path / "nowhere")))
