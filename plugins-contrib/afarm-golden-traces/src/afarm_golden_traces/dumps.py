"""Reading a trainer's dump: any subset of a trace's quantities, as a JSON file or a mapping in Python."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from afarm_golden_traces.model import Array, Batch
from afarm_golden_traces.quantities import Quantity
from afarm_golden_traces.traces import Trace, TraceError

META = ("method", "variant", "trainer", "comment")
"""Keys of a dump that are no quantities."""


def read_dump(path: Path) -> dict[str, Any]:
    """Read a JSON file of quantities by name. Raises `TraceError` for one that is missing or other."""
    try:
        dump = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise TraceError(f"there is no file {path}. Write a trainer's quantities there: name → nested lists.") from None
    except (ValueError, OSError) as error:
        raise TraceError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(dump, dict):
        raise TraceError(f"{path} holds a {type(dump).__name__}; a dump is an object: values by quantities' names.")
    return dump


def check_names(dump: Mapping[str, Any], trace: Trace) -> None:
    """Raise `TraceError` for a name that the trace does not have, or a dump of another method."""
    method, known = trace.method.name, ", ".join(trace.quantities)
    if dump.get("method", method) != method:
        raise TraceError(f"the dump says that it is of {dump['method']!r}, and is held against {method}.")
    for name in dump:
        if name not in trace.quantities and name not in META:
            near = difflib.get_close_matches(str(name), trace.quantities, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise TraceError(f"{method} has no quantity {name!r}.{hint} It has: {known}.")
    if not any(name in trace.quantities for name in dump):
        raise TraceError(f"the dump has no quantity. {method} has: {known}.")


def to_numbers(name: str, value: Any) -> Array:
    """Make an array of lists, of torch's tensors too. Raises `TraceError` for other things."""
    value = value.detach().cpu().double().numpy() if hasattr(value, "detach") else value
    try:
        return np.array(value, dtype=float)
    except (TypeError, ValueError):
        raise TraceError(f"{name} is not made of numbers, in rows of equal length.") from None


def lay_out(name: str, value: Any, expected: Array, axis: str = "") -> Array:
    """Make an array of the trace's shape. Raises `TraceError` for another shape, NaN or infinity."""
    found = to_numbers(name, value)
    if found.squeeze().shape != expected.squeeze().shape:
        what = f", one for each {axis}" if axis else ""
        raise TraceError(f"{name} has the shape {list(found.shape)}, the trace {list(expected.shape)}{what}.")
    return require_finite(name, found.reshape(expected.shape), np.ones(expected.shape, dtype=bool))


def lay_tokens(name: str, value: Any, quantity: Quantity, batch: Batch) -> tuple[Array, Array, Array]:
    """Lay out rows of tokens, with pads or without: (values, known, values and pads)."""
    rows, width = batch.mask.shape
    given = list(value) if hasattr(value, "__len__") else []
    if len(given) != rows:
        raise TraceError(f"{name} has {len(given)} rows, the trace {rows}, one for each response.")
    laid, padded, known = np.zeros((rows, width)), np.zeros((rows, width)), batch.mask == 1
    for number, (row, length) in enumerate(zip(given, batch.lengths, strict=True)):
        row = [np.nan if x is None else x for x in row] if isinstance(row, list) else row
        found = to_numbers(f"{name}[{number}]", row)
        if found.ndim != 1 or len(found) not in (length, width):
            raise TraceError(
                f"{name}[{number}] has {found.size} values. Its response has {length} tokens: give {length}, or "
                f"{width} with pads on the right."
            )
        laid[number, :length], padded[number, : len(found)] = found[:length], np.nan_to_num(found)
        if quantity.at_pads and len(found) == width:
            laid[number], known[number] = found, True
    return require_finite(name, laid, known), known, padded


def require_finite(name: str, found: Array, known: Array) -> Array:
    for place in np.argwhere(known & ~np.isfinite(found))[:1]:
        where = f"[{', '.join(map(str, place))}]" if len(place) else ""
        raise TraceError(f"{name}{where} is {found[tuple(place)]}, not a finite number.")
    return found
