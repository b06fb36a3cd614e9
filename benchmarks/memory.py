"""Peaks of memory beside the arithmetic of `afarm memory`: `python -m benchmarks.memory DIRECTORY [CASE …]`.

Prints the table of docs/guides/large-models.md, a row as soon as it is measured. Models are written to DIRECTORY, where
they are missing: SmolLM2 from `.cache/smollm2.gguf`, and a random Llama of 490M weights in bfloat16. Cases are lines of
the table by their beginning, such as "sft smol 2". Needs up to 10 GB of memory.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

CASES = [
    ("sft", "smol", "float32", 1, []),
    ("sft", "smol", "float32", 2, []),
    ("sft", "smol", "float32", 4, []),
    ("sft", "smol", "float32", 2, ["--checkpointing"]),
    ("sft", "llama", "bfloat16", 1, []),
    ("sft", "llama", "bfloat16", 2, []),
    ("sft", "llama", "bfloat16", 4, []),
    ("ppo", "smol", "bfloat16", 1, []),
    ("ppo", "smol", "bfloat16", 2, []),
    ("ppo", "smol", "bfloat16", 4, []),
    ("ppo", "smol", "float32", 1, ["--lora"]),
    ("sample", "smol", "float32", 1, ["--rows", "32"]),
    ("sample", "smol", "bfloat16", 1, ["--rows", "32"]),
]
"""Stage, model, precision, processes, and more arguments of `benchmarks.memory_of_stage`."""

SMOL = Path(".cache/smollm2.gguf")


def main(directory: Path, *wanted: str) -> None:
    models = {"smol": directory / "smol", "llama": directory / "llama"}
    if not all((path / "afarm.json").exists() for path in models.values()):
        make_models(models)
    print_line("stage, moment | model | precision | processes | measured, MB | by arithmetic, MB | difference")
    print_line("---|---|---|---:|---:|---:|---:")
    for stage, model, dtype, processes, more in CASES:
        name = f"{stage} {model} {processes} {dtype} {' '.join(more)}"
        if wanted and not name.startswith(wanted):
            continue
        found = measured([stage, "--model", str(models[model]), "--dtype", dtype, *more], processes)
        for moment, peak in found["measured"].items():
            counted = found["counted"][moment]["total"]
            what = f"{stage}{' ' + more[0].strip('-') if more and more[0] != '--rows' else ''}, {moment}"
            figures = f"{peak / 1e6:,.0f} | {counted / 1e6:,.0f} | {100 * (counted / peak - 1):+.0f} %"
            print_line(f"{what} | {model} | {dtype} | {processes} | {figures}")


def print_line(cells: str) -> None:
    sys.stdout.write(f"| {cells} |\n")
    sys.stdout.flush()


def measured(arguments: list[str], processes: int) -> Any:
    """The figures of a stage in so many gloo processes, which shard it if they are several."""
    command, environment = [sys.executable, "-m"], {**os.environ, "OMP_NUM_THREADS": "1"}
    if processes > 1:
        environment["ACCELERATE_USE_FSDP"] = "true"
        command += ["torch.distributed.run", "--nproc-per-node", str(processes), "--master-addr", "127.0.0.1"]
        command += ["--master-port", str(free_port()), "-m"]
    done = subprocess.run(
        [*command, "benchmarks.memory_of_stage", *arguments], env=environment, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    return port


def make_models(paths: dict[str, Path]) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from afarm.backend import Backend
    from afarm.core.config import BackendConfig

    policy = Backend(BackendConfig(device="cpu")).load_policy(SMOL)
    policy.save(paths["smol"])
    tokens = {name: getattr(policy.tokenizer, name) for name in ("pad_token_id", "eos_token_id", "bos_token_id")}
    config = LlamaConfig(
        hidden_size=1536, intermediate_size=4096, num_hidden_layers=16, num_attention_heads=16, num_key_value_heads=8,
        vocab_size=49152, max_position_embeddings=2048, tie_word_embeddings=True, dtype="bfloat16", **tokens,
    )  # fmt: skip
    torch.manual_seed(0)
    policy.model = LlamaForCausalLM(config).bfloat16()
    policy.save(paths["llama"])


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
