"""Fields of records, held to their declared types before they are stored."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import cache
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from afarm.core.errors import DataError, attribute_failures, require_promise, type_name
from afarm.core.interfaces import Decoding, EvaluationInputs, Policy
from afarm.core.records import Evaluation, Instruction, JudgedPair, Sample
from afarm.core.registry import Component

WIN_RATES = ("win_rate", "winrate")
"""The ends of the names of metrics that are win rates in percent."""
SHOWN = 80
"""Characters of a wrong value that a message shows."""


def require_record(record: object, wanted: type, kind: str, name: str, promise: str, owner: object = None) -> None:
    """Check that a record is of the type `wanted`, and its fields of theirs; Any stands for JSON values.

    Numbers of numpy and torch in it become Python's.
    """
    require_promise(isinstance(record, wanted), kind, name, f"{promise}, not {type_name(record)}", owner)
    for field, adapter, is_json, is_text, is_number in _fields(wanted):
        value = getattr(record, field)
        if is_text and type(value) is str and value.isascii():
            continue  # most fields are such, and pydantic takes five times longer to say so
        try:
            plain = adapter.validate_python(value, strict=True)
            if is_json and value:
                stored = json.loads(json.dumps(plain, allow_nan=False, default=_encode_number))
                plain = stored if isinstance(stored, dict) else tuple(stored)
            if is_number:
                object.__setattr__(record, field, plain)
        except (ValueError, TypeError, RecursionError) as error:  # pydantic's error is a ValueError
            why = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
            require_promise(False, kind, name, f"{promise}; its {field} is {short_repr(value)}: {why}", owner)


@cache
def _fields(record: type) -> list[tuple[str, TypeAdapter[Any], bool, bool, bool]]:
    """List the fields of a record with their validators and kinds of values."""
    hints = get_type_hints(record)
    return [
        (name, TypeAdapter(hint), "Any" in str(hint), hint is str, bool(re.search(r"\b(int|float|Any)\b", str(hint))))
        for name, hint in ((field.name, hints[field.name]) for field in fields(record))
    ]


def plain_number(value: Any) -> Any:
    """Return a number of numpy or torch as Python's, and anything else as it is."""
    return value.item() if getattr(value, "shape", None) == () else value


def _encode_number(value: Any) -> Any:
    if getattr(value, "shape", None) != ():
        raise TypeError(f"Object of type {type_name(value)} is not JSON serializable")
    return value.item()


def short_repr(value: object) -> str:
    """Show a wrong value in a message, cut after `SHOWN` characters."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no whole number of more than 4,300 digits
        return "a number of too many digits"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def require_evaluation(
    returned: object, name: str, registered: Iterable[Component], component: Component, system: str, owner: object
) -> Evaluation:
    """Return an evaluator's evaluation of `system` if it keeps every promise; win rates are percentages."""
    promise = "evaluate must return an afarm.Evaluation"
    metrics = getattr(returned, "metrics", None)
    if isinstance(returned, Evaluation):
        flat = "evaluate must return flat JSON numbers"
        named = f"{flat} by name, not {short_repr(metrics)}"
        require_promise(isinstance(metrics, Mapping), "evaluators", name, named, owner)
        returned = replace(returned, metrics={key: plain_number(value) for key, value in returned.metrics.items()})
        for metric, value in returned.metrics.items():
            number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
            fits = isinstance(metric, str) and (value is None or isinstance(value, str) or number)
            require_promise(fits, "evaluators", name, f"{flat}: metric {metric!r} is {short_repr(value)}", owner)
            if isinstance(value, int | float) and metric.endswith(WIN_RATES):
                rate = f"a win rate is in percent: metric {metric!r} is {value!r}"
                require_promise(0 <= value <= 100, "evaluators", name, rate, owner)
    require_record(returned, Evaluation, "evaluators", name, promise, owner)
    assert isinstance(returned, Evaluation)
    same = (c for c in registered if (c.kind, c.target) == (component.kind, component.target))
    names = [called for c in same for called in dict.fromkeys([c.name, c.full_name])]
    own = f"{promise} of evaluator {' or '.join(map(repr, names))}, not of {returned.evaluator!r}"
    require_promise(returned.evaluator in names, "evaluators", name, own, owner)
    right = f"{promise} of system {system!r}, not of {returned.system!r}"
    require_promise(returned.system == system, "evaluators", name, right, owner)
    return returned


def match_judgements(inputs: EvaluationInputs) -> Iterator[JudgedPair]:
    """Stream an evaluator's judgements. Raises `DataError` naming the first that is not about its output."""
    if len(inputs.judgements) != len(inputs.outputs):
        raise DataError(f"{inputs.system}: {len(inputs.judgements)} judgements for {len(inputs.outputs)} outputs")
    for number, (row, output) in enumerate(zip(inputs.judgements, inputs.outputs, strict=True)):
        here, there = row.pair.instruction, output.instruction
        # Those that are equal throughout have equal ids, which take much longer to make.
        if row.pair.output_2 != output.output or (here != there and here.id != there.id):
            raise DataError(f"{inputs.system}: judgement {number} is not about output {number}")
        yield row


def require_samples(
    policy: Policy, kind: str, name: str, instructions: Sequence[Instruction], decoding: Decoding, seed: int
) -> Iterator[Sample]:
    """Yield a policy's samples if they are `decoding.n` per instruction; failures name the component."""
    wanted = len(instructions) * decoding.n
    promise = f"sample must yield {decoding.n} afarm.Sample per instruction"
    count = 0
    with attribute_failures(kind, name, policy):
        for sample in policy.sample(instructions, decoding, seed=seed):
            require_record(sample, Sample, kind, name, promise, policy)
            finite = sample.score is None or math.isfinite(sample.score)
            require_promise(finite, kind, name, f"{promise}; its score is {sample.score}", policy)
            count += 1
            broken = f"{promise}: {len(instructions)} instructions gave more than {wanted}"
            require_promise(count <= wanted, kind, name, broken, policy)
            yield sample
    broken = f"{promise}: {len(instructions)} instructions gave {count} and not {wanted}"
    require_promise(count == wanted, kind, name, broken, policy)
