"""The commands without inspect_ai, and the other tests of the package in an environment that has it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from afarm.cli import main

HERE = Path(__file__).parent
PYTHON = os.environ.get("INSPECT_PYTHON", "")
"""The interpreter of an environment with afarm, inspect_ai and pytest: `make test` makes one."""


def fails(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["inspect", *words])
    assert ended.value.code
    return " ".join(capsys.readouterr().err.split())


def test_without_the_library_a_command_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "inspect_ai", None)
    for module in [name for name in sys.modules if name.startswith("inspect_ai.")]:
        monkeypatch.delitem(sys.modules, module)
    (tmp_path / "log.eval").write_bytes(b"")
    said = fails(capsys, "read", str(tmp_path / "log.eval"), "-o", str(tmp_path / "mine.jsonl"))
    assert "pip install inspect_ai" in said


def test_what_cannot_be_written_is_refused_before_a_log_is_read(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    there = tmp_path / "there.jsonl"
    there.write_text("mine")
    assert "name it mine.jsonl" in fails(capsys, "read", "log.eval", "-o", "mine.json")
    assert "is there already" in fails(capsys, "read", "log.eval", "-o", str(there))
    assert there.read_text() == "mine"
    assert "choose from error, drop" in fails(capsys, "read", "log.eval", "-o", "a.jsonl", "--on-unusable", "skip")
    assert "no run 'nosuch'" in fails(capsys, "write", "nosuch", "--output-dir", str(tmp_path))


@pytest.mark.skipif(bool(importlib.util.find_spec("inspect_ai")), reason="the tests of logs run here themselves")
def test_logs_where_inspect_is_installed(tmp_path: Path) -> None:
    if not PYTHON:
        pytest.skip("no environment with inspect_ai (INSPECT_PYTHON): make test has one")
    root = HERE.parents[2]
    options = ["-q", "-p", "no:cacheprovider", "-c", str(root / "pyproject.toml")]
    command = [PYTHON, "-m", "pytest", *options, str(HERE / "test_inspect_logs.py")]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout, done.stdout
