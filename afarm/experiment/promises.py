"""Returns of components, held to the promises of their interfaces.

Each function raises `PluginError` that names the component, the promise, and what it returned instead. Labels are held
to theirs by `afarm.judging.labelling`, answers by the engine that asks for them, scores by `RewardModel` itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from afarm.core.errors import attributed_to, require_promise, type_name
from afarm.core.interfaces import Decoding, Policy
from afarm.core.records import Evaluation, Instruction, Output, Sample


def require_returned(wanted: type, returned: object, kind: str, name: str, function: str) -> None:
    """Check that what `function` of a component `returned` is of the type `wanted`."""
    broken = f"{function} must return an afarm.{wanted.__name__}, not {type_name(returned)}"
    require_promise(isinstance(returned, wanted), kind, name, broken)


def require_outputs(rows: object, name: str, split: str) -> list[Output]:
    """Return the rows that a data set loaded, if they are a list of `Output`."""
    what = f"load({split!r}) must return a list of afarm.Output"
    require_promise(isinstance(rows, list | tuple), "datasets", name, f"{what}, not {type_name(rows)}")
    assert isinstance(rows, list | tuple)
    for number, row in enumerate(rows):
        whole = isinstance(row, Output) and isinstance(row.instruction, Instruction) and isinstance(row.output, str)
        broken = f"{what}; row {number} is {type_name(row)}"
        if isinstance(row, Output):
            broken = f"{what}; row {number} has {type_name(row.instruction)} and {type_name(row.output)} in it"
        require_promise(whole, "datasets", name, broken)
    return list(rows)


def require_flat(evaluation: Evaluation, name: str) -> Evaluation:
    """Return the evaluation, if its metrics are texts, finite numbers or None, as JSON has them."""
    for metric, value in evaluation.metrics.items():
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        broken = f"evaluate must return flat JSON numbers: metric {metric!r} is {value!r}"
        require_promise(value is None or isinstance(value, str) or number, "evaluators", name, broken)
    return evaluation


def sampled(
    policy: Policy, name: str, instructions: Sequence[Instruction], decoding: Decoding, seed: int
) -> Iterator[Sample]:
    """Yield the samples of a method's policy, if they are `decoding.n` per instruction."""
    wanted = len(instructions) * decoding.n
    promise = f"sample must yield {decoding.n} afarm.Sample per instruction"
    count = 0
    with attributed_to("methods", name):
        for sample in policy.sample(instructions, decoding, seed=seed):
            require_promise(isinstance(sample, Sample), "methods", name, f"{promise}, not {type_name(sample)}")
            count += 1
            broken = f"{promise}: {len(instructions)} instructions gave more than {wanted}"
            require_promise(count <= wanted, "methods", name, broken)
            yield sample
    broken = f"{promise}: {len(instructions)} instructions gave {count} and not {wanted}"
    require_promise(count == wanted, "methods", name, broken)
