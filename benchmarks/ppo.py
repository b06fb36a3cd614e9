"""PPO beside TRL 1.12 on the same work, how far each row is from the machine's matrix rate, and how a step grows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

PEER = os.environ.get("AFARM_BENCH_TRL", "")
"""The Python of an environment with trl 1.12.0 (see `benchmarks.ppo_peer`); without it only our rows are measured."""

ROWS: dict[str, tuple[list[str], list[str] | None]] = {
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


def ppo(rows: dict[str, tuple[list[str], list[str] | None]] = ROWS) -> list[str]:
    """Tables in Markdown. Ours and the peer's run in turn, one core each, two iterations of which the second counts."""
    with tempfile.TemporaryDirectory() as name:
        models = Path(name)
        ours("--models", str(models), "--steps", "0")
        return [*beside_the_peer(rows, models), "", *agreement(models), "", *growth()]


def beside_the_peer(rows: dict[str, tuple[list[str], list[str] | None]], models: Path) -> list[str]:
    lines = [
        "| work | side | rollouts per CPU second | peak memory, MB | above the models, MB | of the matrix rate |",
        "|---|---|---|---|---|---|",
    ]
    for title, (own, other) in rows.items():
        found = ours("--steps", "2", *own)
        lines.append(row(title, "afarm", found))
        if other is None or not PEER:
            continue
        peer = theirs(models, "--steps", "2", *other)
        lines.append(row("", "TRL 1.12", peer))
        rate, peak, above = (measure(found) / measure(peer) for measure in (rollouts, peak_memory, above_models))
        lines.append(f"| | *afarm / TRL* | *{rate:.2f}* | *{peak:.2f}* | *{above:.2f}* | |")
    return lines


def row(title: str, side: str, found: dict[str, Any]) -> str:
    share = ""
    if "gflop" in found:
        share = (
            f"{found['gflop'] / found['cpu_s'][-1] / found['gflop_per_s']:.0%} of {found['gflop_per_s']:.0f} GFLOP/s"
        )
    figures = f"{rollouts(found):.2f} | {peak_memory(found):,.0f} | {above_models(found):,.0f}"
    return f"| {title} | {side} | {figures} | {share} |"


def rollouts(found: dict[str, Any]) -> float:
    return 32 / float(found["cpu_s"][-1])


def peak_memory(found: dict[str, Any]) -> float:
    return float(found["peak_mb"])


def above_models(found: dict[str, Any]) -> float:
    return float(found["peak_mb"] - found["before_mb"])


def agreement(models: Path) -> list[str]:
    """Metrics of the first two iterations of both sides on the same weights and the same rollouts."""
    if not PEER:
        return ["(No peer: set `AFARM_BENCH_TRL`.)"]
    record = models / "rollouts.pt"
    peer = theirs(models, "--steps", "2", "--record", str(record))["metrics"]
    own = ours("--steps", "2", "--replay", str(record))["metrics"]
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
            f"{size:,}: {f['cpu_s'][-1]:.2f} s, {above_models(f):,.0f} MB" for size, f in zip(sizes, found, strict=True)
        ]
        time, memory = (exponent(measure(found[0]), measure(found[-1]), sizes) for measure in (seconds, above_models))
        lines.append(f"| {name} | {' | '.join(cells)} | {time:.2f} | {memory:.2f} |")
    return lines


def exponent(first: float, last: float, sizes: list[int]) -> float:
    """p where a measure grows as size^p."""
    from math import log

    return log(last / first) / log(sizes[-1] / sizes[0])


def seconds(found: dict[str, Any]) -> float:
    return float(found["cpu_s"][-1])


def ours(*arguments: str) -> dict[str, Any]:
    return measured([sys.executable, "-m", "benchmarks.ppo_step", *arguments])


def theirs(models: Path, *arguments: str) -> dict[str, Any]:
    return measured([PEER, "benchmarks/ppo_peer.py", "--models", str(models), *arguments])


def measured(command: list[str]) -> dict[str, Any]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    sys.stdout.write("\n".join(ppo()) + "\n")
