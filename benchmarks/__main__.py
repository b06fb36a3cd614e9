"""`make bench`: measure, and write docs/benchmarks.md with the machine.

Each figure is taken in a process of its own. What is compared (ours beside the plain way) runs in turn in one go, A B A
B, and the ratio of medians is what to quote: absolute times drift with the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.boards import boards
from benchmarks.evaluators import evaluators
from benchmarks.judging import judging
from benchmarks.ppo import ppo
from benchmarks.throughput import SMOL

PAGE = Path("docs/benchmarks.md")
BEGIN, END = "<!-- measured -->", "<!-- /measured -->"
NAMES = {
    "sample": "afarm samples",
    "generate": "`transformers.generate`",
    "best-of": "afarm samples 64 of one prompt",
    "generate-n": "`generate(num_return_sequences=64)`",
    "sft": "afarm's SFT",
    "plain-sft": "plain training loop",
}
HEAVY = "torch transformers openai anthropic"


def timed(command: list[str]) -> float:
    begin = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - begin


def start_up() -> list[str]:
    """`import afarm` and `afarm --help`, interpreter included, and what they load."""
    lines = ["| command | seconds, median of 9 | fastest |", "|---|---|---|"]
    afarm = str(Path(sys.executable).with_name("afarm"))
    commands = {"import afarm": [sys.executable, "-c", "import afarm"], "afarm --help": [afarm, "--help"]}
    for name, command in commands.items():
        times = [timed(command) for _ in range(10)][1:]
        lines.append(f"| `{name}` | {statistics.median(times):.3f} | {min(times):.3f} |")
    probe = (
        "import sys, afarm.cli; afarm.cli.make_app(); "
        f"print(' '.join(sorted(set(sys.modules) & set({HEAVY!r}.split()))) or 'none')"
    )
    loaded = subprocess.run([sys.executable, "-c", probe], check=True, capture_output=True, text=True).stdout.strip()
    return [*lines, "", f"Of {HEAVY.replace(' ', ', ')}, loaded by `afarm --help`: {loaded}."]


def whole_run() -> list[str]:
    """The default `afarm run`, from a cold start to the report."""
    with tempfile.TemporaryDirectory() as directory:
        begin = time.perf_counter()
        command = [
            sys.executable,
            "-m",
            "afarm",
            *["run", "--method", "ppo", "--annotator", "pool", "--json", "--output-dir"],
        ]
        done = subprocess.run([*command, directory], check=True, capture_output=True, text=True)
        wall = time.perf_counter() - begin
    stages = json.loads(done.stdout)["stages"]
    parts = ", ".join(f"{s['stage']} {s['seconds']:.0f} s" for s in stages if s["seconds"] >= 0.5)
    return [f"`afarm run --method ppo --annotator pool`, imports included: **{wall:.0f} s** ({parts})."]


def throughput(repeats: int) -> list[str]:
    lines = [
        "| model | work | tokens/s | tokens per CPU second | memory above the model, MB |",
        "|---|---|---|---|---|",
    ]
    cases = [("toy", 1, ("sample", "generate")), ("toy", 1, ("sft", "plain-sft"))]
    if SMOL.is_file():
        both = os.cpu_count() or 1
        cases += [("smol", both, ("sample", "generate")), ("smol", both, ("sft", "plain-sft"))]
        cases += [("smol", both, ("best-of", "generate-n"))]
    for model, threads, works in cases:
        found: dict[str, list[dict[str, Any]]] = {work: [] for work in works}
        for _ in range(repeats):
            for work in works:
                command = [sys.executable, "-m", "benchmarks.throughput", model, work, "--threads", str(threads)]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                found[work].append(json.loads(done.stdout.splitlines()[-1]))
        rates = {}
        for work, runs in found.items():
            rates[work] = statistics.median(r["tokens"] / r["wall"] for r in runs)
            per_cpu = statistics.median(r["tokens"] / r["cpu"] for r in runs)
            memory = statistics.median(r["memory_mb"] for r in runs)
            lines.append(
                f"| {model}, {threads} thread{'s' * (threads > 1)} | {NAMES[work]} "
                f"| {rates[work]:,.0f} | {per_cpu:,.0f} | {memory:,.0f} |"
            )
        ours, plain = works
        lines.append(f"| | *ours / plain* | *{rates[ours] / rates[plain]:.2f}* | | |")
    return lines


def main() -> None:
    import torch
    import transformers

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3, help="how often each throughput is measured")
    repeats = parser.parse_args().repeats
    text = PAGE.read_text(encoding="utf-8")
    machine = (
        f"Measured {time.strftime('%Y-%m-%d')} on {os.cpu_count()} CPU cores ({processor()}), {platform.system()}, "
        f"Python {platform.python_version()}, torch {torch.__version__}, transformers {transformers.__version__}; "
        f"load average before the start {os.getloadavg()[0]:.1f}; throughput is the median of {repeats}."
    )
    parts = [machine, ""]
    measurements: dict[str, Callable[[], list[str]]] = {
        "### Start": start_up,
        "### The whole experiment": whole_run,
        "### Throughput": partial(throughput, repeats),
        "### PPO": ppo,
        "### Judging": judging,
        "### Evaluation": lambda: [*boards(), "", *evaluators()],
    }
    for title, measure in measurements.items():
        sys.stderr.write(f"{title.removeprefix('### ')} …\n")
        parts += [title, "", *measure(), ""]
    before, after = text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END) :]
    PAGE.write_text(f"{before}\n\n" + "\n".join(parts).rstrip() + f"\n\n{after}", encoding="utf-8")
    sys.stdout.write("\n".join(parts) + f"\nWritten to {PAGE}.\n")


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


if __name__ == "__main__":
    main()
