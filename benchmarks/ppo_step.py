"""PPO iterations on a random Llama, in a process of its own: `python -m benchmarks.ppo_step --micro 8`.

Prints one JSON line: seconds of an iteration, memory before training and at its peak, the metrics of the first
iterations, and on a CPU how fast it multiplied matrices in the same run.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from afarm import Instruction, MethodInputs, TrainContext
from afarm.backend import Backend, CheckpointPolicy, PromptTemplate, TorchRewardModel, Training
from afarm.core.config import BackendConfig
from afarm.core.records import Sample
from afarm.storage.checkpoints import DirectoryCheckpoints
from afarm_plugins.ppo import PPOConfig, ppo
from benchmarks.sides import Meter, arguments, parse, take_cores


def main() -> None:
    parser = arguments(argparse.ArgumentParser())
    parser.add_argument("--layout", choices=["separate", "shared"], default="separate")
    parser.add_argument("--shared-value", choices=["adapter", "backbone"], default="backbone")
    parser.add_argument("--replay", type=Path, help="rollouts of the other side to train on instead of sampled ones")
    a = parse(parser)
    take_cores(a)
    backend = Backend(BackendConfig(device=a.device, threads=a.threads, mixed_precision="bf16" if a.bf16 else "no"))
    config, inputs = build(a, backend)
    watched = Watched(a.steps, a.device)
    directory = Path(tempfile.mkdtemp())
    context = TrainContext(0, directory, backend, DirectoryCheckpoints(directory), watched.log)
    if a.replay:
        replay(config, torch.load(a.replay))
    with backend.autocast(), suppress(Enough), patch.object(ppo, "start_ppo", watched.start):
        ppo.train_ppo(config, inputs, context)
    found = watched.meter.figures(a.batch)
    if a.device == "cpu":
        found["gflop"] = floating_point_work(a) / 1e9
        found["gflop_per_s"] = matrix_rate(torch.bfloat16 if a.bf16 else torch.float32)
    sys.stdout.write(json.dumps(found) + "\n")


class Enough(Exception):
    """Ends training after the steps that are measured."""


class Watched:
    """Time, memory and metrics of each step, from what PPO's loop calls."""

    def __init__(self, steps: int, device: str):
        self.steps, self.meter, self._start = steps, Meter(device), ppo.start_ppo

    def start(self, *args: Any) -> Any:
        started = self._start(*args)
        self.meter.tick()
        return started

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.meter.tick()
        self.meter.metrics.append(dict(metrics))
        if step == self.steps:
            raise Enough


def build(a: argparse.Namespace, backend: Backend) -> tuple[PPOConfig, MethodInputs]:
    policy, reward_model, prompts = load(a, backend)
    lora = {"r": 8, "alpha": 16, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]} if a.lora else None
    shared = {"layout": "shared", "shared_value": a.shared_value, "value_init": "sft", "value_head_init": "zero"}
    config = PPOConfig.model_validate(
        {
            "total_steps": 1000, "warmup_steps": 0, "rollout_batch_size": a.batch, "mini_batch_size": a.batch,
            "num_ppo_epochs": a.epochs, "per_device_train_batch_size": a.micro, "learning_rate": 3e-6,
            "max_grad_norm": 1e9, "kl_coef": 0.05, "lam": 0.95,
            "whiten_rewards": "none", "max_prompt_length": a.prompt_len, "response_length": a.resp_len,
            "lora": lora, "value_head_init": "reward_model", "checkpoint": "last",
        }
        | (shared if a.layout == "shared" else {})
    )  # fmt: skip
    instructions = [Instruction(" ".join(f"t{i}" for i in row)) for row in prompts]
    return config, MethodInputs(policy, reward_model=reward_model, unlabeled=instructions)


def load(a: argparse.Namespace, backend: Backend) -> tuple[CheckpointPolicy, TorchRewardModel, list[list[int]]]:
    words = {"<pad>": 0, "<eos>": 1, "<unk>": 2, **{f"t{i}": i for i in range(3, a.vocab)}}
    inner = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>",
        chat_template="{% for m in messages %}{{ m['content'] }}{% endfor %}",
    )  # fmt: skip
    config = LlamaConfig(
        hidden_size=a.hidden, intermediate_size=a.inner, num_hidden_layers=a.layers, num_attention_heads=a.heads,
        num_key_value_heads=a.kv_heads, vocab_size=a.vocab, max_position_embeddings=2048, tie_word_embeddings=True,
        pad_token_id=0, bos_token_id=None, eos_token_id=1,
    )  # fmt: skip
    torch.manual_seed(0)
    template = PromptTemplate("chat", tokenizer)
    policy = CheckpointPolicy(LlamaForCausalLM(config).eval(), tokenizer, template, backend)
    classifier = TorchRewardModel.make_classifier(policy, head_std=0.02).eval()
    reward_model = TorchRewardModel(classifier.to(backend.device), tokenizer, template, backend)
    policy.model.to(backend.device)
    prompts = torch.randint(3, a.vocab, (a.batch, a.prompt_len)).tolist()
    if a.models and not (a.models / "prompts.json").is_file():
        a.models.mkdir(parents=True, exist_ok=True)
        policy.save(a.models / "policy")
        reward_model.save(a.models / "reward")
        (a.models / "prompts.json").write_text(json.dumps(prompts))
    return policy, reward_model, prompts


def replay(config: PPOConfig, recorded: list[dict[str, Any]]) -> None:
    """Have PPO collect the responses and scores that the other side recorded, step by step."""
    width = config.max_prompt_length

    def rollout(training: Training, step: int) -> tuple[list[int], list[Sample]]:
        rows = recorded[step]["tokens"].tolist()
        samples = [Sample("", tuple(row[:width]), tuple(row[width:]), None, "length") for row in rows]
        return list(range(len(rows))), samples

    scores = iter([r["scores"].tolist() for r in recorded])
    ppo.rollout = rollout  # type: ignore[assignment]
    ppo.score = lambda training, prompts, samples: next(scores)


def floating_point_work(a: argparse.Namespace) -> float:
    """Floating-point operations of an iteration's matrix products: what cannot be left out."""
    tokens, responses = a.batch * (a.prompt_len + a.resp_len), a.batch * a.resp_len
    of_layer = a.hidden * (2 * a.hidden + 2 * a.hidden * a.kv_heads // a.heads + 3 * a.inner)  # attention, feed-forward
    backbone = 2 * tokens * a.layers * of_layer
    backbone += 2 * tokens * a.layers * 2 * a.hidden * (a.prompt_len + a.resp_len) / 2  # attention itself, causal
    head = 2 * responses * a.hidden * a.vocab
    collect = (backbone + head) * 2 + backbone * 2  # sample, reference; value, reward
    back = 1 if a.lora else 2  # frozen weights need no gradient, adapters hardly any
    shared = a.layout == "shared" and a.shared_value == "backbone"
    learn = (1 + back) * ((backbone + head) + (0 if shared else backbone))
    return collect - (backbone if shared else 0) + a.epochs * learn


def matrix_rate(dtype: torch.dtype) -> float:
    """10⁹ floating-point operations a CPU second, in products as large as an iteration's."""
    one, two = torch.randn(4096, 1024).to(dtype), torch.randn(1024, 1024).to(dtype)
    one @ two
    begin = time.process_time()
    for _ in range(10):
        one @ two
    return 10 * 2 * 4096 * 1024**2 / (time.process_time() - begin) / 1e9


if __name__ == "__main__":
    main()
