"""The most memory that this process holds while it makes an artifact."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

CLEAR = Path("/proc/self/clear_refs")
STATUS = Path("/proc/self/status")

FORGET_PEAK = "5"
"""What Linux takes as the order to begin the peak anew."""


def begin_peak() -> bool:
    """Begin to look for the most memory anew. Returns False where the system cannot."""
    if (cuda := _cuda()) is not None:
        cuda.reset_peak_memory_stats()
    try:
        CLEAR.write_text(FORGET_PEAK)
    except OSError:
        return False
    return True


def peak_memory(is_known: bool) -> dict[str, int]:
    """Return the most bytes held since `begin_peak`, whose answer is `is_known`: in RAM, on a GPU."""
    found: dict[str, int] = {}
    with suppress(OSError):
        if is_known and (line := next((x for x in STATUS.read_text().splitlines() if x.startswith("VmHWM:")), "")):
            found["memory"] = 1024 * int(line.split()[1])
    if (cuda := _cuda()) is not None:
        found["gpu_memory"] = int(cuda.max_memory_allocated())
    return found


def _cuda() -> Any:
    """Return torch.cuda if it is in use, else None; torch is not loaded to see."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda if cuda is not None and cuda.is_initialized() else None
