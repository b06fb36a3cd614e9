"""What a command loads, from `sys.modules` of a fresh process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

TRAINS = ["torch", "transformers", "trl", "peft", "accelerate", "datasets"]


def afarm_loads(directory: Path, *arguments: str, among: list[str] = TRAINS) -> tuple[int, str, list[str]]:
    """Run a command in a fresh process: its exit code, what it wrote, and the modules `among` these that it loaded."""
    code = f"""
import json, sys
from afarm.cli import main
try:
    main(sys.argv[1:])
finally:
    with open("loaded.json", "w") as file:
        json.dump([m for m in {among!r} if m in sys.modules], file)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=directory,
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"},
    )
    return done.returncode, done.stdout + done.stderr, json.loads((directory / "loaded.json").read_text())
