"""The runs of output directories and their state: finished, being made, stopped, or not readable.

A directory may be written, deleted or changed by hand meanwhile, be an older version's, or deny its reading: each run
then says so, and none keeps the others from being shown.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from afarm import AfarmError, Row, RunRecord, read_run, seeding
from afarm.report import one_line
from afarm.results import RECORD, Place, finite_number
from afarm_plugins.view.live_record import LIVE, read_live, stopped_why
from afarm_plugins.view.values import signature

Status = Literal["finished", "running", "stopped", "failed", "unreadable"]

_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")

CLOSED = "may not be read: its rights deny it"

Signature = tuple[tuple[int, int, int] | None, ...]


@dataclass(frozen=True, slots=True)
class SeenRun:
    """A run on disk; `id` is safe in addresses, `ledger` the one named for all runs.

    `record` and `live` are empty if there is none.
    """

    id: str
    directory: Path
    output_dir: Path
    record: RunRecord
    live: RunRecord
    problem: str = ""
    ledger: Place | None = None

    @property
    def name(self) -> str:
        return self.directory.name

    @property
    def status(self) -> Status:
        """The state of the run; a finished run that is made again is running."""
        live = self.live
        if live.get("status") == "running":
            why = stopped_why(live)
            if not why or not self.record:
                return "stopped" if why else "running"
        if self.record:
            return "finished"
        if live.get("status") == "failed":
            return "failed"
        return "stopped" if live and live.get("status") != "finished" else "unreadable"

    @property
    def about(self) -> RunRecord:
        """The record; the live one as long as there is none, or while the run is made again."""
        return self.record if self.status == "finished" else self.live or self.record


class Sources:
    """The output directories that are looked at, and what was read of them already."""

    def __init__(self, output_dirs: Sequence[Path], ledger: Place | None = None):
        self.output_dirs = [directory.absolute() for directory in output_dirs]
        self.ledger = ledger
        self._seen: dict[Path, tuple[Signature, SeenRun]] = {}
        self._by_id: dict[str, SeenRun] = {}

    def places(self) -> list[Row]:
        """Describe the output directories: if they are there, and if they may not be read."""
        return [
            {"path": str(place), "there": os.path.isdir(place), "closed": is_closed(place) or is_closed(place / "runs")}
            for place in self.output_dirs
        ]

    def run(self, run_id: str) -> SeenRun | None:
        """Look up a run by its id, None if there is none; of one that was met or is named so, read it alone."""
        met = self._by_id.get(run_id)
        if met is not None and met.directory.is_dir():
            return self._look(met.directory, met.output_dir, run_id)
        if met is None and _SAFE.fullmatch(run_id):
            for output_dir in self.output_dirs:  # the first of that name has it as its id
                for directory in _directories(output_dir / "runs"):
                    if directory.name == run_id:
                        return self._look(directory, output_dir, run_id)
        return self.runs().get(run_id)

    def runs(self) -> dict[str, SeenRun]:
        """Every run by its id, the newest first. What has not changed since is not read again."""
        found: dict[Path, SeenRun] = {}
        taken: set[str] = set()
        for output_dir in self.output_dirs:
            for directory in _directories(output_dir / "runs"):
                safe = _SAFE.fullmatch(directory.name) and directory.name not in taken
                run_id = directory.name if safe else f"run-{seeding.digest('view', str(directory), length=6)}"
                found[directory] = self._look(directory, output_dir, run_id)
                taken.add(found[directory].id)
        self._seen = {directory: self._seen[directory] for directory in found}
        created = {run.id: finite_number(run.about.get("created")) or 0.0 for run in found.values()}
        newest_first = sorted(found.values(), key=lambda run: (-created[run.id], run.name))
        self._by_id = {run.id: run for run in newest_first}
        return dict(self._by_id)

    def _look(self, directory: Path, output_dir: Path, run_id: str) -> SeenRun:
        signatures = tuple(signature(directory / name) for name in (RECORD, LIVE))
        before = self._seen.get(directory)
        if before and before[0] == signatures and before[1].id == run_id:
            return before[1]
        record, problem = RunRecord(directory, {}), ""
        try:
            record = read_run(directory) if signatures[0] else record
        except (AfarmError, OSError, RecursionError) as error:
            problem = one_line(str(error), 500)
        live = RunRecord(directory, read_live(directory) or {})
        if not (record or live or problem):
            problem = CLOSED if is_closed(directory) else f"has no {RECORD}: nothing was finished"
        run = SeenRun(run_id, directory, output_dir, record, live, problem, self.ledger)
        self._seen[directory] = signatures, run
        return run


def is_closed(directory: Path) -> bool:
    """Tell if a directory is there, as far as can be seen, and may not be read."""
    try:
        return directory.is_dir() and not os.access(directory, os.R_OK | os.X_OK)
    except PermissionError:  # of one above it
        return True


def _directories(runs: Path) -> Iterator[Path]:
    """The directories in `runs`, without those that links lead to: they may lie anywhere."""
    try:
        with os.scandir(runs) as entries:
            for entry in sorted(entries, key=lambda each: each.name):
                if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
                    yield Path(entry.path)
    except OSError:
        return
