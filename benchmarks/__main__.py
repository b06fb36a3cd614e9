"""`make bench`: measure, and write docs/notes/benchmarks.md with the machine, section by section.

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
from pathlib import Path
from typing import Any

from benchmarks.boards import boards
from benchmarks.command_line import command_line
from benchmarks.evaluators import evaluators
from benchmarks.grpo import grpo
from benchmarks.judging import judging, rate_limits
from benchmarks.ppo import ppo
from benchmarks.throughput import SMOL
from benchmarks.view import view

PAGE = Path("docs/notes/benchmarks.md")
BEGIN, END = "<!-- measured -->", "<!-- /measured -->"
NAMES = {
    "sample": "afarm samples",
    "generate": "`transformers.generate`",
    "best-of": "afarm samples 64 of one prompt",
    "generate-n": "`generate(num_return_sequences=64)`",
    "sft": "afarm's SFT",
    "plain-sft": "plain training loop",
    "products": "the products alone",
    "sft-products": "the products alone, forward and backward",
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
        "import atexit, sys; "
        f"names = set({HEAVY!r}.split()); "
        "atexit.register(lambda: sys.stderr.write(' '.join(sorted(set(sys.modules) & names)) or 'none')); "
        "from afarm.cli import main; main(['--help'])"
    )
    loaded = subprocess.run([sys.executable, "-c", probe], check=True, capture_output=True, text=True).stderr.strip()
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
        f"Medians of {repeats}.",
        "",
        "| model | work | tokens/s | tokens per CPU second | memory above the model, MB |",
        "|---|---|---|---|---|",
    ]
    cases = [("toy", 1, ("sample", "generate")), ("toy", 1, ("sft", "plain-sft"))]
    if SMOL.is_file():
        both = os.cpu_count() or 1
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


def precisions(repeats: int) -> list[str]:
    """SmolLM2 in float32 and bfloat16 beside plain transformers and the products alone, one thread, in turn."""
    lines = ["| work | precision | side | tokens per CPU second | of plain | of float32 |", "|---|---|---|---|---|---|"]
    for works in (("sample", "generate", "products"), ("sft", "plain-sft", "sft-products")):
        rates: dict[tuple[str, str], list[float]] = {}
        for _ in range(repeats):
            for work in works:
                for dtype in ("float32", "bfloat16"):
                    command = [sys.executable, "-m", "benchmarks.throughput", "smol", work, "--dtype", dtype]
                    done = subprocess.run(command, check=True, capture_output=True, text=True)
                    measured = json.loads(done.stdout.splitlines()[-1])
                    rates.setdefault((work, dtype), []).append(measured["tokens"] / measured["cpu"])
        for dtype in ("float32", "bfloat16"):
            for work in works:
                rate, plain, whole = (
                    statistics.median(rates[key]) for key in ((work, dtype), (works[1], dtype), (work, "float32"))
                )
                lines.append(
                    f"| {works[0]} | {dtype} | {NAMES[work]} | {rate:,.0f} | {rate / plain:.2f} | {rate / whole:.2f} |"
                )
    return [f"SmolLM2-135M, one thread, medians of {repeats}, taken in turn.", "", *lines]


def main() -> None:
    import torch
    import transformers

    parser = argparse.ArgumentParser(description=__doc__)
    measurements: dict[str, Callable[[], list[str]]] = {
        "Start": start_up,
        "The command line": command_line,
        "The whole experiment": whole_run,
        "Throughput": lambda: throughput(repeats),
        "Precisions": lambda: precisions(repeats),
        "PPO": ppo,
        "GRPO": grpo,
        "Judging": judging,
        "Rate limits": rate_limits,
        "The view": view,
        "Evaluation": lambda: [*boards(), "", *evaluators()],
    }
    parser.add_argument("--repeats", type=int, default=3, help="how often each throughput is measured")
    parser.add_argument("--only", nargs="+", choices=measurements, metavar="TITLE", help="those sections alone")
    given = parser.parse_args()
    repeats = given.repeats
    for title in given.only or measurements:
        sys.stderr.write(f"{title} …\n")
        machine = (
            f"Measured {time.strftime('%Y-%m-%d')} on {os.cpu_count()} CPU cores ({processor()}), {platform.system()}, "
            f"Python {platform.python_version()}, torch {torch.__version__}, transformers {transformers.__version__}; "
            f"load average before the start {os.getloadavg()[0]:.1f}."
        )
        write_section(title, [machine, "", *measurements[title]()])


def write_section(title: str, lines: list[str]) -> None:
    """Put what was measured in its place on the page, and on the screen; the other sections stay as they are."""
    text = PAGE.read_text(encoding="utf-8")
    start, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    parts = [part.partition("\n") for part in text[start:end].split("\n## ")[1:]]
    sections = {heading: body.strip() for heading, _, body in parts} | {title: "\n".join(lines).strip()}
    measured = "\n\n".join(f"## {heading}\n\n{body}" for heading, body in sections.items())
    PAGE.write_text(f"{text[:start]}\n\n{measured}\n\n{text[end:]}", encoding="utf-8")
    sys.stdout.write(f"## {title}\n\n" + "\n".join(lines) + "\n\n")


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


if __name__ == "__main__":
    main()
