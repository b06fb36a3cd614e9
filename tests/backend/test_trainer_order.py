"""The order in which TRL's trainers read rows."""

from __future__ import annotations

from itertools import chain

from afarm.backend.trl_bridge import StepBatches

LENGTHS = [(7 * n) % 31 + 1 for n in range(50)]


def test_each_epoch_reads_every_row_once_sorted_within_steps_only() -> None:
    batches = list(StepBatches(LENGTHS, rows_per_step=8, batch_size=3, seed=3))
    assert [len(batch) for batch in batches] == [3, 3, 2] * 6 + [2]
    order = list(chain(*batches))
    assert sorted(order) == list(range(50))
    steps = [order[start : start + 8] for start in range(0, 50, 8)]
    for rows in steps:
        assert [LENGTHS[r] for r in rows] == sorted((LENGTHS[r] for r in rows), reverse=True)
    # Sorting must not decide which rows a step learns from: each holds short and long ones.
    assert all(min(LENGTHS[r] for r in rows) < 16 <= max(LENGTHS[r] for r in rows) for rows in steps[:-1])


def test_the_order_is_a_function_of_seed_and_epoch() -> None:
    def order(seed: int, epoch: int) -> list[list[int]]:
        batches = StepBatches(LENGTHS, rows_per_step=8, batch_size=4, seed=seed)
        batches.set_epoch(epoch)
        return list(batches)

    assert order(0, 1) == order(0, 1)
    assert order(0, 0) != order(0, 1) != order(1, 1)
