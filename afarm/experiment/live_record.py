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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from afarm.core.errors import AfarmError
from afarm.core.interfaces import Progress
from afarm.evaluation.metrics import finite_number
from afarm.storage.disk import json_text, replacing
from afarm.storage.text import one_line, without_keys, without_passwords

if TYPE_CHECKING:
    from afarm.experiment.stage import StageRun
    from afarm.experiment.workspace import Workspace

T = TypeVar("T")

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


@dataclass(slots=True, eq=False)
class Loop:
    """A loop at work: items `done`, of `total` if that is known."""

    description: str
    total: int | None
    done: int = 0


class Watch:
    """The progress and the messages of a command, handed on to its screen and kept for its live record."""

    def __init__(self, progress: Progress, notify: Callable[[str], None]):
        self.loops: list[Loop] = []
        self.listener: Callable[[str], None] = lambda text: None
        """Called with each message."""
        self._progress = progress
        self._notify = notify

    def __call__(self, items: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
        if total is None and isinstance(items, Sized):
            total = len(items)
        loop = Loop(description, total)
        self.loops.append(loop)
        try:
            for item in self._progress(items, description, total):
                yield item
                loop.done += 1
        finally:
            self.loops.remove(loop)

    def tell(self, text: str) -> None:
        """Hand a message on."""
        self._notify(text)
        self.listener(text)


@contextmanager
def followed(workspace: Workspace, system: str, command: str, started: float) -> Iterator[None]:
    """Keep the live record of a system's run while the body makes it; its last word is how that ended.

    Of several processes that make one run the main one keeps it.
    """
    if not workspace.process_info.is_main_process:
        yield
        return
    live, before = LiveRecord(workspace, system, command, started), workspace.on_stage

    def on_stage(label: str, run: StageRun | None) -> None:
        live.see(label, run)
        before(label, run)

    workspace.on_stage = on_stage
    if live.watch:
        live.watch.listener = live.tell
    live.write()
    live.thread.start()
    try:
        yield
        live.status = "finished"
    except BaseException as error:
        live.status = "failed" if isinstance(error, Exception) else "interrupted"
        live.error = _safe(str(error)) if isinstance(error, AfarmError) else type(error).__name__
        raise
    finally:
        workspace.on_stage = before
        if live.watch:
            live.watch.listener = lambda text: None
        live.ended.set()
        live.thread.join()
        live.write()


class LiveRecord:
    """Writes `live.json`: stages, process, cost, loops and waits."""

    def __init__(self, workspace: Workspace, system: str, command: str, started: float):
        from afarm.experiment.run_record import describe_new_run, judges  # which reading a record does without

        self.path = workspace.store.runs / workspace.run_name(system) / LIVE
        self.watch = workspace.progress if isinstance(workspace.progress, Watch) else None
        self.status, self.error = "running", ""
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._keep, name="afarm-live-record", daemon=True)
        self._workspace = workspace
        self._about = {
            **describe_new_run(workspace, system, command, started),
            "seed": workspace.config.seed,
            "judges": judges(workspace),
            "budget": workspace.config.budget,
            **process_identity(os.getpid()),
        }
        self._stages: dict[str, dict[str, Any]] = {}
        self._log: list[list[Any]] = []
        self._calls: deque[tuple[float, int]] = deque(maxlen=PACE_LOOKS)
        self._lock = threading.Lock()

    def tell(self, text: str) -> None:
        """Add a line to the log."""
        with self._lock:
            self._log.append([round(time.time(), 1), _safe(text)])
            del self._log[:-LINES]

    def see(self, label: str, run: StageRun | None) -> None:
        """Note that a stage begins (None) or is there: calls are counted anew."""
        with self._lock:
            self._calls.clear()
        if run is None:
            self._stages[label] = {"status": "working", "began": time.time()}
            self.tell(f"{label}: begins")
            return
        seconds = run.artifact.meta["seconds"] if run.reused else run.seconds
        self._stages[label] = {
            "status": "reused" if run.reused else "made",
            "seconds": round(float(seconds), 2),
            "artifact": str(run.artifact.path.relative_to(self._workspace.store.root)),
            "spend": dict(run.artifact.meta["spend"]),
            "rows": run.artifact.meta["summary"].get("rows"),
        }
        self.tell(f"{label}: {'reused' if run.reused else f'made in {run.seconds:.1f} s'}")

    def _keep(self) -> None:
        while not self.ended.wait(SECONDS):
            self.write()

    def write(self) -> None:
        """Write the record whole. Nothing is forced to the disk: the next one comes soon.

        If another process is at the same run, the record is that one's until it ends: two would take turns.
        """
        kept = read_live(self.path.parent) or {}
        own = all(kept.get(name) == value for name, value in process_identity(os.getpid()).items())
        if kept.get("status") == "running" and not own and not stopped_why(kept):
            return
        with suppress(OSError, AfarmError):
            text = json_text(self._state())
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(self.path) as beside:
                beside.write_text(text, encoding="utf-8", errors="backslashreplace")

    def _state(self) -> dict[str, Any]:
        judges = self._workspace.judges
        spend = judges.spend
        loops = list(self.watch.loops) if self.watch else []
        with self._lock:
            log = list(self._log)
            self._calls.append((time.monotonic(), 0 if spend is None else spend.calls))
            (began, before), (now, calls) = self._calls[0], self._calls[-1]
        planned = {
            label: {"kind": stage.kind, "inputs": [upstream.label for upstream in stage.inputs.values()]}
            for label, stage in list(self._workspace.planned.items())
        }
        seen = {label: {**planned.get(label, {}), **stage} for label, stage in list(self._stages.items())}
        return {
            **self._about,
            "status": self.status,
            "error": self.error,
            "updated": time.time(),
            "stages": {**planned, **seen},
            "artifact": judges.artifact,
            "loops": [{"description": _safe(one.description), "done": one.done, "total": one.total} for one in loops],
            "spend": {} if spend is None else {name: getattr(spend, name) for name in SPENT},
            "calls_per_second": round((calls - before) / (now - began), 2) if now > began else 0.0,
            "committed": judges.committed if self._workspace.config.budget is not None else None,
            "slowed": list(judges.slowed),
            "refusals": judges.refusals,
            "log": log,
        }


def _safe(text: str) -> str:
    return one_line(without_passwords(without_keys(text)), 1000)


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
    """Read the live record of a run; None if it has none that can be read."""
    path = directory / LIVE
    with suppress(OSError, ValueError, RecursionError):
        if path.is_file() and not path.is_symlink():
            values = json.loads(path.read_text(encoding="utf-8"))
            return values if isinstance(values, dict) else None
    return None


def stopped_why(live: Mapping[str, Any]) -> str:
    """Say why a run whose record says that it is running is not; empty if it is."""
    pid = live.get("pid")
    here = process_identity(pid if isinstance(pid, int) and not isinstance(pid, bool) and 0 < pid < 2**31 else 0)
    if live.get("host") == here["host"] and live.get("boot") == here["boot"]:
        gone = here["process_start"] is None or here["process_start"] != live.get("process_start")
        return f"process {here['pid']} is gone without a word" if gone else ""
    silent = time.time() - (finite_number(live.get("updated")) or 0.0)
    if silent > SILENCE:
        return f"no news from {one_line(str(live.get('host')), 80)} for {silent:,.0f} s"
    return ""
