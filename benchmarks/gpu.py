"""What waits for a GPU, in one go of under five minutes: `python -m benchmarks.gpu`.

The tests of the GPU, GRPO and PPO beside TRL, and sampling beside transformers, on a model of SmolLM2-135M's shape: its
weights are random, which time and memory do not depend on. Writes gpu.md and gpu.json under `--out`. Without a GPU the
same parts run with a tiny model on the CPU, to see that they work.

On a machine that has torch and transformers but no network: `make gpu-wheels` elsewhere, carry the folder `.wheels`
there, and add `--wheels .wheels`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

GPU = ["--device", "cuda", "--shape", "smollm2", "--batch", "64", "--micro", "64", "--resp-len", "64", "--threads", "8"]
CPU = ["--shape", "tiny", "--batch", "8", "--micro", "8", "--prompt-len", "8", "--resp-len", "8"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--wheels", type=Path, help="folder that `make gpu-wheels` filled; installed from, for this run"
    )
    parser.add_argument("--out", type=Path, default=Path("build/gpu"))
    parser.add_argument("--limit", type=float, default=285, help="seconds for all of it")
    parser.add_argument("--sampling", action="store_true", help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.sampling:
        sys.stdout.write("\n".join(sampling()) + "\n")
        return
    begin, cuda = time.monotonic(), torch.cuda.is_available()
    environment = {**os.environ, **(install(a.wheels) if a.wheels else {})}
    sizes = GPU if cuda else CPU
    parts = {  # the most important first: what finds no time left is named
        "GRPO beside TRL 1.16, bfloat16": ["benchmarks.grpo", *sizes, "--bf16"],
        "PPO beside TRL 1.12, bfloat16": ["benchmarks.ppo", *sizes, "--bf16"],
        "Sampling": ["benchmarks.gpu", "--sampling"],
        "tests/gpu": ["pytest", "-q", "-p", "no:cacheprovider", "tests/gpu"],
        "GRPO beside TRL 1.16, float32": ["benchmarks.grpo", *sizes],
    }
    device = torch.cuda.get_device_name() if cuda else f"no GPU, {platform.processor() or platform.machine()}"
    machine = f"{device}, Python {platform.python_version()}, torch {torch.__version__}"
    found: dict[str, Any] = {"machine": machine, "parts": {}}
    a.out.mkdir(parents=True, exist_ok=True)
    for title, command in parts.items():
        started = time.monotonic()
        text, code = run(command, environment, a.limit - (started - begin))
        found["parts"][title] = {"code": code, "seconds": round(time.monotonic() - started, 1), "text": text}
        sections = [f"## {name} ({part['seconds']} s)\n\n{part['text']}\n" for name, part in found["parts"].items()]
        (a.out / "gpu.md").write_text(f"{machine}\n\n" + "\n".join(sections), "utf-8")
        (a.out / "gpu.json").write_text(json.dumps(found, indent=1), "utf-8")
        sys.stdout.write(sections[-1] + "\n")
        sys.stdout.flush()
    failed = [title for title, part in found["parts"].items() if part["code"]]
    if failed:
        raise SystemExit(f"Not finished: {', '.join(failed)}. The rest is in {a.out / 'gpu.md'}")


def run(command: list[str], environment: dict[str, str], seconds: float) -> tuple[str, int]:
    """Return what a module prints, with the end of its errors if it fails, and its exit status."""
    if seconds < 1:
        return "No time was left.", 1
    pipe, module = subprocess.PIPE, [sys.executable, "-m", *command]
    child = subprocess.Popen(module, stdout=pipe, stderr=pipe, text=True, env=environment, start_new_session=True)
    try:
        printed, errors = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)  # with the sides that it measures: they would take the next part's time
        child.wait()
        return f"No time was left: it was ended after {seconds:.0f} s.", 1
    return printed.strip() + (f"\n\n{errors[-2000:]}" if child.returncode else ""), child.returncode


def install(wheels: Path) -> dict[str, str]:
    """Install wheels, afarm and afarm-grpo into a folder of their own. Returns the environment that finds them."""
    folder = Path(tempfile.mkdtemp())
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-build-isolation", "--target"]
    here = [str(wheel) for wheel in wheels.glob("*.whl")]
    peers = [str(wheel) for wheel in (wheels / "peer").glob("*.whl")]
    subprocess.run([*pip, str(folder / "here"), *here, ".", "./plugins-contrib/afarm-grpo"], check=True)
    subprocess.run([*pip, str(folder / "peer"), *peers], check=True)
    paths = f"{folder / 'peer'}:{folder / 'here'}"
    return {"PYTHONPATH": str(folder / "here"), "AFARM_BENCH_TRL": f"env PYTHONPATH={paths} {sys.executable}"}


# ----------------------------------------------------------------------------------------------------------- sampling


def sampling() -> list[str]:
    """A table of tokens per second and memory: afarm's sampler beside transformers' `generate`, on the same prompts."""
    lines = ["| precision | side | tokens per second | memory above the model, MB |", "|---" * 4 + "|"]
    for dtype in (torch.float32, torch.bfloat16):
        figures = measure_sampling(dtype)
        for side, (rate, memory) in figures.items():
            lines.append(f"| {str(dtype).removeprefix('torch.')} | {side} | {rate:,.0f} | {memory} |")
        lines.append(f"| | *ratio* | *{figures['afarm'][0] / figures['transformers'][0]:.2f}* | |")
    return lines


def measure_sampling(dtype: torch.dtype) -> dict[str, tuple[float, str]]:
    """Tokens per second of both sides, the second time, and on a GPU megabytes above the model."""
    from afarm import Decoding, Instruction
    from afarm.backend import Backend
    from afarm.core.config import BackendConfig
    from benchmarks.ppo_step import load
    from benchmarks.sides import arguments, held, parse, peak

    a = parse(arguments(argparse.ArgumentParser()), [*GPU, "--batch", "256"] if torch.cuda.is_available() else CPU)
    policy, _, prompts = load(a, Backend(BackendConfig(device=a.device)))
    policy.model.to(dtype)
    instructions = [Instruction(" ".join(f"t{i}" for i in row)) for row in prompts]
    decoding = Decoding(temperature=1.0, max_new_tokens=a.resp_len, per_device_batch_size=a.batch)
    ids = torch.tensor(prompts, device=policy.backend.device)
    drawn = {"do_sample": True, "top_k": 0, "max_new_tokens": a.resp_len, "min_new_tokens": a.resp_len}

    def ours() -> int:
        return sum(len(sample.token_ids) for sample in policy.sample(instructions, decoding, seed=0))

    def theirs() -> int:
        with torch.inference_mode():
            made = policy.model.generate(ids, attention_mask=torch.ones_like(ids), **drawn)
            return int(made[:, a.prompt_len :].numel())

    found = {}
    for side, work in {"afarm": ours, "transformers": theirs}.items():
        work()
        before, begin = held(a.device), time.perf_counter()
        tokens = work()  # whose tokens are on the host at the end: there is nothing to wait for
        seconds = time.perf_counter() - begin
        found[side] = (tokens / seconds, f"{peak(a.device) - before:,.0f}" if a.device == "cuda" else "")
    return found


if __name__ == "__main__":
    main()
