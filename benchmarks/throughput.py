"""One measurement in a process of its own, so that its peak memory is its own: `python -m benchmarks.throughput CASE`.

Sampling and training on the toy base and on SmolLM2, ours beside the plain way on the same model and the same tokens.
Prints one JSON line: tokens, wall seconds, CPU seconds, and peak memory above what was held before the work.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from afarm import Decoding, Instruction, MethodInputs, Output, TrainContext
from afarm.backend import Backend, CheckpointPolicy, TorchSampler, cpu, join_and_pad
from afarm.core.config import BackendConfig
from afarm.storage.checkpoints import DirectoryCheckpoints
from afarm_plugins.sft import SFT, SFTConfig

SMOL = Path(".cache/smollm2.gguf")
SAMPLING = ("sample", "generate", "best-of", "generate-n", "products")
TRAINING = ("sft", "plain-sft", "sft-products")
LORA = {"r": 16, "alpha": 32}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=["toy", "smol"])
    parser.add_argument("work", choices=[*SAMPLING, *TRAINING])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    backend = Backend(BackendConfig(device="cpu", threads=arguments.threads, dtype=arguments.dtype))
    policy, rows = toy(backend) if arguments.model == "toy" else smol(backend)
    work: Callable[[], int] = {
        "sample": lambda: sample(policy, rows, arguments.model),
        "generate": lambda: generate(policy, rows, arguments.model),
        "best-of": lambda: best_of(policy),
        "generate-n": lambda: generate_n(policy),
        "sft": lambda: sft(policy, rows, arguments.model),
        "plain-sft": lambda: plain_sft(policy, rows, arguments.model),
        "products": lambda: products(policy, SIZES[arguments.model]["batch"]),
        "sft-products": lambda: sft_products(policy, rows, arguments.model),
    }[arguments.work]
    if arguments.work in ("generate", "generate-n", "plain-sft"):
        policy.model.set_attn_implementation("sdpa")  # transformers' own, which half precision does not get from us
    if arguments.work == "sft":
        import trl  # noqa: F401  (its import is no part of training)
    before, peak, stop = rss(), [0.0], threading.Event()
    watcher = threading.Thread(target=watch, args=(peak, stop), daemon=True)
    watcher.start()
    wall, seconds = time.perf_counter(), time.process_time()
    tokens = work()
    wall, seconds = time.perf_counter() - wall, time.process_time() - seconds
    stop.set()
    watcher.join()
    found = {"model": arguments.model, "work": arguments.work, "threads": arguments.threads, "tokens": tokens}
    sys.stdout.write(json.dumps({**found, "wall": wall, "cpu": seconds, "memory_mb": peak[0] - before}) + "\n")


def rss() -> float:
    """Megabytes held now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def watch(peak: list[float], stop: threading.Event) -> None:
    while not stop.wait(0.02):
        peak[0] = max(peak[0], rss())


# ------------------------------------------------------------------------------------------------- models and data


def toy(backend: Backend) -> tuple[CheckpointPolicy, list[Output]]:
    from afarm_plugins.toy import ToyConfig
    from afarm_plugins.toy.dataset import ToyDataset

    return backend.load_policy("pkg:afarm_plugins.toy/base2"), ToyDataset(ToyConfig()).load("sft")


def smol(backend: Backend) -> tuple[CheckpointPolicy, list[Output]]:
    asked = "Write a short note about {} for a colleague who has never heard of it, and say what to do next."
    things = ["tides", "glaciers", "compost", "bridges", "sonnets", "batteries", "chess", "bees"]
    answer = "It is worth a look. Start with a simple example, write down what you see, and ask when you are stuck."
    rows = [Output(Instruction(asked.format(thing)), f"{thing.capitalize()}: {answer}") for thing in things]
    kinds = ["note", "letter", "poem", "list", "story", "speech", "question", "joke"]
    asked_by_kind = [
        Output(Instruction(row.instruction.instruction.replace("note", kind)), row.output)
        for kind in kinds
        for row in rows
    ]
    return backend.load_policy(str(SMOL)), asked_by_kind


SIZES: dict[str, dict[str, Any]] = {
    "toy": {"prompts": 2048, "batch": 256, "new": 48, "train": 2048, "train_batch": 64, "lora": None},
    "smol": {"prompts": 64, "batch": 64, "new": 48, "train": 32, "train_batch": 8, "lora": LORA},
}


# ---------------------------------------------------------------------------------------------------------- sampling


def sample(policy: CheckpointPolicy, rows: Sequence[Output], model: str) -> int:
    """Tokens of afarm's sampler, end-of-sequence included."""
    size = SIZES[model]
    decoding = Decoding(temperature=1.0, max_new_tokens=size["new"], per_device_batch_size=size["batch"])
    instructions = [row.instruction for row in rows[: size["prompts"]]]
    return sum(len(s.token_ids) for s in policy.sample(instructions, decoding, seed=0))


def generate(policy: CheckpointPolicy, rows: Sequence[Output], model: str) -> int:
    """Tokens of transformers' generate in the same batches, end-of-sequence included, pads not."""
    size, count = SIZES[model], 0
    prompts = policy.prompt_ids([row.instruction for row in rows[: size["prompts"]]])
    torch.manual_seed(0)
    for begin in range(0, len(prompts), size["batch"]):
        batch = prompts[begin : begin + size["batch"]]
        width = max(map(len, batch))
        ids = torch.tensor([[policy.pad_id] * (width - len(p)) + p for p in batch])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in batch])
        with torch.inference_mode():
            made = policy.model.generate(
                input_ids=ids,
                attention_mask=mask,
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                max_new_tokens=size["new"],
                pad_token_id=policy.pad_id,
                eos_token_id=policy.eos_ids,
            )[:, width:].tolist()
        for row in made:
            ends = [row.index(e) + 1 for e in policy.eos_ids if e in row]
            count += min([*ends, len(row)])
    return count


