"""Probable causes of a wrong value, by rules that know no method, and by known mistakes.

A cause is given only where the wrong values come out of it to the check's tolerance. First the formula is tried with
one of what it reads changed (a setting at 0 or 1, a mask with pads, another quantity in its place), then its result as
a whole (turned, scaled, shifted, another quantity).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from afarm_golden_traces.model import Array, Batch, by_row, by_token
from afarm_golden_traces.quantities import Quantity, Values

Named = Iterator[tuple[str, Any]]
"""A mistake in words, and what it makes of a value."""


def find_cause(
    quantity: Quantity,
    values: Values,
    found: Array,
    fits: Callable[[Any], bool],
    others: Mapping[str, Any],
    padded: Mapping[str, Array],
) -> str:
    """Say what the wrong values `found` fit, or nothing.

    `others` are quantities by name; `padded` those of tokens, with what the dump has at pads.
    """
    others = {name: other for name, other in others.items() if name != quantity.name}
    read = Values(values)
    right, reads = np.real(quantity.formula(read)), list(read.read)
    with_pads = {name: padded[name] for name in reads if name in padded}

    def candidates() -> Named:
        yield from (("0 everywhere", lambda: 0 * found), ("1 everywhere", lambda: 0 * found + 1))
        yield "the sign is turned", lambda: -right
        for text, formula in quantity.mistakes.items():
            yield text, lambda formula=formula: formula(Values(values))
        for text, changed in changes(reads, values, others):
            yield text, lambda changed=changed: quantity.formula(Values(values, changed))
            if "pads count" in text:
                yield text, lambda changed=changed: quantity.formula(Values(values, with_pads, changed))
        yield "what the dump has at pads counts", lambda: quantity.formula(Values(values, with_pads))
        for text, result in [*reductions(reads, values, right), *transformed(quantity, right, values, found, others)]:
            yield text, lambda result=result: result

    for text, compute in candidates():
        with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
            try:
                if fits(np.real(compute())):
                    return text
            except (ArithmeticError, ValueError, IndexError, TypeError, KeyError):
                continue  # no such mistake can be made here
    return ""


def changes(reads: Sequence[str], values: Values, others: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each way to change one thing that a formula reads: (what it means, the changed value by name)."""
    for name in reads:
        for text, instead in replacements(name, values[name], values, others):
            yield text, {name: instead}


def replacements(name: str, value: Any, values: Values, others: Mapping[str, Any]) -> Named:
    """Values that may stand in the place of one by mistake."""
    if name == "own_place":
        yield "it is read where a token itself stands, not one before", 1
    elif isinstance(value, bool):
        yield f"{name} is {not value}", not value
    elif isinstance(value, float | int):
        yield from ((f"{name} is {number}", number) for number in (0, 1) if number != value)
        yield from ((f"{name} has the other sign", -value), (f"{name} is squared", value**2))
        yield from ((f"{name} counts twice", 2 * value), (f"{name} is halved", value / 2))
        yield f"1 / {name} stands for {name}", 1 / value if value else 0
        yield f"{name} bounds nothing", 1e9
    elif isinstance(value, Batch):
        yield "pads are attended to", value._replace(attention=np.ones_like(value.attention))
        yield from ((f"{text} in {name}'s mask", value._replace(mask=mask)) for text, mask in masks(value.mask))
    elif name.endswith("mask"):
        yield from ((f"{text} in {name}", mask) for text, mask in masks(value))
    elif name.endswith("weights"):
        alike = [other for other, w in values.items() if other.endswith("weights") and w.keys() == value.keys()]
        yield from ((f"the weights are {other}, not {name}", values[other]) for other in alike if other != name)
    elif isinstance(value, np.ndarray) or (isinstance(value, list) and np.isscalar(value[0])):
        array = np.asarray(value, dtype=float)
        yield f"{name} has the other sign", 1 - array if np.asarray(value).dtype.kind == "b" else -array
        yield f"{name} is left out", np.zeros_like(array)
        for other, instead in others.items():
            if other != name and np.shape(instead) == array.shape and "mask" not in other:
                yield f"{other} stands in the place of {name}", np.asarray(instead)
        if array.ndim:
            yield from ((f"{name} is {text}", instead) for text, instead in moved(array))
            yield f"{name} is the same mean for all rows", np.full_like(array, array.mean())
            yield f"{name} is the same for all rows", np.ones_like(array)


