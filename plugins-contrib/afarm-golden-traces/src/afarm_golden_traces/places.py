"""Positions where values leave, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from afarm_golden_traces.model import Array, Batch
from afarm_golden_traces.quantities import Quantity, Values


def describe(quantity: Quantity, wrong: Array, values: Values, others: Mapping[str, Any]) -> str:
    """Say where `wrong` is True: a named set of positions if it is one, else the first few."""
    if not quantity.axes:
        return ""
    batch: Batch | None = values.get(quantity.batch)
    by_token = len(quantity.axes) == 2 and not quantity.at_pads
    every = batch.mask == 1 if by_token and batch is not None else np.ones(wrong.shape, dtype=bool)
    unit = "place" if quantity.at_pads else "response token" if by_token else quantity.axes[0]
    count = f"{int(wrong.sum())} of {int(every.sum())} {unit}s"
    for name, places in named_places(wrong, batch, values, others):
        by_row = places.ndim < wrong.ndim
        if (wrong == ((places[:, None] if by_row else places) & every)).all():
            return f"{count}: {name}"
    listed = [" token ".join(map(str, place)) for place in np.argwhere(wrong)[:6]]
    return f"{count}: {quantity.axes[0]} {', '.join(listed)}{' …' if wrong.sum() > 6 else ''} (from 0)"


def named_places(
    wrong: Array, batch: Batch | None, values: Values, others: Mapping[str, Any]
) -> Iterator[tuple[str, Array]]:
    """Sets of places that have a name, by token or by row."""
    yield "all", np.ones(wrong.shape, dtype=bool)
    if batch is not None and len(batch.mask) == len(wrong):
        columns, lengths, eos = np.arange(batch.mask.shape[1]), batch.lengths[:, None], values["eos_token_id"]
        ids = batch.ids[:, -len(columns) :]
        ended = ((ids == eos) & (batch.mask == 1)).any(1)
        if wrong.ndim == 2:
            yield from (("all pads", batch.mask == 0), ("the first pad of each response", columns == lengths))
            first = (columns == 0) & (lengths > 0)
            yield from (("the first of each response", first), ("all but the first of each response", ~first))
            yield from (("the last of each", columns == lengths - 1), ("all but the last", columns != lengths - 1))
            yield from (("EOS", ids == eos), ("all but EOS", ids != eos))
            yield "the last of each response without EOS", (columns == lengths - 1) & ~ended[:, None]
        yield from (("those without EOS", ~ended), ("those with EOS", ended))
        yield "those with pads before the prompt", np.logical_not(batch.attention[:, : -len(columns)].all(1))
        yield "those with pads behind the response", batch.lengths < len(columns)
        yield from (("those of one token", batch.lengths == 1), ("those of more than one token", batch.lengths > 1))
    if "labels" in values:
        labels = np.array(values["labels"], dtype=bool)
        yield from (("desirable ones", labels), ("undesirable ones", ~labels))
    if "num_generations" in values:
        groups = np.arange(len(wrong)) // values["num_generations"]
        yield from ((f"group {group}, from 0", groups == group) for group in range(groups.max() + 1))
    for name, other in others.items():
        places = np.asarray(other)
        if places.dtype.kind == "f" and places.ndim and places.shape in (wrong.shape, wrong.shape[:1]):
            middle = 1 if name.endswith("ratio") else 0
            yield from ((f"{name} is above {middle}", places > middle), (f"{name} is below {middle}", places < middle))
