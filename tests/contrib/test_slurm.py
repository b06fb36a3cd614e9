"""afarm-slurm's own tests, as its author would run them: a few jobs here, the whole conformance check on clusters."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from places import ROOT

PACKAGE = ROOT / "plugins-contrib" / "afarm-slurm"


@pytest.mark.parametrize("chosen", ["not slow", pytest.param("slow", marks=pytest.mark.cluster)])
def test_the_plugins_own_tests_pass(chosen: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", chosen, "tests"]
    paths = os.pathsep.join([str(PACKAGE / "src"), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=PACKAGE, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout, done.stdout
