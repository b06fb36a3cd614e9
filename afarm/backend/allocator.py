"""How much freed memory a process keeps on a CPU."""

from __future__ import annotations

import ctypes
import sys

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # mallopt's names for them, in malloc.h
KEPT = 2**27
"""Bytes."""


def keep_freed_memory() -> None:
    """Have the C library keep up to `KEPT` bytes that were freed, for what is allocated next.

    A training step frees what the next one allocates again. Handed back in between, as glibc does with tensors of some
    megabytes, each page is cleared by the kernel when it is next touched: a tenth of a PPO step's time. Does nothing
    where there is no such switch. For the whole process.
    """
    switch = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if switch is not None:
        switch(TRIM_THRESHOLD, KEPT)
        switch(MMAP_THRESHOLD, KEPT)
