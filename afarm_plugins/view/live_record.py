"""A run's record while it is made: `live.json`, renewed about every second, and the lines of its log.

Nothing but a view reads it, and no artifact depends on it. A directory that cannot be written costs the record, never
the run.
"""

from __future__ import annotations

import json
import os
import platform
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from afarm import AfarmError, write_whole
from afarm.experiments import Workspace
from afarm.report import one_line
from afarm.results import finite_number, json_text, without_keys

LIVE = "live.json"
"""The record of a run that is being made, beside `run.json`."""

SECONDS = 1.0
"""Seconds between two looks at what has changed."""

PACE_LOOKS = 11
"""Looks over which calls per second are counted."""

SILENCE = 30.0
"""Seconds without news after which a run of another machine is taken for stopped."""

LINES = 200
"""Lines of the log that are kept, the newest."""

SPENT = ("calls", "input_tokens", "output_tokens", "dollars", "unpriced_calls", "answers_reused")
"""What the record has of the run's spending."""


@contextmanager
def followed(workspace: Workspace, system: str, command: str, started: float) -> Iterator[None]:
    """Keep the live record of a system's run, from the first stage that is made to how the run ended.

    Of several processes that make one run the main one keeps it.
    """
    if not workspace.process_info.is_main_process:
        yield
        return
    live, before, ended = LiveRecord(workspace, system, command, started), workspace.on_stage, threading.Event()

    def on_stage(label: str, run: Any) -> None:
        live.see(label, run)
        if run is None and thread.ident is None:  # the first stage that is made
            live.write()
            thread.start()
        before(label, run)

    def keep() -> None:
        while not ended.wait(SECONDS):
            live.write()

    workspace.on_stage = on_stage
    thread = threading.Thread(target=keep, name="afarm-live-record", daemon=True)
    try:
        yield
        live.status = "finished"
    except BaseException as error:
        live.status = "failed" if isinstance(error, Exception) else "interrupted"
        live.error = _safe(str(error)) if isinstance(error, AfarmError) else type(error).__name__
        raise
    finally:
        workspace.on_stage = before
        ended.set()
        if thread.ident is not None:  # else all was reused, and the record of how it was made stays
            thread.join()
            live.write()


class LiveRecord:
    """Writes `live.json`: stages, process, cost, loops and waits.

    Loops and messages are those of the command's progress, if it keeps them: `loops` and `lines`.
    """

    def __init__(self, workspace: Workspace, system: str, command: str, started: float):
        # Whoever reads a record does without what writes it.
        from afarm.experiments import describe_new_run, stage_row

        self.path = workspace.store.runs / workspace.run_name(system) / LIVE
        self._lines: deque[tuple[float, str]] = getattr(workspace.progress, "lines", deque(maxlen=LINES))
        self.status, self.error = "running", ""
        self._workspace = workspace
        self._about = {
            **describe_new_run(workspace, system, command, started),
            "seed": workspace.config.seed,
            "budget": workspace.config.budget,
            **process_identity(os.getpid()),
        }
        self._working, self._began = "", 0.0
        self._calls: deque[tuple[float, int]] = deque(maxlen=PACE_LOOKS)
        self._stage_row = partial(stage_row, workspace)

    def see(self, label: str, run: Any) -> None:
        """Note that a stage begins (None) or is there: calls are counted anew."""
        self._calls = deque(maxlen=PACE_LOOKS)
        if run is None:
            self._working, self._began = label, time.time()
        how = "begins" if run is None else "reused" if run.reused else f"made in {run.seconds:.1f} s"
        self._lines.append((time.time(), f"{label}: {how}"))

    def write(self) -> None:
        """Write the record whole. Nothing is forced to the disk: the next one comes soon.

        A run that failed before its first stage was there, and bought nothing, leaves none. If another process is at
        the same run, the record is that one's until it ends: two would take turns.
        """
        kept = read_live(self.path.parent) or {}
        own = all(kept.get(name) == value for name, value in process_identity(os.getpid()).items())
        if kept.get("status") == "running" and not own and not stopped_why(kept):
            return
        spend = self._workspace.judges.spend
        if self.status == "failed" and not self._workspace.history and not (spend and spend.calls):
            self.path.unlink(missing_ok=True)
            with suppress(OSError):
                self.path.parent.rmdir()
            return
        with suppress(OSError, AfarmError):
            write_whole(self.path, json_text(self._state()), "the run goes on without a live record")

    def _state(self) -> dict[str, Any]:
        judges = self._workspace.judges
        spend = judges.spend
        pace = self._calls
        pace.append((time.monotonic(), 0 if spend is None else spend.calls))
        (began, before), (now, calls) = pace[0], pace[-1]
        stages = []
        for label, stage in list(self._workspace.planned.items()):
            if run := self._workspace.history.get(label):
                stages.append(self._stage_row(run))
            else:
                at_work = {"status": "working", "began": self._began} if label == self._working else {}
                inputs = [upstream.label for upstream in stage.inputs.values()]
                stages.append({"stage": label, "kind": stage.kind, "inputs": inputs, **at_work})
        return {
            **self._about,
            "status": self.status,
            "error": self.error,
            "updated": time.time(),
            "stages": stages,
            "artifact": judges.artifact,
            "loops": [
                {**loop, "description": _safe(loop["description"])}
                for loop in getattr(self._workspace.progress, "loops", ())
            ],
            "spend": {} if spend is None else {name: getattr(spend, name) for name in SPENT},
            "calls_per_second": round((calls - before) / (now - began), 2) if now > began else 0.0,
            "committed": judges.committed if self._workspace.config.budget is not None else None,
            "slowed": list(judges.slowed),
            "refusals": judges.refusals,
            "log": [[round(at, 1), _safe(text)] for at, text in list(self._lines)],
        }


def _safe(text: str) -> str:
    return one_line(without_keys(text), 1000)


def process_identity(pid: int) -> dict[str, Any]:
    """Identify a process of this machine by its number, its start and the machine's own.

    `process_start` is None if the process is gone, or the system does not say.
    """
    start, boot = None, ""
    with suppress(OSError, IndexError):  # in clock ticks from the machine's start: a number that comes back has another
        start = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[19]
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return {"pid": pid, "process_start": start, "host": platform.node(), "boot": boot}


def read_live(directory: Path) -> Mapping[str, Any] | None:
    """Read the live record of a run; None if there is none, or it cannot be read."""
    path = directory / LIVE
    with suppress(OSError, ValueError, RecursionError):
        if path.is_file() and not path.is_symlink():
            values = json.loads(path.read_text(encoding="utf-8"))
            return values if isinstance(values, dict) else None
    return None


def stopped_why(live: Mapping[str, Any]) -> str:
    """Say why a run is not running although its record says so; empty if it is running."""
    pid = live.get("pid")
    here = process_identity(pid if isinstance(pid, int) and not isinstance(pid, bool) and 0 < pid < 2**31 else 0)
    if live.get("host") == here["host"] and live.get("boot") == here["boot"]:
        gone = here["process_start"] is None or here["process_start"] != live.get("process_start")
        return f"process {here['pid']} is gone without a word" if gone else ""
    silent = time.time() - (finite_number(live.get("updated")) or 0.0)
    if silent > SILENCE:
        return f"no news from {one_line(str(live.get('host')), 80)} for {silent:,.0f} s"
    return ""
