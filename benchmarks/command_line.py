"""CPU seconds and memory of commands that compute little: looking ahead, going on, going over what is cached."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

AFARM = [sys.executable, "-m", "afarm"]
SMALL = [
    *("rows={sft: 64, preference: 64, unlabeled: 64, validation: 16}", "sft.num_train_epochs=1"),
    *("bradley_terry.num_train_epochs=1", "ppo={total_steps: 2, warmup_steps: 0, save_steps: 1}"),
]
TIMES = 3
PAIRS = 100_000


def command_line() -> list[str]:
    """CPU seconds of each command (median; interpreter included), and the peak memory of a hundred thousand pairs."""
    lines = ["| command | CPU seconds, median of 3 | peak memory, MB |", "|---|---|---|"]
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        write_outputs(folder, 805)
        settings = [word for setting in SMALL for word in ("--set", setting)]
        files = ["evaluate", "mine.jsonl", "--reference", "theirs.jsonl", "--judge", "offline"]
        commands: dict[str, tuple[Sequence[str], bool]] = {
            "afarm --help": (["--help"], False),
            "afarm run --help": (["run", "--help"], False),
            "afarm run --set ppo.learning_rat=1 (a typo)": (["run", "--set", "ppo.learning_rat=1"], False),
            "afarm run --dry-run": (["run", "--dry-run"], False),
            "afarm run, all of it reused": (["run", *settings], True),
            "afarm evaluate of 805 pairs, cached": (files, True),
        }
        for name, (arguments, made_before) in commands.items():
            measured = [measure(folder, arguments) for _ in range(TIMES + 1)][1 if made_before else 0 :][:TIMES]
            seconds, memory = (statistics.median(values) for values in zip(*measured, strict=True))
            lines.append(f"| `{name}` | {seconds:.2f} | {memory:.0f} |")
        write_outputs(folder, PAIRS)
        seconds, memory = measure(folder, [*files, "--output-dir", "large"])
        lines.append(f"| `afarm evaluate` of {PAIRS:,} pairs, offline judge (once) | {seconds:.1f} | {memory:.0f} |")
    return lines


def measure(folder: Path, arguments: Sequence[str]) -> tuple[float, float]:
    """Run a command: its CPU seconds and its peak memory in MB."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"PYTHONPYCACHEPREFIX": str(folder / "bytecode"), "OMP_NUM_THREADS": "1"}
    code = (
        "import json, resource, subprocess, sys; "
        "subprocess.run(sys.argv[1:], capture_output=True); "
        "used = resource.getrusage(resource.RUSAGE_CHILDREN); "
        "print(json.dumps([used.ru_utime + used.ru_stime, used.ru_maxrss / 1024]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *AFARM, *arguments],
        cwd=folder,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    seconds, memory = json.loads(done.stdout)
    return seconds, memory


def write_outputs(folder: Path, count: int) -> None:
    """Write the outputs of two systems to `count` instructions, about 60 and 80 characters long."""
    for name, words in (("mine", 12), ("theirs", 16)):
        with (folder / f"{name}.jsonl").open("w") as file:
            for n in range(count):
                text = " ".join(f"word{(n * k) % 97}" for k in range(1, words - n % 5))
                file.write(json.dumps({"instruction": f"Task {n}", "output": text, "generator": name}) + "\n")
