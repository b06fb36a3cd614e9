"""Two processes over gloo learn what one does, from the same rows: metrics and weights."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path

import pytest
import tasks
import torch
import warm
from fake_vllm import FakeVllm
from launches import Results

from afarm.backend.trl_bridge import StepBatches
from afarm.testing import tiny_policy

pytestmark = pytest.mark.xdist_group("end_to_end")  # one process that has the imports, for all of its tests

LEFT_OUT = {"num_tokens", "epoch", "rewards/accuracies", "held"}
"""TRL's counts over micro-batches, which are cut otherwise here; which of two rewards is higher before there is a
difference but in the last bits; and memory."""

LAYERS, ENDS, REWARD_ENDS = 4 * 17_536, 4 * 2_912, 4 * 1_504
"""Bytes of the tiny policy's layers, and of what is outside: embeddings, norm and output head or reward head."""
HELD = {
    "sft": (1, 3, 0),
    "dpo": (1, 3, 0),
    "reward_model": (1, 0, 3),
    "ppo_fitted_even": (0, 4, 4),
}
"""Copies that a process holds when it logs: whole policies on the host, shards of policies, shards of reward models.
A trained one has weights and two moments; the policy that SFT, DPO and the reward model start from waits on the host,
and PPO reads both."""


@pytest.fixture(scope="module", autouse=True)
def servers() -> Iterator[None]:
    """Two vLLM servers of this process's, for two processes and for one."""
    with FakeVllm(tiny_policy()) as server, FakeVllm(tiny_policy()) as stale, pytest.MonkeyPatch.context() as patch:
        stale.stale = True
        patch.setenv(tasks.SERVER, server.url)
        patch.setenv(tasks.STALE_SERVER, stale.url)
        yield


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, lost_launches: object) -> Path:
    """The directory in which `tasks` have left what they end with in several processes, as `lost_launches` wait."""
    directory = tmp_path_factory.mktemp("trained")
    servers = {name: os.environ[name] for name in (tasks.SERVER, tasks.STALE_SERVER)}
    warm.finish(warm.begin(partial(tasks.main, directory), directory / "said", **servers), directory / "said", 600)
    return directory


