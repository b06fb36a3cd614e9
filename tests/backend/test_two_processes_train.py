"""Two processes over gloo learn what one does, from the same rows: metrics and weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain

import pytest
import tasks
import torch
from launches import Results

from afarm.backend.trl_bridge import LengthSortedSteps, ShardBatches

pytestmark = pytest.mark.xdist_group("two processes")

LEFT_OUT = {"num_tokens", "epoch", "rewards/accuracies"}
"""TRL's counts over micro-batches, which are cut otherwise here; and which of two rewards is higher before there is a
difference but in the last bits."""


@pytest.fixture(scope="module")
def two(run_tasks: Callable[..., Results]) -> Results:
    return run_tasks()


@pytest.fixture(scope="module")
def two_sharded(run_tasks: Callable[..., Results]) -> Results:
    return run_tasks(ACCELERATE_USE_FSDP="true")


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
    assert_alike(two.of_one(name), two.of(name, 0))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sft", "reward_model", "dpo", "ppo", "quark"])
def test_both_processes_hold_the_same_weights(two: Results, name: str) -> None:
    torch.testing.assert_close(two.of(name, 0).weights, two.of(name, 1).weights, rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", tasks.SHARDED_TASKS)
def test_two_processes_with_a_shard_of_the_weights_each_learn_what_one_does(two_sharded: Results, name: str) -> None:
    assert_alike(two_sharded.of_one(name), two_sharded.of(name, 0))


@pytest.mark.slow
@pytest.mark.parametrize("name", tasks.STOPPED)
def test_two_processes_that_were_stopped_go_on_to_the_same_end(two: Results, two_sharded: Results, name: str) -> None:
    results = two_sharded if name in tasks.SHARDED_TASKS else two
    assert_alike(after_step_2(results.of_one(name)), results.of(f"{name} gone on", 0))


@pytest.mark.slow
@pytest.mark.parametrize("name", tasks.STOPPED)
def test_one_process_goes_on_where_two_were_stopped(two: Results, two_sharded: Results, name: str) -> None:
    results = two_sharded if name in tasks.SHARDED_TASKS else two
    assert_alike(after_step_2(results.of_one(name)), tasks.ALL[name](results.directory / f"{name} left"))


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
        batches = ShardBatches(LengthSortedSteps(lengths, rows_per_step=16, seed=3), size)
        found = list(batches)
        assert len(batches) == len(found)
        return found

    first, second = pieces(0), pieces(1)
    assert len(first) == len(second)
    per_step = 16 // 2 // size
    for number, step in enumerate(LengthSortedSteps(lengths, 16, 3).each()):
        of_step = slice(number * per_step, (number + 1) * per_step)
        assert sorted(chain(*first[of_step], *second[of_step])) == sorted(step)


def test_a_row_too_few_for_all_processes_is_learned_by_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("afarm.backend.trl_bridge.world_size", lambda: 2)
    for rank in range(2):
        monkeypatch.setattr("afarm.backend.trl_bridge.shard", lambda of, rank=rank: of[rank::2])
        monkeypatch.setattr("afarm.backend.trl_bridge.rank", lambda rank=rank: rank)
        assert list(ShardBatches(LengthSortedSteps([5], rows_per_step=4, seed=0), 2)) == [[0]]
