"""The order in which TRL's trainers read rows, and how far they say they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from tiny_models import make_context, make_instructions, make_policy

from afarm.backend.trl_bridge import StepBatches
from afarm.core.interfaces import MethodInputs
from afarm.core.records import Output
from afarm_plugins.sft import SFT, SFTConfig

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


def test_progress_counts_micro_batches_and_a_resumed_training_counts_in_the_same_total(tmp_path: Path) -> None:
    """5 steps of 2 micro-batches, the last step of one; stopped after step 3 and resumed."""
    loops: list[tuple[str, int | None, list[int]]] = []

    def progress(items: Any, description: str, total: int | None = None) -> Iterator[Any]:
        seen: list[int] = []
        loops.append((description, total, seen))
        for item in items:
            seen.append(item)
            yield item

    config = SFTConfig(
        num_train_epochs=1,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        save_steps=1,
        learning_rate=1e-3,
    )
    rows = [Output(i, "red blue") for i in make_instructions(36)]
    context, metrics = make_context(tmp_path, should_stop=lambda: len(metrics.values("loss")) >= 2)
    with pytest.raises(KeyboardInterrupt):
        SFT(config).train(MethodInputs(make_policy(), demonstrations=rows), replace(context, progress=progress))
    context, _ = make_context(tmp_path)
    SFT(config).train(MethodInputs(make_policy(), demonstrations=rows), replace(context, progress=progress))
    [(name, total, first), (other, same, second)] = loops
    assert (name, total, other, same) == ("sft, micro-batches", 10, "sft, micro-batches", 10)
    assert first[:6] == [0, 1, 2, 3, 4, 5]
    assert len(first) <= 7
    assert second == [6, 7, 8, 9]
