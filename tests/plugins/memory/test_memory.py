"""Memory of large files through the command line: it grows with the texts, not with what is made of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

MOST_PER_PAIR = 1_350
"""Bytes per pair of short rows: 1,120 now, 1,570 while instructions and judgements were held twice."""

MEASURE = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
"""


def peak(folder: Path, pairs: int) -> int:
    for name, words in (("mine", 12), ("theirs", 16)):
        rows = (
            {"instruction": f"Question number {n}", "output": " ".join(["word"] * (words - n % 5)), "generator": name}
            for n in range(pairs)
        )
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    evaluate = ["evaluate", "mine.jsonl", "--reference", "theirs.jsonl", "--annotator", "reward:text_utility"]
    command = [sys.executable, "-c", MEASURE, sys.executable, "-m", "afarm", *evaluate, "--output-dir", str(pairs)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=os.environ | {"COLUMNS": "100"})
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_memory_grows_by_the_rows_alone(tmp_path: Path) -> None:
    few, many = 1_000, 21_000
    small, large = peak(tmp_path, few), peak(tmp_path, many)
    assert (large - small) / (many - few) < MOST_PER_PAIR
