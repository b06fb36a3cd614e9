"""Peaks of memory beside the arithmetic of `afarm memory`: `python -m benchmarks.memory DIRECTORY [CASE …]`.

Prints the table of docs/notes/memory.md, a row as soon as it is measured. Models are written to DIRECTORY, where
they are missing: SmolLM2 from `.cache/smollm2.gguf`, and random Llamas of 490M weights in bfloat16 and of 95M. Cases
are lines of the table by their beginning, such as "sft smol 2". Needs up to 10 GB of memory.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

LONG = "--rows 8 --tokens 256"

CASES = [
    ("sft", "smol", "float32", 1, ""),
    ("sft", "smol", "float32", 2, ""),
    ("sft", "smol", "float32", 4, ""),
    ("sft", "small", "float32", 1, f"--lora --checkpointing {LONG}"),
    ("sft", "small", "float32", 2, f"--checkpointing {LONG}"),
    ("sft", "smol", "bfloat16", 1, "--lora"),
    ("sft", "llama", "bfloat16", 1, ""),
    ("sft", "llama", "bfloat16", 2, ""),
    ("sft", "llama", "bfloat16", 4, ""),
    ("fit-reward", "smol", "float32", 1, ""),
    ("fit-reward", "small", "float32", 2, ""),
    ("fit-reward", "smol", "bfloat16", 1, "--lora"),
    ("dpo", "smol", "float32", 1, ""),
    ("dpo", "small", "float32", 2, ""),
    ("dpo", "smol", "bfloat16", 1, "--lora"),
    ("ppo", "smol", "bfloat16", 1, ""),
    ("ppo", "smol", "bfloat16", 2, ""),
    ("ppo", "smol", "bfloat16", 4, ""),
    ("ppo", "smol", "float32", 1, "--lora"),
    ("quark", "smol", "float32", 1, ""),
    ("quark", "small", "float32", 2, ""),
    ("quark", "smol", "bfloat16", 1, "--lora"),
    ("sample", "smol", "float32", 1, "--rows 32"),
    ("sample", "smol", "bfloat16", 1, "--rows 32"),
    ("best-of-n", "smol", "float32", 1, "--rows 32"),
    ("best-of-n", "smol", "bfloat16", 1, "--rows 32"),
]
"""Stage, model, precision, processes, and more arguments of `benchmarks.memory_of_stage`."""

LLAMAS: dict[str, dict[str, Any]] = {
    "llama": {
        "hidden_size": 1536, "intermediate_size": 4096, "num_hidden_layers": 16, "num_attention_heads": 16,
        "num_key_value_heads": 8, "dtype": "bfloat16",
    },
    "small": {
        "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 8, "num_attention_heads": 12,
        "num_key_value_heads": 4, "dtype": "float32",
    },
}  # fmt: skip
"""Random models. Few wide layers are few operations, and a profile of them takes little memory of its own."""

WORDS = {"--lora": "with adapters", "--checkpointing": "with checkpointing", "--rows": "rows", "--tokens": "tokens"}

SMOL = Path(".cache/smollm2.gguf")


def main(directory: Path, *wanted: str) -> None:
    models = {name: directory / name for name in ("smol", *LLAMAS)}
    cases = [case for case in CASES if not wanted or name_of(*case).startswith(wanted)]
    make_models({name: models[name] for name in {case[1] for case in cases} if not models[name].exists()})
    print_line("stage, moment | model | precision | processes | measured, MB | by arithmetic, MB | difference")
    print_line("---|---|---|---:|---:|---:|---:")
    for stage, model, dtype, processes, more in cases:
        found = measured([stage, "--model", str(models[model]), "--dtype", dtype, *more.split()], processes)
        what = " ".join([stage, *(WORDS.get(word, word) for word in more.split())])
        for moment, peak in found["measured"].items():
            counted = found["counted"].get(moment, {"total": 0})["total"]
            figures = f"{peak / 1e6:,.0f} | {counted / 1e6:,.0f} | {100 * (counted / peak - 1):+.1f} %"
            print_line(f"{what}, {moment} | {model} | {dtype} | {processes} | {figures}")


def name_of(stage: str, model: str, dtype: str, processes: int, more: str) -> str:
    return f"{stage} {model} {processes} {dtype} {more}"


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
    if not paths:
        return
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from afarm.backend import Backend
    from afarm.core.config import BackendConfig

    policy = Backend(BackendConfig(device="cpu")).load_policy(SMOL)
    if "smol" in paths:
        policy.save(paths["smol"])
    tokens = {name: getattr(policy.tokenizer, name) for name in ("pad_token_id", "eos_token_id", "bos_token_id")}
    torch.manual_seed(0)
    for name in LLAMAS.keys() & paths.keys():
        shape = LLAMAS[name]
        config = LlamaConfig(
            vocab_size=49152, max_position_embeddings=2048, tie_word_embeddings=True, **shape, **tokens
        )
        policy.model = LlamaForCausalLM(config).to(getattr(torch, shape["dtype"]))
        policy.save(paths[name])


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
