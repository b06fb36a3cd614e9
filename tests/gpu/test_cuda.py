"""The backend and whole runs on an NVIDIA GPU. Skipped where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_models import make_instructions, make_policy

from afarm import Farm
from afarm.backend import Backend, CheckpointPolicy, before_responses, join_and_pad, response_logprobs, token_loss
from afarm.core.config import BackendConfig
from afarm.core.interfaces import Decoding

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here")

SMALL = [
    "rows={sft: 256, preference: 256, unlabeled: 256, evaluation: 64}",
    "sft.num_train_epochs=1",
    "ppo={total_steps: 4, warmup_steps: 1, rollout_batch_size: 32, mini_batch_size: 16, save_steps: 1}",
]


def on_gpu() -> CheckpointPolicy:
    policy = make_policy()
    return CheckpointPolicy(
        policy.model.to("cuda"), policy.tokenizer, policy.template, Backend(BackendConfig(device="cuda"))
    )


def test_samples_and_log_probabilities_are_those_of_the_cpu() -> None:
    greedy = Decoding(temperature=0, max_new_tokens=12, n=1)
    instructions = make_instructions(20)
    here, there = (list(p.sample(instructions, greedy, seed=0)) for p in (make_policy(), on_gpu()))
    assert [s.token_ids for s in here] == [s.token_ids for s in there]
    found = []
    for policy in (make_policy(), on_gpu()):
        batch = join_and_pad(
            [s.prompt_ids for s in here], [s.token_ids for s in here], policy.pad_id, policy.backend.device
        )
        with torch.no_grad():
            read = response_logprobs(policy.model, batch.input_ids, batch.attention_mask, batch.response_mask)
        found.append(read.cpu())
    torch.testing.assert_close(*found, rtol=0, atol=1e-4)


def test_the_gradient_of_a_token_loss_is_that_of_the_cpu() -> None:
    found = []
    for policy in (make_policy(), on_gpu()):
        batch = join_and_pad([[5, 6, 7], [8]], [[9, 10, 1], [11, 12, 13, 1]], policy.pad_id, policy.backend.device)
        hidden, targets = before_responses(policy.model, batch.input_ids, batch.attention_mask, batch.response_mask)
        loss = token_loss(policy.model, hidden, targets, lambda logprobs, where: logprobs.exp().sum(), chunk_size=3)
        loss.backward()
        found.append({name: p.grad.cpu() for name, p in policy.model.named_parameters()})
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_the_same_run_twice_gives_the_same_figures(tmp_path: Path, precision: str) -> None:
    found = []
    for directory in (tmp_path / "1", tmp_path / "2"):
        settings = [*SMALL, "backend.device=cuda", f"backend.mixed_precision={precision}"]
        with Farm("toy", settings=settings, output_dir=directory) as farm:
            result = farm.evaluate("ppo")
            texts = [o.output for o in farm.outputs("ppo")]
        logged = [p.read_text() for p in sorted(directory.glob("artifacts/train/*/metrics.jsonl"))]
        found.append((result.metric("win_rate"), result.metric("reward"), texts, sorted(logged)))
    assert found[0] == found[1]


def test_a_run_that_was_stopped_goes_on_to_the_same_figures(tmp_path: Path) -> None:
    settings = [*SMALL, "backend.device=cuda"]
    with Farm("toy", settings=settings, output_dir=tmp_path / "straight") as farm:
        straight = farm.evaluate("ppo").metric("reward")
    steps = 0

    def stop_in_ppo(items: object, description: str, total: int | None = None) -> object:
        nonlocal steps
        for item in items:  # type: ignore[attr-defined]
            yield item
            steps += description == "PPO"
            if steps == 2:
                steps = 99
                raise KeyboardInterrupt

    with (
        Farm("toy", settings=settings, output_dir=tmp_path / "stopped", progress=stop_in_ppo) as farm,
        pytest.raises(KeyboardInterrupt),
    ):
        farm.evaluate("ppo")
    with Farm("toy", settings=settings, output_dir=tmp_path / "stopped") as farm:
        assert farm.evaluate("ppo").metric("reward") == straight
