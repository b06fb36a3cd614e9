"""Outputs brought together in pairs, to be compared."""

from __future__ import annotations

from collections.abc import Sequence

from afarm.core.errors import DataError
from afarm.core.records import Output, Pair, number_occurrences


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
    theirs = {row.instruction.id: row for row in reference}
    mine = {row.instruction.id for row in outputs}
    extra = [row.instruction for row in outputs if row.instruction.id not in theirs]
    lacking = [row.instruction for row in reference if row.instruction.id not in mine]
    if extra or lacking:
        said = [
            f"{len(rows)} {what}, such as {rows[0].instruction[:60]!r}"
            for rows, what in ((extra, "are not the reference's"), (lacking, "of the reference's have no output"))
            if rows
        ]
        raise DataError(
            f"the outputs do not match the reference: of {len(outputs)} instructions here and {len(theirs)} there, "
            f"{' and '.join(said)}; both must answer the same instructions"
        )
    pairs = []
    for row in outputs:
        other = theirs[row.instruction.id]
        pairs.append(Pair(row.instruction, other.output, row.output, 0, other.generator, row.generator))
    return pairs
