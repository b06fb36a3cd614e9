"""Random Llamas of a few thousand weights, with word-level tokenizers: real code paths, in milliseconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaForCausalLM

from afarm.backend import Backend, CheckpointPolicy
from afarm.core.config import BackendConfig
from afarm.core.interfaces import RewardModel, TrainContext
from afarm.core.records import Instruction, JudgedPair, Output, Pair, Preference
from afarm.testing.models import WORDS, tiny_model, tiny_policy, tiny_tokenizer

make_tokenizer = tiny_tokenizer


def make_model(seed: int = 0, **overrides: Any) -> LlamaForCausalLM:
    torch.manual_seed(seed)  # for what a test draws next
    return tiny_model(seed, **overrides)


def make_gpt2(seed: int = 0) -> GPT2LMHeadModel:
    """Learned absolute positions, which forgive no offset as a Llama does; its backbone has another name."""
    torch.manual_seed(seed)
    settings = GPT2Config(
        vocab_size=45, n_positions=64, n_embd=32, n_layer=2, n_head=4, eos_token_id=1, initializer_range=0.3
    )
    return GPT2LMHeadModel(settings).eval()


def make_policy(seed: int = 0, pad_token: str = "<pad>", **overrides: Any) -> CheckpointPolicy:
    torch.manual_seed(seed)
    return tiny_policy(seed, tokenizer=make_tokenizer(pad_token), **overrides)


def make_instructions(count: int) -> list[Instruction]:
    """Distinct, of 1 to 7 words."""
    return [
        Instruction(" ".join([*(WORDS[(i + j) % 40] for j in range(i % 6)), WORDS[i // 40], WORDS[i % 40]]))
        for i in range(count)
    ]


def judged(instruction: Instruction, output_1: str, output_2: str, p2: float | None, outcome: Any = None) -> JudgedPair:
    pair = Pair(instruction, output_1, output_2)
    return JudgedPair(pair, Preference(pair.id, p2, outcome or ("decided" if p2 is not None else "draw")))


@dataclass
class DiskCheckpoints:
    """Checkpoints as the store keeps them, but all of them."""

    directory: Path
    saved: list[int] = field(default_factory=list)

    def save(self, step: int, write: Callable[[Path], None]) -> None:
        unfinished = self.directory / "unfinished"
        unfinished.mkdir(parents=True)
        write(unfinished)
        unfinished.rename(self.directory / f"step-{step}")
        self.saved.append(step)

    def latest(self) -> tuple[int, Path] | None:
        found = sorted(self.directory.glob("step-*"), key=lambda p: int(p.name[5:]))
        return (int(found[-1].name[5:]), found[-1]) if found else None


@dataclass
class Recorder:
    """What a stage logged, by step."""

    lines: list[tuple[int, dict[str, float]]] = field(default_factory=list)

    def __call__(self, step: int, metrics: Mapping[str, float]) -> None:
        self.lines.append((step, dict(metrics)))

    def values(self, name: str) -> list[float]:
        return [metrics[name] for _, metrics in self.lines if name in metrics]


def make_context(
    directory: Path, seed: int = 0, should_stop: Callable[[], bool] = lambda: False
) -> tuple[TrainContext, Recorder]:
    recorder = Recorder()
    context = TrainContext(
        seed=seed,
        directory=directory,
        backend=Backend(BackendConfig(device="cpu")),
        checkpoints=DiskCheckpoints(directory / "checkpoints"),
        log_metrics=recorder,
        should_stop=should_stop,
    )
    return context, recorder


def same_weights(one: Any, two: Any, tolerance: float = 0.0) -> bool:
    first, second = one.state_dict(), two.state_dict()
    return first.keys() == second.keys() and all(
        torch.allclose(first[name], second[name], rtol=0, atol=tolerance) for name in first
    )


def pair_rewards(reward_model: RewardModel, judged: Sequence[JudgedPair]) -> tuple[list[float], list[float]]:
    """Score both outputs of each pair: the rewards of the first ones, and of the second ones."""
    pairs = [row.pair for row in judged]
    first = [Output(p.instruction, p.output_1, details={"finish_reason": p.finish_reason_1}) for p in pairs]
    second = [Output(p.instruction, p.output_2, details={"finish_reason": p.finish_reason_2}) for p in pairs]
    one, two = ([score.value for score in reward_model.score_outputs(outputs)] for outputs in (first, second))
    return one, two
