"""Outputs brought together in pairs, to be compared."""

from __future__ import annotations

from collections.abc import Sequence

from afarm.errors import DataError
from afarm.records import Output, Pair, number_occurrences


def neighbours(outputs: Sequence[Output], n: int) -> list[Pair]:
    """Each two of the `n` outputs of an instruction, in turn, as a pair; an odd last one is left out."""
    pairs = []
    for begin in range(0, len(outputs), n):
        group = outputs[begin : begin + n]
        for first, second in zip(group[::2], group[1::2], strict=False):
            pairs.append(Pair(first.instruction, first.output, second.output, 0, first.generator, second.generator))
    return number_occurrences(pairs)


def paired(reference: Sequence[Output], outputs: Sequence[Output]) -> list[Pair]:
    """The reference's output and the system's, for each instruction. Raises `DataError` where they do not match."""
    by_id = {row.instruction.id: row for row in reference}
    missing = [row.instruction.instruction for row in outputs if row.instruction.id not in by_id]
    if missing or len(by_id) != len(outputs):
        example = f", such as {missing[0][:60]!r}" if missing else ""
        raise DataError(
            f"the outputs do not match the reference: {len(missing)} of {len(outputs)} instructions are not among the "
            f"reference's {len(by_id)}{example}; both must answer the same instructions"
        )
    return [
        Pair(
            row.instruction,
            by_id[row.instruction.id].output,
            row.output,
            0,
            by_id[row.instruction.id].generator,
            row.generator,
        )
        for row in outputs
    ]
