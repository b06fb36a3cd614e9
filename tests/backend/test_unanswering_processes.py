"""A process that is stopped, killed or never started: the others end in time and name it.

Collected after `test_two_processes_train.py`, which trains while these launches wait.
"""

from __future__ import annotations

import json
import platform
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import warm
from launches import LIMIT

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("end_to_end")]

HERE = platform.node()


@pytest.fixture(scope="module")
def ended(lost_launches: tuple[BaseProcess, Path]) -> dict[str, str]:
    """The last line of each process that was left, by its launch and rank.

    Where one was lost the others have ended with 1, and none has left a process group or a thread behind.
    """
    out = warm.finish(*lost_launches, LIMIT)
    left = {name: (code, said) for name, (code, said) in json.loads(out).items() if code >= 0}
    assert {name: code for name, (code, _) in left.items()} == {
        name: 0 if name.startswith("ended ") else 1 for name in left
    }, left
    assert {"ended 0", "ended 1"} <= left.keys()
    return {name: "".join(said) for name, (_, said) in left.items()}


def test_a_stopped_process_is_named_in_time(ended: dict[str, str]) -> None:
    said = ended["stopped 0"]
    assert f"TrainingError: train ppo: no word from process 1 on {HERE} for 15 s (backend.timeout)" in said
    assert "What was trained is kept: give the same command to all processes again" in said


def test_a_killed_process_is_named(ended: dict[str, str]) -> None:
    assert f"TrainingError: train ppo: process 1 on {HERE} is gone (" in ended["killed 0"]


def test_who_waits_for_a_file_ends_with_the_first_process(ended: dict[str, str]) -> None:
    assert ended["followed 1"].startswith(
        f"Error in process 1: no word from process 0 on {HERE} for 15 s (backend.timeout)"
    )


def test_a_process_that_never_comes_is_told(ended: dict[str, str]) -> None:
    assert "TrainingError: the processes did not come together in 15 s (" in ended["alone 0"]
