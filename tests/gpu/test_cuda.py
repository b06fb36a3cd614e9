"""The backend and whole runs on an NVIDIA GPU. Skipped where there is none."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from forks import OFFLOADED, SHARDED
from launches import LIMIT, finish, launched
from tiny_models import make_instructions, make_policy

from afarm import Farm
from afarm.backend import (
    Backend,
    CheckpointPolicy,
    all_reduce_gradients,
    before_responses,
    gathered_weights,
    join_and_pad,
    parameter_groups,
    response_logprobs,
    shard_model,
    token_loss,
)
from afarm.backend.sharding import all_finite, clip_gradients
from afarm.core.config import BackendConfig
from afarm.core.interfaces import Decoding, MethodInputs, TrainContext
from afarm.core.records import Output
from afarm.storage.checkpoints import DirectoryCheckpoints
from afarm_plugins.memory.estimate import Workload
from afarm_plugins.sft import SFT, SFTConfig

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
        loss = token_loss(policy.model, hidden, targets, lambda logprobs: logprobs.exp().sum(), chunk_size=3)
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


def test_samples_in_bfloat16_are_as_likely_as_the_policy_says() -> None:
    policy = on_gpu()
    policy.model = policy.model.bfloat16()
    samples = list(policy.sample(make_instructions(20), Decoding(temperature=0, max_new_tokens=12, n=1), seed=0))
    assert all(sample.logprobs is None for sample in samples), "those of the cache would not be the policy's to the bit"
    reader = make_policy()
    batch = join_and_pad([s.prompt_ids for s in samples], [s.token_ids for s in samples], reader.pad_id)
    with torch.no_grad():
        hidden, targets = before_responses(reader.model, batch.input_ids, batch.attention_mask, batch.response_mask)
        logits = reader.model.get_output_embeddings()(hidden)
    behind = logits.amax(-1) - logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    assert behind.max() < 0.1, "each is the likeliest token but for rounding"


def test_samples_in_bfloat16_are_the_same_each_time() -> None:
    """Draws come from (seed, instruction, sample number), and the arithmetic from batches that are cut alike."""
    found = []
    for _ in range(2):
        policy = on_gpu()
        policy.model = policy.model.bfloat16()
        decoding = Decoding(temperature=1.0, max_new_tokens=12, n=2)
        found.append([s.token_ids for s in policy.sample(make_instructions(20), decoding, seed=5)])
    assert found[0] == found[1]


def test_a_card_holds_what_the_arithmetic_says(tmp_path: Path) -> None:
    policy = make_policy(hidden_size=1024, intermediate_size=4096, num_hidden_layers=8, num_attention_heads=8)
    backend = Backend(BackendConfig(device="cuda"))
    policy = CheckpointPolicy(policy.model.to("cuda"), policy.tokenizer, policy.template, backend)
    config = SFTConfig(per_device_train_batch_size=4, num_train_epochs=1, max_length=48, save_steps=0)

    def log(step: int, metrics: Mapping[str, float]) -> None:
        if step == 1 and "loss" in metrics:
            torch.cuda.reset_peak_memory_stats()

    rows = [Output(instruction, "w1 " * 60, "human") for instruction in make_instructions(12)]
    context = TrainContext(0, tmp_path, backend, DirectoryCheckpoints(tmp_path), log)
    SFT(config).train(MethodInputs(policy, demonstrations=rows), context)
    [counted] = Workload(policy.model.config, backend.config).training(config)
    assert counted.total == pytest.approx(torch.cuda.max_memory_allocated(), rel=0.15)


@pytest.fixture
def launch_of_one() -> Iterator[None]:
    """A launch of this process alone, with the connections of one that offloads."""
    backend = "cuda:nccl,cpu:gloo" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def learned(device: str, *, offloads: bool) -> tuple[dict[str, torch.Tensor], list[float], dict[str, set[str]]]:
    """Weights after three steps of two passes each, their gradients' norms, and where gradients and moments were."""
    policy, backend = make_policy(), Backend(BackendConfig(device=device), sharded=True, offloads=offloads)
    layers = {name for name, _ in policy.model.named_parameters() if ".layers." in name}
    shard_model(policy.model, backend)
    trained = dict(policy.model.named_parameters())
    optimizer = torch.optim.AdamW(parameter_groups([{"params": list(trained.values())}]), lr=1e-2, fused=True)
    batch = join_and_pad([[5, 6, 7], [8]], [[9, 10, 1], [11, 12, 13, 1]], policy.pad_id, backend.device)
    norms = []
    for _ in range(3):
        optimizer.zero_grad()
        for _ in range(2):
            hidden, targets = before_responses(policy.model, batch.input_ids, batch.attention_mask, batch.response_mask)
            token_loss(policy.model, hidden, targets, lambda logprobs: -logprobs.sum()).backward()
        all_reduce_gradients(trained.values())
        norms.append(clip_gradients(trained.values(), 1.0))
        optimizer.step()
        assert all_finite(trained.values())
    places: dict[str, set[str]] = {"layers": set(), "ends": set()}
    for name, p in trained.items():
        held = [p, p.grad, *(optimizer.state[p][key] for key in ("exp_avg", "exp_avg_sq"))]
        places["layers" if name in layers else "ends"] |= {x.device.type for x in held if x is not None}
    return gathered_weights(trained), norms, places


