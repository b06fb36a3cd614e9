"""GRPO beside TRL's GRPOTrainer on the same work: `python -m benchmarks.grpo`, with `--device cuda` on a GPU.

Each side runs in a process of its own, in turn, on one core or one GPU: a random Llama, `--group` responses to each
prompt, one optimiser step per rollout, a KL to the start, a reward that costs nothing. First both learn from the
rollouts that TRL sampled, and their losses are set side by side; then each samples its own, and of the steps the first
is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from afarm.backend import Backend
from afarm.core.config import BackendConfig
from benchmarks.ppo_step import arguments, load, peak, resident

BETA, RATE = 0.04, 3e-6


def grpo(given: Sequence[str] = ()) -> list[str]:
    """Tables in Markdown: losses on the same rollouts, then rollouts a second and memory, as ratios."""
    with tempfile.TemporaryDirectory() as name:
        load(options().parse_args([*given, "--models", name]), Backend(BackendConfig(device="cpu")))
        record = str(Path(name) / "rollouts.pt")
        both = ["--models", name, *given]
        theirs = measure("trl", *both, "--steps", "3", "--record", record)
        ours = measure("afarm", *both, "--steps", "3", "--replay", record)
        lines = [
            "| the same rollouts | step | loss | KL, nats a token | norm of the gradient |",
            "|---|---|---|---|---|",
        ]
        for step, rows in enumerate(zip(ours["metrics"], theirs["metrics"], strict=True), start=1):
            for side, row in zip(("afarm", "TRL 1.16"), rows, strict=True):
                lines.append(f"| {side} | {step} | {row['loss']:.6f} | {row['kl']:.3g} | {row['grad_norm']:.6f} |")
        found = {side: measure(side, *both) for side in ("trl", "afarm")}
    unit = "second" if "cuda" in given else "CPU second"
    lines += ["", f"| side | rollouts per {unit} | peak memory, MB | above the models, MB |", "|---|---|---|---|"]
    figures = {side: (f["rollouts"], f["peak_mb"], f["peak_mb"] - f["before_mb"]) for side, f in found.items()}
    for side, title in (("afarm", "afarm"), ("trl", "TRL 1.16")):
        rate, highest, above = figures[side]
        lines.append(f"| {title} | {rate:.2f} | {highest:,.0f} | {above:,.0f} |")
    ratios = [f"*{mine / other:.2f}*" for mine, other in zip(figures["afarm"], figures["trl"], strict=True)]
    return [*lines, f"| *afarm / TRL* | {' | '.join(ratios)} |"]


def measure(side: str, *given: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.grpo", "--side", side, *given]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


class Meter:
    """Seconds and memory of steps: of this process's CPU, or of the wall and the GPU."""

    def __init__(self, cuda: bool):
        self.cuda, self.times, self.before, self.metrics = cuda, list[float](), 0.0, list[dict[str, float]]()

    def tick(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()
        if not self.times:
            self.before = torch.cuda.memory_allocated() / 2**20 if self.cuda else resident()
        self.times.append(time.perf_counter() if self.cuda else time.process_time())

    def figures(self, responses: int) -> dict[str, Any]:
        steps = [after - before for before, after in pairwise(self.times)][1:]
        highest = torch.cuda.max_memory_allocated() / 2**20 if self.cuda else peak()
        return {
            "rollouts": responses / statistics.median(steps),
            "before_mb": self.before,
            "peak_mb": highest,
            "metrics": self.metrics,
        }


def pay(texts: Sequence[str]) -> list[float]:
    """The share of a response's words that are even numbers."""
    words = [text.split() or ["t1"] for text in texts]
    return [sum(word[-1] in "02468" for word in row) / len(row) for row in words]


# ---------------------------------------------------------------------------------------------------------------- afarm


class Enough(Exception):
    """Ends training after the steps that are measured."""


def run_ours(a: argparse.Namespace, meter: Meter) -> None:
    from afarm_grpo import GRPOConfig, grpo

    from afarm import Instruction, MethodInputs, RewardModel, Sample, Score, TrainContext
    from afarm.backend import Training
    from afarm.storage.checkpoints import DirectoryCheckpoints

    class Paid(RewardModel):
        def score(self, instructions: Sequence[Instruction], outputs: Sequence[str]) -> list[Score]:
            return [Score(value) for value in pay(outputs)]

    backend = Backend(BackendConfig(device=a.device, threads=a.threads))
    policy, _, prompts = load(a, backend)
    config = GRPOConfig.model_validate({
        "total_steps": 1000, "warmup_steps": 0, "rollout_batch_size": a.batch, "mini_batch_size": a.batch,
        "num_generations": a.group, "per_device_train_batch_size": a.micro, "per_device_rollout_batch_size": a.batch,
        "learning_rate": RATE, "max_grad_norm": 1e9, "kl_coef": BETA, "max_prompt_length": a.prompt_len,
        "response_length": a.resp_len,
    })  # fmt: skip

    def log(step: int, metrics: Mapping[str, float]) -> None:
        meter.tick()
        loss = metrics["loss/policy_avg"] + BETA * metrics["loss/kl_avg"]
        kept = {"loss": loss, "kl": metrics["loss/kl_avg"], "grad_norm": metrics["policy/grad_norm"]}
        meter.metrics.append(kept)
        if step == a.steps:
            raise Enough

    if a.replay:
        recorded = torch.load(a.replay)

        def replay(training: Training, step: int) -> tuple[list[int], list[Sample]]:
            rows = [Sample(t, tuple(p), tuple(r), None, "length") for p, r, t in zip(*recorded[step], strict=True)]
            return [0] * len(rows), rows

        grpo.rollout = replay  # type: ignore[assignment]
    directory = Path(tempfile.mkdtemp())
    context = TrainContext(0, directory, backend, DirectoryCheckpoints(directory), log)
    instructions = [Instruction(" ".join(f"t{i}" for i in row)) for row in prompts]
    start = grpo.start_training

    def start_and_tick(*given: Any) -> Training:
        training = start(*given)
        meter.tick()
        return training

    grpo.start_training = start_and_tick  # type: ignore[assignment]
    with suppress(Enough):
        grpo.train_grpo(config, MethodInputs(policy, reward_model=Paid(), unlabeled=instructions), context)


# ------------------------------------------------------------------------------------------------------------------ TRL


def run_theirs(a: argparse.Namespace, meter: Meter) -> None:
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    class Clock(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            meter.tick()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            meter.tick()

        def on_log(self, _args: Any, _state: Any, _control: Any, logs: dict[str, float], **_: Any) -> None:
            if "grad_norm" in logs:
                meter.metrics.append({name: float(logs[name]) for name in ("loss", "kl", "grad_norm")})

    policy = a.models / "policy"
    prompts = json.loads((a.models / "prompts.json").read_text())[: a.batch // a.group]
    rows = [{"prompt": " ".join(f"t{i}" for i in row)} for row in prompts]
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(policy, dtype="float32"),
        processing_class=AutoTokenizer.from_pretrained(policy),
        reward_funcs=lambda completions, **_: pay(completions),
        train_dataset=Dataset.from_list(rows * a.steps),
        callbacks=[Clock()],
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(), per_device_train_batch_size=a.micro, max_steps=a.steps,
            gradient_accumulation_steps=a.batch // a.micro, num_generations=a.group, loss_type="grpo", beta=BETA,
            max_completion_length=a.resp_len, temperature=1.0, learning_rate=RATE, lr_scheduler_type="constant",
            adam_epsilon=1e-5, max_grad_norm=1e9, gradient_checkpointing=False, bf16=False, logging_steps=1,
            report_to="none", save_strategy="no", disable_tqdm=True, use_cpu=a.device == "cpu", shuffle_dataset=False,
            seed=0,
        ),
    )  # fmt: skip
    generate, recorded = trainer._generate, list[Any]()

    def generate_and_keep(*given: Any) -> Any:
        found = generate(*given)
        recorded.append((found[0], found[1], found[3]))
        return found

    trainer._generate = generate_and_keep
    trainer.train()
    if a.record:
        torch.save(recorded, a.record)


def options() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = arguments(argparse.ArgumentParser(description=__doc__, formatter_class=raw))
    parser.add_argument("--group", type=int, default=8, help="responses per prompt")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--side", choices=["afarm", "trl"], help="measure one side in this process (default: both)")
    parser.add_argument("--record", type=Path, help="where TRL's rollouts are kept")
    parser.add_argument("--replay", type=Path, help="rollouts of the other side to learn from")
    parser.set_defaults(batch=32, resp_len=32)
    return parser


def main() -> None:
    a = options().parse_args()
    if a.side is None:
        sys.stdout.write("\n".join(grpo(sys.argv[1:])) + "\n")
        return
    torch.set_num_threads(a.threads)
    if hasattr(os, "sched_setaffinity") and a.device == "cpu":  # both sides have as many cores
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-a.threads :])
    meter = Meter(a.device == "cuda")
    sides: dict[str, Callable[[], None]] = {"afarm": partial(run_ours, a, meter), "trl": partial(run_theirs, a, meter)}
    sides[a.side]()
    sys.stdout.write(json.dumps(meter.figures(a.batch)) + "\n")


if __name__ == "__main__":
    main()
