"""PPO beside TRL 1.12 on the same work: `python -m benchmarks.ppo`, with `--device cuda` on a GPU.

How far each row is from the CPU's matrix rate, whether both learn the same from the same rollouts, how a step grows.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.sides import arguments, parse, run_side

PEER = os.environ.get("AFARM_BENCH_TRL", "")
"""What starts the Python of an environment with trl 1.12.0 (see `benchmarks.ppo_peer`); without it only our rows are
measured."""

Rows = Mapping[str, tuple[Sequence[str], Sequence[str] | None]]

ROWS: Rows = {
    "separate critic, micro-batch 32": (["--micro", "32"], ["--micro", "32"]),
    "separate critic, micro-batch 8": (["--micro", "8"], ["--micro", "8"]),
    "separate critic, bf16": (["--bf16"], ["--bf16"]),
    "shared backbone, LoRA": (["--lora", "--layout", "shared"], ["--lora"]),
    "shared backbone, LoRA, bf16": (["--lora", "--layout", "shared", "--bf16"], None),
    "shared backbone, LoRA, a second adapter for values": (
        ["--lora", "--layout", "shared", "--shared-value", "adapter"],
        None,
    ),
}
"""Our arguments, and the peer's where there is such a row."""

CURVE: dict[str, list[int]] = {"resp-len": [32, 64, 128], "batch": [8, 16, 32], "vocab": [12288, 24576, 49152]}


def ppo(given: Sequence[str] = ()) -> list[str]:
    """Tables in Markdown. Ours and the peer's run in turn, two iterations of which the second counts.

    Args:
        given: settings of `benchmarks.sides` for both sides, such as `--device cuda`. With any, growth is left out;
            with `--micro` there is one row.
    """
    rows: Rows = {"separate critic": ([], [])} if "--micro" in given else ROWS
    with tempfile.TemporaryDirectory() as name:
        models = write_models(Path(name), given)
        lines = beside_the_peer(rows, models, given)
        return [*lines, "", *agreement(models, given), *([] if given else ["", *growth()])]


def write_models(directory: Path, given: Sequence[str]) -> Path:
    """Have weights and prompts that both sides load."""
    from afarm.backend import Backend
    from afarm.core.config import BackendConfig
    from benchmarks.ppo_step import load

    a = parse(arguments(argparse.ArgumentParser()), [*given, "--models", str(directory)])
    load(a, Backend(BackendConfig(device="cpu")))
    return directory


def beside_the_peer(rows: Rows, models: Path, given: Sequence[str]) -> list[str]:
    rate_of = "second" if "cuda" in given else "CPU second"
    lines = [
        f"| work | side | rollouts per {rate_of} | peak memory, MB | above the models, MB | of the matrix rate |",
        "|---|---|---|---|---|---|",
    ]
    for title, (own, other) in rows.items():
        found = ours("--steps", "2", *own, *given)
        lines.append(row(title, "afarm", found))
        if other is None or not PEER:
            continue
        peer = theirs(models, "--steps", "2", *other, *given)
        lines.append(row("", "TRL 1.12", peer))
        rate, peak, above = (measure(found) / measure(peer) for measure in (rollouts, peak_memory, above_models))
        lines.append(f"| | *afarm / TRL* | *{rate:.2f}* | *{peak:.2f}* | *{above:.2f}* | |")
    return lines


def row(title: str, side: str, found: dict[str, Any]) -> str:
    share = ""
    if "gflop" in found:
        share = f"{found['gflop'] / found['seconds'] / found['gflop_per_s']:.0%} of {found['gflop_per_s']:.0f} GFLOP/s"
    figures = f"{rollouts(found):.2f} | {peak_memory(found):,.0f} | {above_models(found):,.0f}"
    return f"| {title} | {side} | {figures} | {share} |"


def rollouts(found: dict[str, Any]) -> float:
    return float(found["rollouts"])


def peak_memory(found: dict[str, Any]) -> float:
    return float(found["peak_mb"])


def above_models(found: dict[str, Any]) -> float:
    return float(found["peak_mb"] - found["before_mb"])


def agreement(models: Path, given: Sequence[str]) -> list[str]:
    """Metrics of the first two iterations of both sides on the same weights and the same rollouts, in float32.

    The KL of a step is less than what bfloat16 rounds.
    """
    if not PEER:
        return ["(No peer: set `AFARM_BENCH_TRL`.)"]
    record, given = models / "rollouts.pt", [word for word in given if word != "--bf16"]
    peer = theirs(models, "--steps", "2", "--record", str(record), *given)["metrics"]
    own = ours("--steps", "2", "--replay", str(record), *given)["metrics"]
    names = ["objective/kl", "objective/scores", "loss/policy_avg", "loss/value_avg", "policy/approxkl_avg"]
    lines = ["| the same rollouts | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for step in range(2):
        for side, metrics in (("afarm", own), ("TRL", peer)):
            figures = " | ".join(f"{metrics[step][name]:.3g}" for name in names)
            lines.append(f"| iteration {step + 1}, {side} | {figures} |")
    return lines


def growth() -> list[str]:
    """CPU seconds and memory of one step of one epoch against what it should grow with: linearly at most."""
    lines = [
        "| one step, one epoch, micro-batch = batch | "
        + " | ".join(["first", "twice", "four times"])
        + " | exponent of time | exponent of memory |",
        "|---|---|---|---|---|---|",
    ]
    for name, sizes in CURVE.items():
        fixed = [] if name == "batch" else ["--batch", "8"]
        found = []
        for size in sizes:
            micro = ["--micro", str(size if name == "batch" else 8)]
            found.append(ours("--steps", "2", "--epochs", "1", *fixed, *micro, f"--{name}", str(size)))
        cells = [
            f"{size:,}: {f['seconds']:.2f} s, {above_models(f):,.0f} MB" for size, f in zip(sizes, found, strict=True)
        ]
        time, memory = (exponent(measure(found[0]), measure(found[-1]), sizes) for measure in (seconds, above_models))
        lines.append(f"| {name} | {' | '.join(cells)} | {time:.2f} | {memory:.2f} |")
    return lines


def exponent(first: float, last: float, sizes: list[int]) -> float:
    """p where a measure grows as size^p."""
    from math import log

    return log(last / first) / log(sizes[-1] / sizes[0])


def seconds(found: dict[str, Any]) -> float:
    return float(found["seconds"])


def ours(*given: str) -> dict[str, Any]:
    return run_side([sys.executable, "-m", "benchmarks.ppo_step", *given])


def theirs(models: Path, *given: str) -> dict[str, Any]:
    return run_side([*shlex.split(PEER), "-m", "benchmarks.ppo_peer", "--models", str(models), *given])


if __name__ == "__main__":
    sys.stdout.write("\n".join(ppo(sys.argv[1:])) + "\n")