def test_shards_on_the_host_learn_what_shards_on_the_card_do(launch_of_one: None) -> None:
    """One card: weights, gradients and moments of layers are on the host, and the steps are the same."""
    weights, norms, places = learned("cuda", offloads=False)
    assert places == {"layers": {"cuda"}, "ends": {"cuda"}}
    of_host, norms_of_host, places = learned("cuda", offloads=True)
    assert places == {"layers": {"cpu"}, "ends": {"cuda"}}
    assert norms_of_host == pytest.approx(norms, rel=1e-4)
    torch.testing.assert_close(of_host, weights, rtol=1e-3, atol=1e-4)


def test_a_card_holds_no_shards_that_wait_on_the_host(launch_of_one: None) -> None:
    held = []
    for offloads in (False, True):
        before = torch.cuda.memory_allocated()
        model = make_policy(hidden_size=512, intermediate_size=2048, num_hidden_layers=4).model
        inside = sum(p.nbytes for name, p in model.named_parameters() if ".layers." in name)
        shard_model(model, Backend(BackendConfig(device="cuda"), sharded=True, offloads=offloads))
        held.append(torch.cuda.memory_allocated() - before)
        del model
    assert held[0] - held[1] == pytest.approx(inside, rel=0.02)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two GPUs here")
def test_two_cards_with_shards_on_the_host_learn_what_they_do_with_their_own(tmp_path: Path) -> None:
    """SFT, the reward model and PPO: gathered and added up over NCCL on the cards, over gloo on the host."""
    run = ["-m", "afarm", "run", "--method", "ppo", *(word for setting in SMALL for word in ("--set", setting))]
    run += ["--set", "backend.device=cuda", "--output-dir"]
    finish(launched([*run, str(tmp_path / "cards")], **SHARDED))
    finish(launched([*run, str(tmp_path / "host")], **OFFLOADED))
    assert_same_metrics(logged(tmp_path / "cards"), logged(tmp_path / "host"))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two GPUs here")
def test_shards_on_two_cards_learn_what_one_card_does(tmp_path: Path) -> None:
    """FSDP2 over NCCL: the metrics of SFT, the reward model and PPO, up to rounding."""
    run = ["-m", "afarm", "run", "--method", "ppo", *(word for setting in SMALL for word in ("--set", setting))]
    run += ["--set", "backend.device=cuda", "--set", "ppo.checkpoint=last", "--output-dir"]
    finish(launched([*run, str(tmp_path / "one")], processes=1, CUDA_VISIBLE_DEVICES="0"))
    finish(launched([*run, str(tmp_path / "two")], processes=2, **SHARDED))
    assert_same_metrics(logged(tmp_path / "one"), logged(tmp_path / "two"))


LOST = """
import os, signal, torch
from afarm.backend import Backend, all_reduce_sum, rank
from afarm.core.config import BackendConfig
backend = Backend(BackendConfig(device="cuda", timeout=10), is_distributed=True)
if rank() == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
counted = torch.ones(3, device="cuda")
with backend.naming_lost("train ppo"):
    all_reduce_sum([counted])
    print(counted.tolist())
"""


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two GPUs here")
def test_a_process_that_waits_in_vain_over_nccl_ends(tmp_path: Path) -> None:
    (tmp_path / "lost.py").write_text(LOST)
    launch = launched([str(tmp_path / "lost.py")])
    printed, told = launch.communicate(timeout=LIMIT)
    assert launch.returncode != 0, told
    assert "[2.0, 2.0, 2.0]" not in printed


def assert_same_metrics(one: list[dict[str, float]], two: list[dict[str, float]]) -> None:
    assert len(one) == len(two) > 0
    for ours, theirs in zip(one, two, strict=True):
        shared = {name: value for name, value in ours.items() if name in theirs and name not in ("num_tokens", "epoch")}
        assert {name: theirs[name] for name in shared} == pytest.approx(shared, rel=0.02, abs=0.02)


def logged(output_dir: Path) -> list[dict[str, float]]:
    """The metrics of the first steps of each stage that trains: later ones follow their rounding."""
    files = [
        p for kind in ("train", "fit-reward") for p in sorted(output_dir.glob(f"artifacts/{kind}/*/metrics.jsonl"))
    ]
    return [
        json.loads(path.read_text().splitlines()[0]) for path in sorted(files, key=lambda path: path.stat().st_mtime)
    ]
