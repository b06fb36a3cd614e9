"""Methods that train adapters and sample by a server: PPO, Quark, expert iteration, best-of-n."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from fake_vllm import FakeVllm

from afarm import Decoding, LoraConfig, ModelError, seeding
from afarm.backend import CheckpointPolicy, Generation, Sampler, TorchEngine
from afarm.testing import (
    MetricsRecorder,
    judge_context,
    make_instructions,
    tiny_config,
    tiny_inputs,
    tiny_policy,
    train_context,
)
from afarm_plugins.best_of_n.method import BestOfN, BestOfNConfig
from afarm_plugins.expert_iteration import ExpertIteration, ExpertIterationConfig
from afarm_plugins.ppo import PPO, PPOConfig
from afarm_plugins.quark import Quark, QuarkConfig
from afarm_plugins.vllm.config import VllmConfig
from afarm_plugins.vllm.engine import VllmEngine

LORA = LoraConfig(r=4)


class DrawsOfRequests:
    """torch, with the draws that a server makes of the seed of each request."""

    takes_whole_weights: ClassVar[bool] = True
    runs_here: ClassVar[bool] = True
    version = "test"

    def sampler(self, policy: CheckpointPolicy) -> Sampler:
        self.inner = TorchEngine().sampler(policy)
        return self

    def generate(
        self, prompts: Sequence[Sequence[int]], keys: Sequence[str], decoding: Decoding, *, seed: int
    ) -> Iterator[Generation]:
        alone = Decoding(decoding.temperature, decoding.top_p, decoding.max_new_tokens, 1, 1)
        for prompt, key in zip(prompts, keys, strict=True):
            for sample in range(decoding.n):
                own = seeding.integer(seed, "sample", key, sample) % 2**63
                yield from self.inner.generate([prompt], [str(own)], alone, seed=0)


def trained(method: type, config: Any, engine: Any, directory: Path) -> MetricsRecorder:
    """Train on the tiny inputs, sampling by `engine`, and return the metrics."""
    recorder, built = MetricsRecorder(), method(config)
    inputs = tiny_inputs(built.needs, 8)
    inputs.start.backend.engine = engine
    built.train(inputs, train_context(directory, seed=3, log_metrics=recorder))
    return recorder


@pytest.fixture
def server() -> Iterator[FakeVllm]:
    with FakeVllm(tiny_policy()) as server:
        yield server


def engine(server: FakeVllm) -> VllmEngine:
    return VllmEngine(VllmConfig(patience=120, max_concurrency=4), server.url, judge_context())


@pytest.mark.parametrize(
    ("method", "config", "loaded"),
    [
        (PPO, tiny_config(PPOConfig, lora=LORA, total_steps=2), 3),
        (
            PPO,
            tiny_config(PPOConfig, lora=LORA, total_steps=2, layout="shared", shared_value="adapter", value_init="sft"),
            3,
        ),
        (Quark, tiny_config(QuarkConfig, lora=LORA, variant="top"), 4),
        (ExpertIteration, tiny_config(ExpertIterationConfig, lora=LORA, rounds=2), 1),
    ],
    ids=["ppo", "ppo-shared", "quark", "expert-iteration"],
)
def test_metrics_are_those_of_torch_with_the_same_draws(
    method: type, config: Any, loaded: int, server: FakeVllm, tmp_path: Path
) -> None:
    by_server = trained(method, config, engine(server), tmp_path / "server")
    by_torch = trained(method, config, DrawsOfRequests(), tmp_path / "torch")
    assert len(set(server.loaded)) == loaded, "each step, or round, samples by its own adapter"
    assert [step for step, _ in by_server.lines] == [step for step, _ in by_torch.lines]
    for (_, own), (_, expected) in zip(by_server.lines, by_torch.lines, strict=True):
        assert own == pytest.approx(expected, rel=1e-3, abs=1e-4)


def test_the_best_of_n_draws_are_those_of_torch(server: FakeVllm, tmp_path: Path) -> None:
    def chosen(engine: Any) -> list[tuple[Sequence[int], float]]:
        method = BestOfN(BestOfNConfig(n=4))
        inputs = tiny_inputs(method.needs)
        inputs.start.backend.engine = engine
        policy = method.train(inputs, train_context(tmp_path))
        samples = policy.sample(make_instructions(3), Decoding(max_new_tokens=6, n=2), seed=5)
        return [(sample.token_ids, sample.score) for sample in samples]

    by_server, by_torch = chosen(engine(server)), chosen(DrawsOfRequests())
    assert len(server.requests) == 3 * 2 * 4
    assert [tokens for tokens, _ in by_server] == [tokens for tokens, _ in by_torch]
    assert [score for _, score in by_server] == pytest.approx([score for _, score in by_torch], abs=1e-4)


def test_training_ends_at_the_first_step_whose_weights_the_server_does_not_hold(
    server: FakeVllm, tmp_path: Path
) -> None:
    server.stale = True
    with pytest.raises(ModelError, match="holds other weights than the policy"):
        trained(PPO, tiny_config(PPOConfig, lora=LORA), engine(server), tmp_path)
    assert len(server.loaded) == 2


def test_weights_that_are_trained_whole_are_refused_in_the_middle_too(server: FakeVllm, tmp_path: Path) -> None:
    """For who calls a method directly: a run says so before it starts."""
    with pytest.raises(ModelError, match=r"weights that change in training are taken as adapters \(lora\) alone"):
        trained(PPO, tiny_config(PPOConfig), engine(server), tmp_path)
