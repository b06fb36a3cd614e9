"""Boards from stored annotations, with no judge: read as they come, so that memory holds numbers and few texts.

Of each system a sample of outputs is kept, for the guards; what they say is of those. Labels of one system and
instruction (several annotators' seeds, or a row given twice) are a cluster, and no more sure than one is.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from afarm.analysis.measures import SIGNIFICANT_LENGTH, has_list
from afarm.boards.board import Board, Entry, Source, ranked
from afarm.errors import DataError
from afarm.files import read_rows
from afarm.guards import Flag, family_flags, text_flags
from afarm.keyed import uniform
from afarm.protocol import Protocol, instructions_digest, outputs_digest
from afarm.records import Instruction, JudgedPair

if TYPE_CHECKING:
    from afarm.wins import Wins

SAMPLE = 64
"""Outputs of each system that are kept: boards have hundreds of systems."""


@dataclass(slots=True)
class _System:
    """What is kept of a system's rows. `tastes` are, for the longer output and the list, how often the judge chose it
    and how often it could."""

    number: int
    judges: set[str] = field(default_factory=set)
    characters: int = 0
    rows: int = 0
    empty: int = 0
    unusable: int = 0
    counts: list[int] = field(default_factory=lambda: [0, 0, 0])
    tastes: dict[str, list[int]] = field(default_factory=lambda: {"longer": [0, 0], "lists": [0, 0]})
    sample: list[tuple[float, str, Instruction]] = field(default_factory=list)
    files: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _Task:
    """What is kept of an instruction: its number, the reference's output to it, and whether that has a list."""

    number: int
    sampled: float
    reference: str
    listed: bool
    where: str


@dataclass(slots=True)
class _Tally:
    """The rows of one annotator against one reference."""

    annotator: str
    reference: str
    systems: dict[str, _System] = field(default_factory=dict)
    tasks: dict[Instruction, _Task] = field(default_factory=dict)
    which: array[int] = field(default_factory=lambda: array("q"))
    what: array[int] = field(default_factory=lambda: array("q"))
    value: array[float] = field(default_factory=lambda: array("d"))

    def add(self, row: JudgedPair, where: str, file: str) -> None:
        """Raises `DataError` where the reference has another output here than in an earlier row."""
        pair = row.pair
        task = self.tasks.get(pair.instruction)
        if task is None:
            listed, sampled = has_list(pair.output_1), uniform("sample of outputs", pair.instruction.id)
            task = _Task(len(self.tasks), sampled, pair.output_1, listed, where)
            self.tasks[pair.instruction] = task
        elif task.reference != pair.output_1:
            raise DataError(
                f"{where}: field 'output_1' is another output of {self.reference!r} than at {task.where}, to the same "
                f"instruction ({pair.instruction.instruction[:60]!r}): win rates over different references are no "
                "board; give the files apart"
            )
        system = self.systems.setdefault(pair.generator_2, _System(len(self.systems)))
        system.rows += 1
        system.characters += len(pair.output_2)
        system.empty += not pair.output_2.strip()
        system.judges.add(row.preference.judge)
        system.files.add(file)
        kept = (-task.sampled, pair.output_2, pair.instruction)
        if len(system.sample) < SAMPLE:
            heapq.heappush(system.sample, kept)
        elif kept[0] > system.sample[0][0]:
            heapq.heapreplace(system.sample, kept)
        won = row.win
        if won is None:
            system.unusable += 1
            return
        self.which.append(system.number)
        self.what.append(task.number)
        self.value.append(won)
        system.counts[(won <= 0.5) + (won == 0.5)] += 1
        if won != 0.5 and row.preference.source == "judge":
            _taste(system.tastes["longer"], won, *_by_length(task.reference, pair.output_2))
            _taste(system.tastes["lists"], won, task.listed, has_list(pair.output_2))


def _by_length(one: str, two: str) -> tuple[bool, bool]:
    return len(one) - len(two) > SIGNIFICANT_LENGTH, len(two) - len(one) > SIGNIFICANT_LENGTH


def _taste(counts: list[int], won: float, first: bool, second: bool) -> None:
    """Count a choice between two outputs of which exactly one is of the kind."""
    if first != second:
        counts[0] += second == (won > 0.5)
        counts[1] += 1