@pytest.fixture(scope="module")
def two(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Results:
    return Results(trained / "two", tmp_path_factory.mktemp("one"))


@pytest.fixture(scope="module")
def two_sharded(trained: Path, two: Results) -> Results:
    return two.beside(trained / "sharded")


def assert_alike(one: tasks.Trained, two: tasks.Trained) -> None:
    assert one.weights.keys() == two.weights.keys()
    for name, weight in one.weights.items():
        torch.testing.assert_close(two.weights[name], weight, rtol=1e-5, atol=1e-5, msg=lambda text, n=name: n + text)
    for ours, theirs in zip(comparable(one), comparable(two), strict=True):
        assert theirs == pytest.approx(ours, rel=1e-4, abs=1e-5)


def comparable(trained: tasks.Trained) -> list[Mapping[str, float]]:
    return [{name: x for name, x in row.items() if name not in LEFT_OUT} for row in trained.metrics]


@pytest.mark.slow
@pytest.mark.parametrize("name", tasks.TASKS)
def test_two_processes_learn_what_one_does(two: Results, name: str) -> None:
    """Those of `tasks.STOPPED` although they were stopped and went on."""
    assert_alike(two.of_one(name), two.of(name, 0))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sft", "reward_model", "dpo", "ppo", "quark"])
def test_both_processes_hold_the_same_weights(two: Results, name: str) -> None:
    torch.testing.assert_close(two.of(name, 0).weights, two.of(name, 1).weights, rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", tasks.SHARDED_TASKS)
def test_two_processes_with_a_shard_of_the_weights_each_learn_what_one_does(two_sharded: Results, name: str) -> None:
    """Those of `tasks.SHARDED_STOPPED` although they were stopped and went on."""
    assert_alike(two_sharded.of_one(name), two_sharded.of(name, 0))


@pytest.mark.slow
@pytest.mark.parametrize("name", tasks.ON_HOST)
def test_shards_on_the_host_learn_what_those_on_the_device_do(two_sharded: Results, trained: Path, name: str) -> None:
    for rank in range(2):
        assert_alike(two_sharded.of(name, rank), Results(trained / "on host", trained).of(name, rank))


@pytest.mark.slow
@pytest.mark.parametrize("name", HELD)
def test_a_process_holds_its_shard_of_what_is_trained_and_of_what_is_read(two_sharded: Results, name: str) -> None:
    whole, policies, reward_models = HELD[name]
    shards = policies * (LAYERS / 2 + ENDS) + reward_models * (LAYERS / 2 + REWARD_ENDS)
    for rank in range(2):
        held = two_sharded.of(name, rank).metrics[0]["held"]
        assert held == pytest.approx(whole * (LAYERS + ENDS) + shards, rel=0.02)


@pytest.mark.slow
def test_a_process_holds_at_most_what_the_arithmetic_says_also_while_it_takes_gradients_back(trained: Path) -> None:
    """Of twelve layers it would hold all gradients until the end of the pass if each layer waited for its own.

    And no less than the arithmetic less a fifth: how many gathered layers and gradients meet is a matter of its
    threads, and nine runs with these tiny layers gave 0.84 to 0.95 of it.
    """
    found = json.loads((trained / "memory.json").read_text())
    assert 0.8 <= found["measured"]["learning"] / found["counted"]["learning"]["total"] <= 1.05


STOPPED = [("two", name) for name in tasks.STOPPED] + [("two_sharded", name) for name in tasks.SHARDED_STOPPED]


@pytest.mark.slow
@pytest.mark.parametrize(("launch", "name"), STOPPED)
def test_one_process_goes_on_where_two_were_stopped(request: pytest.FixtureRequest, launch: str, name: str) -> None:
    results = request.getfixturevalue(launch)
    gone_on = tasks.ALL[name](copied(results.directory / f"{name} left", results.alone / launch))
    assert_alike(after_step_2(results.of_one(name)), gone_on)


@pytest.mark.slow
def test_four_processes_go_on_with_the_shards_of_two(two_sharded: Results, trained: Path) -> None:
    assert list(two_sharded.directory.glob("sft left/checkpoints/*/shards/*.pt"))
    assert_alike(after_step_2(two_sharded.of_one("sft")), Results(trained / "four", trained).of("sft left", 3))


def copied(left: Path, into: Path) -> Path:
    """What was left, where it can be gone on with once more."""
    return Path(shutil.copytree(left, into / left.name, dirs_exist_ok=True))


def after_step_2(trained: tasks.Trained) -> tasks.Trained:
    return tasks.Trained(trained.weights, [row for row in trained.metrics if row["step"] > 2])


# ------------------------------------------------------------------------------------------------------------- rows


@pytest.mark.parametrize(("rows", "size"), [(50, 4), (48, 1), (34, 8), (2, 4)])
def test_processes_share_the_rows_of_each_step_in_as_many_pieces(
    monkeypatch: pytest.MonkeyPatch, rows: int, size: int
) -> None:
    lengths = [(7 * n) % 31 + 1 for n in range(rows)]

    def pieces(rank: int) -> list[list[int]]:
        monkeypatch.setattr("afarm.backend.trl_bridge.world_size", lambda: 2)
        monkeypatch.setattr("afarm.backend.trl_bridge.shard", lambda of: of[rank::2])
        monkeypatch.setattr("afarm.backend.trl_bridge.rank", lambda: rank)
        batches = StepBatches(lengths, rows_per_step=16, batch_size=size, seed=3)
        found = list(batches)
        assert len(batches) == len(found)
        return found

    first, second = pieces(0), pieces(1)
    assert len(first) == len(second)
    per_step = 16 // 2 // size
    for number, step in enumerate(StepBatches(lengths, 16, size, 3).steps()):
        of_step = slice(number * per_step, (number + 1) * per_step)
        assert sorted(chain(*first[of_step], *second[of_step])) == sorted(step)


def test_a_row_too_few_for_all_processes_is_learned_by_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("afarm.backend.trl_bridge.world_size", lambda: 2)
    for rank in range(2):
        monkeypatch.setattr("afarm.backend.trl_bridge.shard", lambda of, rank=rank: of[rank::2])
        monkeypatch.setattr("afarm.backend.trl_bridge.rank", lambda rank=rank: rank)
        assert list(StepBatches([5], rows_per_step=4, batch_size=2, seed=0)) == [[0]]
