"""With methods, judges, annotators, evaluators and the toy world alone, the commands of other plugins are not there.

`tests/contrib/test_install.py` runs the demo in this way, from the wheel.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from pipeline_alone import ALONE


def run_alone(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", ALONE, *arguments]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True)


def test_commands_of_plugins_that_are_not_there_are_not_listed(tmp_path: Path) -> None:
    shown = run_alone(tmp_path, "--help")
    assert shown.returncode == 0
    assert "leaderboard" in shown.stdout
    assert not {"view", "study", "tune", "bundle", "drift", "memory", "ledger-copy"} & set(shown.stdout.split())
    missing = run_alone(tmp_path, "view")
    assert missing.returncode == 2
    assert "No such command 'view'" in missing.stderr
