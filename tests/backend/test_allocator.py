from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROBE = """
import resource, torch
from afarm.backend import keep_freed_memory
if {keep}:
    keep_freed_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for step in range(50):
    held = [torch.zeros(2**21).add_(1) for _ in range(6)]
    del held
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
PAGES_OF_A_STEP = 6 * 4 * 2**21 // 4096


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is glibc's")
def test_freed_memory_is_not_asked_for_again() -> None:
    # glibc moves its threshold with what is freed, to another value in every run: it is held at the value it starts at
    held = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(2**17)}

    def steps_cleared(keep: bool) -> float:
        command = [sys.executable, "-c", PROBE.format(keep=keep)]
        found = subprocess.run(command, check=True, capture_output=True, text=True, env=held)
        return int(found.stdout) / PAGES_OF_A_STEP

    assert steps_cleared(keep=True) < 10
    assert steps_cleared(keep=False) > 40
