from __future__ import annotations

import subprocess
import sys

import pytest

PROBE = """
import resource, torch
from afarm.backend import keep_freed_memory
if {keep}:
    keep_freed_memory()
for again in range(4):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.zeros(12 * 2**20).add_(1)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is glibc's")
def test_freed_memory_is_not_asked_for_again() -> None:
    def page_faults(keep: bool) -> int:
        command = [sys.executable, "-c", PROBE.format(keep=keep)]
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    assert page_faults(keep=True) < 100 < page_faults(keep=False)
