"""GRPO beside TRL's GRPOTrainer on the same work: `python -m benchmarks.grpo`, with `--device cuda` on a GPU.

Each side runs in a process of its own, in turn, on one core or one GPU: a random Llama, `--group` responses to each
prompt, one optimiser step per rollout, a KL to the start, a reward that costs nothing. Both learn from the rollouts of
TRL's first steps, so that their losses can be set side by side; in the steps after these, which are measured, each
samples its own.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

from afarm.backend import Backend
from afarm.core.config import BackendConfig
from benchmarks.ppo_step import load
from benchmarks.sides import Meter, arguments, parse, run_side, take_cores

BETA, RATE, SHARED = 0.04, 1e-4, 3
"""Weight of the KL, learning rate, and the steps in which both sides learn from the same rollouts."""

ROWS = {"micro-batch 32": ["--micro", "32"], "micro-batch 8": ["--micro", "8"]}


def grpo(given: Sequence[str] = ()) -> list[str]:
    """Tables in Markdown: rollouts a second and memory, as ratios, and losses on the same rollouts.

    Args:
        given: settings of both sides. With `--micro` there is one row.
    """
    a = parse(options(), given)
    rows = {f"micro-batch {a.micro}": []} if "--micro" in given else ROWS
    unit = "second" if "cuda" in given else "CPU second"
    rates = [f"| work | side | rollouts per {unit} | peak memory, MB | above the models, MB |", "|---" * 5 + "|"]
    losses = ["| the same rollouts | side | loss | KL, nats a token | norm of the gradient |", "|---" * 5 + "|"]
    with tempfile.TemporaryDirectory() as name:
        a.models = Path(name)
        load(a, Backend(BackendConfig(device="cpu")))
        for title, row in rows.items():
            both = ["--models", name, "--rollouts", str(Path(name) / "rollouts.pt"), *row, *given]
            command = [sys.executable, "-m", "benchmarks.grpo", *both, "--side"]
            found = {side: run_side([*command, side]) for side in ("TRL", "afarm")}
            figures = {s: (f["rollouts"], f["peak_mb"], f["peak_mb"] - f["before_mb"]) for s, f in found.items()}
            for side, (rate, highest, above) in reversed(figures.items()):
                rates.append(f"| {title} | {side} | {rate:.2f} | {highest:,.0f} | {above:,.0f} |")
            ratios = [f"*{mine / other:.2f}*" for mine, other in zip(figures["afarm"], figures["TRL"], strict=True)]
            rates.append(f"| | *afarm / TRL* | {' | '.join(ratios)} |")
            for step in range(SHARED):
                for side in ("afarm", "TRL"):
                    m = found[side]["metrics"][step]
                    cells = f"{m['loss']:.7f} | {m['kl']:.3g} | {m['grad_norm']:.5f}"
                    losses.append(f"| {title}, step {step + 1} | {side} | {cells} |")
    return [*rates, "", *losses]


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

    backend = Backend(BackendConfig(device=a.device, threads=a.threads, mixed_precision="bf16" if a.bf16 else "no"))
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

    recorded, sample = torch.load(a.rollouts), grpo.rollout

    def rollout(training: Training, step: int) -> tuple[list[int], list[Sample]]:
        if step >= SHARED:
            return sample(training, step)
        rows = [Sample(t, tuple(p), tuple(r), None, "length") for p, r, t in zip(*recorded[step], strict=True)]
        return [0] * len(rows), rows

    grpo.rollout = rollout  # type: ignore[assignment]
    directory = Path(tempfile.mkdtemp())
    context = TrainContext(0, directory, backend, DirectoryCheckpoints(directory), log)
    instructions = [Instruction(" ".join(f"t{i}" for i in row)) for row in prompts]
    start = grpo.start_training

    def start_and_tick(*given: Any) -> Training:
        training = start(*given)
        meter.tick()
        return training

    grpo.start_training = start_and_tick  # type: ignore[assignment]
    with backend.autocast(), suppress(Enough):
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
            adam_epsilon=1e-5, max_grad_norm=1e9, gradient_checkpointing=False, bf16=a.bf16, logging_steps=1,
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
    torch.save(recorded[:SHARED], a.rollouts)


def options() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = arguments(argparse.ArgumentParser(description=__doc__, formatter_class=raw))
    parser.add_argument("--group", type=int, default=8, help="responses per prompt")
    parser.add_argument("--side", choices=["afarm", "TRL"], help="measure one side in this process (default: both)")
    parser.add_argument("--rollouts", type=Path, help="where TRL's rollouts are kept for afarm, with --side")
    parser.set_defaults(batch=32, resp_len=32, steps=SHARED + 3)
    return parser


def main() -> None:
    a = parse(options())
    if a.side is None:
        sys.stdout.write("\n".join(grpo(sys.argv[1:])) + "\n")
        return
    take_cores(a)
    meter = Meter(a.device, warm_up=SHARED)
    sides: dict[str, Callable[[], None]] = {"afarm": partial(run_ours, a, meter), "TRL": partial(run_theirs, a, meter)}
    sides[a.side]()
    sys.stdout.write(json.dumps(meter.figures(a.batch)) + "\n")


if __name__ == "__main__":
    main()
