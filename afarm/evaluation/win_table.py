"""The win table of judgements: systems by instructions, for statistics over both."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from afarm.core.errors import DataError, PluginError, did_you_mean
from afarm.core.records import Instruction, JudgedPair

try:
    import numpy as np
    from numpy.typing import NDArray
except ModuleNotFoundError as error:
    raise PluginError(f"tables of wins need {error.name!r}: pip install 'afarm[evaluation]'") from error


@dataclass(frozen=True)
class WinTable:
    """The usable judgements of systems against one `reference`: 1 won, 0 lost, 0.5 a draw, else p2.

    `system` and `instruction` [judgements] are indices into `systems` and `instructions` (ids), `value` [judgements]
    the wins. Several judgements of one system and instruction (annotators, seeds, samples) are a cluster. `unusable`
    counts, per system, judgements without an answer: they are absent, never lost.
    """

    reference: str
    systems: tuple[str, ...]
    instructions: tuple[str, ...]
    system: NDArray[np.int64]
    instruction: NDArray[np.int64]
    value: NDArray[np.float64]
    unusable: tuple[int, ...]

    @cached_property
    def table(self) -> NDArray[np.float64]:
        """[systems, instructions]: the mean of each cluster, NaN if there is none."""
        total = np.bincount(self._cell, weights=self.value, minlength=self.judgements.size)
        mean = np.full(self.judgements.size, np.nan)
        np.divide(total, self.judgements.ravel(), out=mean, where=self.judgements.ravel() > 0)
        return mean.reshape(self.judgements.shape)

    @cached_property
    def judgements(self) -> NDArray[np.int64]:
        """[systems, instructions]: the number of usable judgements in each cluster."""
        shape = len(self.systems), len(self.instructions)
        return np.bincount(self._cell, minlength=shape[0] * shape[1]).reshape(shape)

    @cached_property
    def _cell(self) -> NDArray[np.int64]:
        return self.system * len(self.instructions) + self.instruction

    def row(self, system: str) -> NDArray[np.float64]:
        """The table's row of one system, [instructions]. Raises `DataError` if there is none."""
        return self.table[self.number(system)]

    def labels(self, system: str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """The wins of one system, and the index of each one's instruction: clustered, not averaged."""
        chosen = self.system == self.number(system)
        return self.value[chosen], self.instruction[chosen]

    def number(self, system: str) -> int:
        """The index of a system's row. Raises `DataError` if there is none."""
        if system not in self.systems:
            raise DataError(f"there are no judgements of {system!r}.{did_you_mean(system, self.systems)}")
        return self.systems.index(system)

    def shared(self, other: WinTable) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Cut both tables to the [systems, instructions] that both have, in one order."""
        systems = [s for s in self.systems if s in set(other.systems)]
        numbers = {instruction: number for number, instruction in enumerate(other.instructions)}
        columns = [number for number, instruction in enumerate(self.instructions) if instruction in numbers]
        other_columns = [numbers[self.instructions[number]] for number in columns]
        return (
            self.table[np.ix_([self.number(s) for s in systems], columns)],
            other.table[np.ix_([other.number(s) for s in systems], other_columns)],
        )


def wins(judged: Iterable[JudgedPair], instructions: Iterable[str] = ()) -> WinTable:
    """Collect the wins of `generator_2` over `generator_1` from a stream; memory holds no outputs.

    The ids in `instructions` come first, with judgements or without. Raises `DataError` if there are several
    references, or no judgement at all.
    """
    systems: dict[str, int] = {}
    numbers: dict[Instruction, int] = {}
    ids = {id: number for number, id in enumerate(instructions)}
    against: dict[str, str] = {}
    which, what, value = array("q"), array("q"), array("d")
    unusable: list[int] = []
    for row in judged:
        pair = row.pair
        against.setdefault(pair.generator_1, pair.generator_2)
        system = systems.setdefault(pair.generator_2, len(systems))
        if system == len(unusable):
            unusable.append(0)
        if row.win is None:
            unusable[system] += 1
            continue
        # The id is a digest: computed once per instruction, not once per row.
        number = numbers.get(pair.instruction)
        if number is None:
            number = numbers[pair.instruction] = ids.setdefault(pair.instruction.id, len(ids))
        which.append(system)
        what.append(number)
        value.append(row.win)
    if not systems:
        raise DataError("there are no judgements")
    if len(against) > 1:
        (one, first), (two, second) = list(against.items())[:2]
        raise DataError(
            f"{first!r} was compared with {one!r} and {second!r} with {two!r}: win rates over different references are "
            "no board"
        )
    return WinTable(
        next(iter(against)),
        tuple(systems),
        tuple(ids),
        np.asarray(which, dtype=np.int64),
        np.asarray(what, dtype=np.int64),
        np.asarray(value, dtype=np.float64),
        tuple(unusable),
    )
