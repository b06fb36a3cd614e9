"""Stopping a run: the one thing that a view does besides reading, if it is allowed to.

The process is the one that the run's live record names, on this machine, and no other that has its number by now.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

from afarm import ConfigError
from afarm_plugins.view.live_record import process_identity
from afarm_plugins.view.sources import SeenRun


def stop(run: SeenRun) -> str:
    """Interrupt a run's process, as Ctrl-C does. Raises `ConfigError` saying why it cannot be."""
    if run.status != "running":  # on this machine that is told by the process itself
        raise ConfigError([f"{run.name} is not running: there is nothing to stop"])
    pid, here = run.live["pid"], process_identity(os.getpid())
    if (run.live.get("host"), run.live.get("boot")) != (here["host"], here["boot"]):
        raise ConfigError([f"{run.name} runs on {run.live.get('host')}: stop it there"])
    asked = signal.SIGTERM if _ignores_interrupts(pid) else signal.SIGINT
    try:
        os.kill(pid, asked)
    except OSError as error:
        raise ConfigError([f"process {pid} cannot be stopped: {error.strerror}"]) from error
    return f"process {pid} was asked to stop; requests that are paid for are waited for"


def _ignores_interrupts(pid: int) -> bool:
    """Tell if a process ignores Ctrl-C, as one that a shell has put into the background does."""
    with suppress(OSError, ValueError, StopIteration):
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines()
        mask = next(line.split()[1] for line in lines if line.startswith("SigIgn:"))
        return bool(int(mask, 16) >> (signal.SIGINT - 1) & 1)
    return False
