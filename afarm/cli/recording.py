"""The record of a run: its method evaluated, the record and the report written."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from afarm.storage.text import without_passwords

if TYPE_CHECKING:
    from afarm.experiment.farm import Farm
    from afarm.storage.runs import RunRecord


def record_run(farm: Farm, method: str, started: float) -> tuple[RunRecord, Path]:
    """Evaluate `method`, write the run's record and its report. Returns the record and the report's path.

    `afarm view` can follow it meanwhile.
    """
    from afarm import report
    from afarm.experiment import run_record as runs
    from afarm.experiment.live_record import followed
    from afarm.storage.runs import read_run

    command = command_line()
    with followed(farm.workspace, method, command, started):
        result = farm.evaluate(method)
        if not farm.workspace.process_info.is_main_process:
            raise typer.Exit  # the main process writes of it
        directory = runs.record(farm.workspace, method, result, command, started)
        return read_run(directory), report.refresh(directory)


def command_line() -> str:
    """The command as it was given, to be given again, without passwords."""
    return without_passwords(shlex.join(["afarm", *sys.argv[1:]]))