PROMPT = [300 + 7 * i % 4000 for i in range(512)]
"""Token ids of a long prompt. What they say plays no part: every response runs to its limit."""

BEST_OF, BEST_OF_TOKENS, BEST_OF_BATCH = 64, 64, 32


def best_of(policy: CheckpointPolicy) -> int:
    """Tokens of 64 samples of one prompt of 512, in batches of 32 that share its prefill; none ends early."""
    endless = TorchSampler(policy.model, policy.eos_ids, policy.pad_id, dict.fromkeys(policy.eos_ids, -math.inf))
    decoding = Decoding(max_new_tokens=BEST_OF_TOKENS, n=BEST_OF, per_device_batch_size=BEST_OF_BATCH)
    return sum(len(g.token_ids) for g in endless.generate([PROMPT], ["long"], decoding, seed=0))


def generate_n(policy: CheckpointPolicy) -> int:
    """The same by transformers' generate with `num_return_sequences`, all 64 at once, as it does it."""
    ids = torch.tensor([PROMPT])
    torch.manual_seed(0)
    with torch.inference_mode():
        made = policy.model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            num_return_sequences=BEST_OF,
            max_new_tokens=BEST_OF_TOKENS,
            min_new_tokens=BEST_OF_TOKENS,
            pad_token_id=policy.pad_id,
            eos_token_id=policy.eos_ids,
        )
    return made[:, len(PROMPT) :].numel()


def products(policy: CheckpointPolicy, batch: int) -> int:
    """Tokens of the products alone: every matrix of the model, once per token of a batch, ten times over."""
    weights = [m.weight for m in policy.model.modules() if isinstance(m, torch.nn.Linear)]
    inputs = {w.shape[1]: torch.randn(batch, w.shape[1], dtype=w.dtype) for w in weights}
    with torch.inference_mode():
        for _ in range(10):
            for weight in weights:
                cpu.product(inputs[weight.shape[1]], weight)
    return 10 * batch


# ---------------------------------------------------------------------------------------------------------- training


def sft(policy: CheckpointPolicy, rows: Sequence[Output], model: str) -> int:
    """Tokens (prompt and response) of one epoch of afarm's SFT."""
    size = SIZES[model]
    used = list(rows[: size["train"]])
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        checkpoints = DirectoryCheckpoints(directory)
        context = TrainContext(0, directory, policy.backend, checkpoints, lambda step, metrics: None)
        config = SFTConfig(
            learning_rate=1e-4,
            num_train_epochs=1,
            per_device_train_batch_size=size["train_batch"],
            save_steps=0,
            lora=size["lora"],
        )
        SFT(config).train(MethodInputs(start=policy, demonstrations=used), context)
    return tokens_of(policy, used)


def plain_sft(policy: CheckpointPolicy, rows: Sequence[Output], model: str) -> int:
    """The same epoch in a plain loop: AdamW, the model's own loss, right padding, no trainer."""
    size = SIZES[model]
    used = list(rows[: size["train"]])
    network: Any = policy.model
    if size["lora"]:
        from peft import LoraConfig, get_peft_model

        lora = LoraConfig(r=LORA["r"], lora_alpha=LORA["alpha"], target_modules="all-linear", task_type="CAUSAL_LM")
        network = get_peft_model(network, lora)
    trained = [p for p in network.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, weight_decay=0.0)
    network.train()
    encoded, _ = policy.template.encode([r.instruction for r in used], [r.output for r in used], 512)
    for begin in range(0, len(encoded), size["train_batch"]):
        chunk = encoded[begin : begin + size["train_batch"]]
        batch = join_and_pad([p for p, _ in chunk], [r for _, r in chunk], policy.pad_id, torch.device("cpu"))
        labels = batch.input_ids.masked_fill(~batch.response_mask.bool(), -100)
        optimizer.zero_grad()
        network(input_ids=batch.input_ids, attention_mask=batch.attention_mask, labels=labels).loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
    return tokens_of(policy, used)


def sft_products(policy: CheckpointPolicy, rows: Sequence[Output], model: str) -> int:
    """Tokens of the same epoch's products alone: frozen matrices forwards, and backwards to their inputs' gradients.

    The head's are of the responses, whose loss it is. Adapters and attention are left out.
    """
    size = SIZES[model]
    used = list(rows[: size["train"]])
    head = policy.model.get_output_embeddings().weight
    weights = [m.weight.detach() for m in policy.model.modules() if isinstance(m, torch.nn.Linear)]
    backwards = {weight: weight.t().contiguous() for weight in weights}
    encoded, _ = policy.template.encode([r.instruction for r in used], [r.output for r in used], 512)
    with torch.inference_mode():
        for begin in range(0, len(encoded), size["train_batch"]):
            chunk = encoded[begin : begin + size["train_batch"]]
            responses = sum(len(response) for _, response in chunk)
            everything = responses + sum(len(prompt) for prompt, _ in chunk)
            for weight in weights:
                tokens = responses if weight.shape == head.shape else everything
                after = cpu.product(torch.ones(tokens, weight.shape[1], dtype=weight.dtype), weight)
                cpu.product(after, backwards[weight])
    return tokens_of(policy, used)


def tokens_of(policy: CheckpointPolicy, rows: Sequence[Output]) -> int:
    encoded, _ = policy.template.encode([r.instruction for r in rows], [r.output for r in rows], 512)
    return sum(len(p) + len(r) for p, r in encoded)


if __name__ == "__main__":
    main()
