"""What both sides of a comparison of trainers share: sizes, cores, time and memory.

It imports no afarm, since the peers' environments have none.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

SHAPES: dict[str, dict[str, int]] = {
    "smollm2": {"hidden": 576, "inner": 1536, "layers": 30, "heads": 9, "kv-heads": 3, "vocab": 49152},
    "tiny": {"hidden": 32, "inner": 64, "layers": 2, "heads": 2, "kv-heads": 2, "vocab": 256},
}
"""Of models with random weights. That of SmolLM2-135M takes the time and the memory that SmolLM2-135M takes."""


def arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    for name, value in {
        "batch": 32, "prompt-len": 64, "resp-len": 64, "hidden": 256, "inner": 1024, "layers": 4, "heads": 4,
        "kv-heads": 4, "vocab": 49152, "epochs": 4, "micro": 32, "steps": 3, "threads": 1,
    }.items():  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--shape", choices=SHAPES, help="in place of --hidden to --vocab")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--bf16", action="store_true", help="mixed precision")
    parser.add_argument("--lora", action="store_true", help="rank 8 on the attention projections")
    parser.add_argument("--models", type=Path, help="weights and prompts that both sides load: written where missing")
    return parser


def parse(parser: argparse.ArgumentParser, given: Sequence[str] | None = None) -> argparse.Namespace:
    found = parser.parse_args(given)
    for name, value in SHAPES.get(found.shape, {}).items():
        setattr(found, name.replace("-", "_"), value)
    found.micro = min(found.micro, found.batch)
    return found


def take_cores(a: argparse.Namespace) -> None:
    """Use `--threads` threads, on the CPU with as many cores of their own."""
    torch.set_num_threads(a.threads)
    if a.device == "cpu" and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-a.threads :])


def run_side(command: Sequence[str]) -> dict[str, Any]:
    """Run one side in a process of its own. Returns the figures that it prints last."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


class Meter:
    """Seconds and megabytes of steps: of this process and its CPU, or of the wall and the GPU.

    It ticks when all models are loaded, and after each step. The first `warm_up` steps are not measured.
    """

    def __init__(self, device: str, warm_up: int = 1):
        self.device, self.warm_up = device, warm_up
        self.times: list[float] = []
        self.before = 0.0
        self.metrics: list[dict[str, float]] = []

    def tick(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()
        if not self.times:
            self.before = held(self.device)
        self.times.append(time.perf_counter() if self.device == "cuda" else time.process_time())

    def figures(self, responses: int) -> dict[str, Any]:
        seconds = statistics.median([after - before for before, after in pairwise(self.times)][self.warm_up :])
        found = {"seconds": seconds, "rollouts": responses / seconds, "before_mb": self.before}
        return {**found, "peak_mb": peak(self.device), "metrics": self.metrics}


def held(device: str) -> float:
    """Megabytes held now: by this process, or allocated on the GPU, where the peak begins anew."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated() / 2**20
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def peak(device: str) -> float:
    """Megabytes held at most: by this process ever, or on the GPU since `held`."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmHWM"))
    return int(line.split()[1]) / 1024