def boards_of_annotations(files: Sequence[Path]) -> list[Board]:
    """A board for each annotator and reference in `files`; output_1 is the reference's, output_2 the system's.

    Raises `DataError` naming file, row and field where a row is no judged pair, does not say whose outputs those are,
    or holds another output of the reference than earlier ones.
    """
    tallies: dict[tuple[str, str], _Tally] = {}
    for file in dict.fromkeys(files):
        for row, where in _judged(file):
            key = row.annotator or file.name, row.pair.generator_1
            tally = tallies.setdefault(key, _Tally(*key))
            tally.add(row, where, str(file))
    _require_sides(tallies)
    return [_board(tally) for tally in tallies.values()]


def _require_sides(tallies: Mapping[tuple[str, str], _Tally]) -> None:
    """Raises `DataError` where one annotator has a system as reference in some rows and beside one in others."""
    for (annotator, reference), tally in tallies.items():
        for (other, _), elsewhere in tallies.items():
            if other == annotator and reference in elsewhere.systems and elsewhere is not tally:
                raise DataError(
                    f"annotator {annotator!r}: {reference!r} is the reference (generator_1) in some rows and a system "
                    f"(generator_2) in others: afarm evaluate --annotations FILE… --reference {reference} turns them"
                )


def _judged(file: Path) -> Iterator[tuple[JudgedPair, str]]:
    for number, row in enumerate(read_rows(file)):
        where = f"{file}: row {number}"
        judged = JudgedPair.from_row(row, where)
        for name in ("generator_1", "generator_2"):
            if not getattr(judged.pair, name):
                raise DataError(f"{where}: field {name!r} is missing: which system's output is it?")
        yield judged, where


def _board(tally: _Tally) -> Board:
    if not tally.value:
        raise DataError(
            f"annotator {tally.annotator!r}: none of its {sum(s.rows for s in tally.systems.values())} "
            "annotations has an answer"
        )
    ids = {instruction.id: task.reference for instruction, task in tally.tasks.items()}
    judges = sorted({judge for system in tally.systems.values() for judge in system.judges} - {""})
    protocol = Protocol(
        annotator=tally.annotator,
        judges={str(number): judge for number, judge in enumerate(judges)},
        reference=tally.reference,
        reference_outputs=outputs_digest(ids),
        instructions=instructions_digest(ids),
    )
    wins = _wins(tally, tuple(ids))
    entries = [_entry(tally, name, system, wins) for name, system in tally.systems.items() if any(system.counts)]
    silent = [name for name, system in tally.systems.items() if not any(system.counts)]
    note = f"no annotation of {', '.join(silent)} has an answer" if silent else ""
    return ranked(Board(protocol, tuple(entries), note=note, wins=wins))


def _wins(tally: _Tally, ids: tuple[str, ...]) -> Wins:
    import numpy as np

    from afarm.wins import Wins

    return Wins(
        tally.reference,
        tuple(tally.systems),
        ids,
        np.asarray(tally.which, dtype=np.int64),
        np.asarray(tally.what, dtype=np.int64),
        np.asarray(tally.value, dtype=np.float64),
        tuple(system.unusable for system in tally.systems.values()),
    )


def _entry(tally: _Tally, name: str, system: _System, wins: Wins) -> Entry:
    from afarm.statistics import mean

    values, instructions = wins.labels(name)
    found = mean(values, instructions.tolist())
    shares = {name: chosen / among if among else None for name, (chosen, among) in system.tastes.items()}
    texts = [(instruction, output) for _, output, instruction in sorted(system.sample, reverse=True)]
    flags = text_flags(texts, [tally.tasks[instruction].reference for instruction, _ in texts])
    flags += [Flag("empty", system.empty, system.rows)] if system.empty else []
    flags += family_flags([(judge, tally.annotator, tally.reference, name) for judge in sorted(system.judges)], {})
    won, lost, drawn = system.counts
    return Entry(
        name,
        100 * found.value,
        None if found.error is None else 100 * found.error,
        len(values),
        won,
        lost,
        drawn,
        system.unusable,
        found.n / len(tally.tasks),
        system.characters / system.rows,
        prefers_longer=shares["longer"],
        prefers_lists=shares["lists"],
        flags=tuple(flag.sentence for flag in flags),
        source=Source(", ".join(sorted(system.files)), reference=tally.reference),
    )
