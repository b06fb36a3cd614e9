"""The launcher's promises, kept by jobs that are processes of this machine."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import cloudpickle
import pytest
from afarm_slurm import SlurmConfig
from afarm_slurm.launcher import SlurmLauncher

from afarm import FarmSpec, Needs, Outcome, PluginError, StageTask, TaskEvent, Tell
from afarm.testing import check_launcher, judge_context

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # jobs cannot import this file


def launcher(cluster: str) -> SlurmLauncher:
    return SlurmLauncher(SlurmConfig(cluster=cluster), "", judge_context())


def act(task: StageTask, tell: Tell) -> Outcome:
    """Fail, or leave a file after those before; the first time the process is killed."""
    tell(TaskEvent(task.id, "started", f"process {os.getpid()}"))
    directory = Path(task.farm.output_dir)
    if task.stage == "fail":
        return Outcome(task.id, error="no luck", error_type="TrainingError")
    if not (directory / f"{task.id} begun").exists():
        (directory / f"{task.id} begun").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    assert all((directory / name).exists() for name in task.after)
    (directory / task.id).touch()
    return Outcome(task.id, f"made/{task.id}")


def test_a_killed_job_is_submitted_again_and_a_failed_one_is_not(tmp_path: Path) -> None:
    farm = FarmSpec("", {}, {}, str(tmp_path), str(tmp_path), "", "")
    tasks = [
        StageTask("killed", "made", "train", (), Needs(), farm),
        StageTask("failed", "fail", "train", (), Needs(), farm),
        StageTask("after", "made", "train", ("failed",), Needs(), farm),
    ]
    told: list[TaskEvent] = []
    outcomes = launcher("local").run(tasks, act, told.append)
    assert outcomes["killed"].artifact == "made/killed"
    assert news(told, "killed") == ["started", "lost", "started", "ended"]
    assert (outcomes["failed"].error, outcomes["failed"].error_type) == ("no luck", "TrainingError")
    assert news(told, "failed") == ["started", "ended"]
    assert outcomes["after"].error == "failed failed"


def news(told: Sequence[TaskEvent], task: str) -> list[str]:
    return [event.news for event in told if event.task == task]


@pytest.mark.cluster
def test_it_keeps_the_promises_of_launchers(tmp_path: Path) -> None:
    check_launcher(launcher("local"), tmp_path)


def test_a_machine_without_slurm_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PluginError, match="launcher 'slurm': sinfo cannot be run"):
        launcher("slurm").nodes()
    with pytest.raises(PluginError, match="launcher 'slurm': no Slurm here"):
        check_launcher(launcher("slurm"), tmp_path)