def masks(mask: Array) -> Named:
    """Wrong masks of responses."""
    columns, lengths = np.arange(mask.shape[1]), mask.sum(-1, keepdims=True)
    yield "pads count", np.ones_like(mask)
    yield "the last token is missing", (columns < lengths - 1).astype(float)
    yield "the first token is missing", mask * (columns > 0)
    yield "one pad more counts", (columns <= lengths).astype(float)


def moved(array: Array) -> Named:
    """An array in another order."""
    if array.ndim == 2:
        zeros = np.zeros((len(array), 1))
        yield "a token too far to the right", np.concatenate([zeros, array[:, :-1]], 1)
        yield "a token too far to the left", np.concatenate([array[:, 1:], zeros], 1)
    yield "that of the row before", np.roll(array, 1, 0)
    yield "in the opposite order of rows", array[::-1]


def reductions(reads: Sequence[str], values: Values, right: Array) -> Named:
    """Other ways to make one number of what a formula reads."""
    tokens = sum(value.mask.sum() for value in values.values() if isinstance(value, Batch))
    for name in reads if not right.ndim else ():
        array, mask = values[name], values.get("response_mask")
        array = np.real(array) if isinstance(array, np.ndarray) else right
        found = {}
        if array.ndim == 1:
            found = {"a sum of": array.sum(), "not by rows but by response tokens divided": array.sum() / tokens}
        elif array.ndim == 2 and mask is not None and name != "response_mask":
            array = array * mask
            found = {
                "a mean over each response, then over responses, of": by_row(array, mask),
                "a mean over all response tokens of": by_token(array, mask),
                "a mean with pads of": array.mean(),
                "a sum over tokens of": array.sum(),
                "a sum over each response, then a mean, of": array.sum(-1).mean(),
                "a mean over each column, then over columns, of": (array.sum(0) / mask.sum(0)).mean(),
            }
        yield from ((f"{text} {name}", number) for text, number in found.items())
        yield from ((f"½ · {text} {name}", number / 2) for text, number in found.items())


def transformed(quantity: Quantity, right: Array, values: Values, found: Array, others: Mapping[str, Any]) -> Named:
    """Each way in which the result as a whole may be another."""
    for other, instead in others.items():
        if np.shape(instead) == right.shape:
            yield from ((f"it is {other}", np.asarray(instead)), (f"it is −{other}", -np.asarray(instead)))
    if right.ndim:
        yield from ((f"it is {text}", array) for text, array in moved(right))
        yield "less their mean", right - right.mean()
    if right.ndim and "num_generations" in values:
        order = np.arange(len(right)).reshape(-1, values["num_generations"]).T.reshape(-1)
        yield "rows are taken one of each group, then the next", right[order]
    yield from (("squared", right**2), ("its exponential", np.exp(np.clip(right, -50, 50))))
    square = float((right * right).sum())
    factor = float((right * found).sum()) / square if square else 0.0  # by least squares
    if (named := name_factor(values, factor)) or right.size > 1:  # a number is always some multiple
        yield f"it is {factor:.6g} times the trace's{named}", factor * right


def name_factor(values: Values, factor: float) -> str:
    """Name a factor that is a number of rows or tokens, a hyperparameter, or one over another."""
    counts: dict[str, float] = {"1": 1.0, "2": 2.0}
    for name, value in values.items():
        if isinstance(value, Batch):
            rows, columns = value.mask.shape
            counts |= {f"rows of {name}": rows, f"columns of {name}": columns, f"tokens of {name}": value.mask.sum()}
        elif isinstance(value, float | int) and value not in (0, 1):
            counts[name] = float(value)
    for below in counts:
        for above in counts:
            if abs(factor * counts[below] - counts[above]) < 1e-5 * abs(counts[above]):
                return f", which is {above}{f' / {below}' if below != '1' else ''}"
    return ""
