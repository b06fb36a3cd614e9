"""Promises of every data set."""

from __future__ import annotations

from collections.abc import Sequence

from afarm.core.errors import DataError
from afarm.core.interfaces import Dataset
from afarm.core.records import Output
from afarm.testing.conformance import require

SPLITS = ("sft", "preference", "unlabeled", "validation", "evaluation")


def check_dataset(dataset: Dataset, splits: Sequence[str] = SPLITS) -> None:
    """Check that splits are disjoint, hold no instruction twice and load the same rows each time.

    A missing split must be a `DataError`; at least one must exist. Raises `ConformanceError` naming the broken promise.
    """
    owner: dict[str, str] = {}
    for split in splits:
        rows = _load(dataset, split)
        for row in rows or ():
            before = owner.setdefault(row.instruction.id, split)
            text = row.instruction.instruction[:60]
            require(before == split, f"splits must be disjoint: {text!r} is in {before!r} and in {split!r}")
        if rows is not None:
            distinct = {row.instruction.id for row in rows}
            require(len(distinct) == len(rows), f"split {split!r} holds {len(rows) - len(distinct)} instructions twice")
            require(_load(dataset, split) == rows, f"split {split!r} loads differently the second time")
            alone = dataset.instructions(split)
            same = alone is None or list(alone) == [row.instruction for row in rows]
            require(same, f"instructions({split!r}) must return those of load({split!r})")
    require(bool(owner), f"none of the splits {', '.join(splits)} holds a row")
    require(_load(dataset, "no such split") is None, "a split that is not there must be a DataError")


def _load(dataset: Dataset, split: str) -> list[Output] | None:
    """Load the rows of a split; None if that is a `DataError`."""
    try:
        rows = dataset.load(split)
    except DataError:
        return None
    require(bool(rows), f"split {split!r} is empty: that must be a DataError")
    require(all(isinstance(row, Output) for row in rows), f"split {split!r} must hold afarm.Output rows")
    if split == "sft":
        require(all(row.output for row in rows), "every row of 'sft' is a demonstration: none may be empty")
    return rows
