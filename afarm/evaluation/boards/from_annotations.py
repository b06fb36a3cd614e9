"""Leaderboards from annotation files, without a judge: rows are streamed, few texts are held.

Red flags look at a sample of each system's outputs. Labels of one system and instruction (several annotators, seeds)
are a cluster, and no more certain than one label is.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from afarm.core.errors import DataError
from afarm.core.records import Instruction, JudgedPair
from afarm.core.seeding import uniform
from afarm.evaluation.annotation_files import AnnotatedSystem, RowSink, annotated_systems
from afarm.evaluation.biases import SIGNIFICANT_LENGTH, has_list
from afarm.evaluation.boards.board import Entry, Leaderboard, Source, ranked
from afarm.evaluation.matching import counted, looks_swapped
from afarm.evaluation.red_flags import Flag, family_flags, text_flags

if TYPE_CHECKING:
    from afarm.evaluation.win_table import WinTable

SAMPLE = 64
"""Outputs held of each system: leaderboards have hundreds of systems."""


@dataclass(slots=True)
class _Tally:
    """Counts over the rows of a system.

    `absent` rows have no output_2 and are lost for that. `tasks` are the numbers of the instructions that have an
    answer, `wins` those of output_2. `biases` count, for the longer output and the list, how often the judge chose it
    and how often it could; `characters` are those of either output. `sample` holds (draw, output_1, output_2,
    instruction)s, the draw being the instruction's.
    """

    rows: int = 0
    absent: int = 0
    unusable: int = 0
    characters: list[int] = field(default_factory=lambda: [0, 0])
    tasks: array[int] = field(default_factory=lambda: array("q"))
    wins: array[float] = field(default_factory=lambda: array("d"))
    biases: dict[str, list[int]] = field(default_factory=lambda: {"longer": [0, 0], "lists": [0, 0]})
    sample: list[tuple[float, str, str, Instruction]] = field(default_factory=list)

    def add_to_sample(self, row: tuple[float, str, str, Instruction]) -> None:
        """Add a row if its instruction is among the first drawn; an output once, however many labels it has."""
        full = len(self.sample) == SAMPLE
        if (full and row[0] <= self.sample[0][0]) or any(other[:3] == row[:3] for other in self.sample):
            return
        (heapq.heapreplace if full else heapq.heappush)(self.sample, row)


class _Tallies(RowSink[_Tally]):
    """A sink that counts rows as they come. `ids` are the instructions by their number."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self._tasks: dict[int, tuple[int, float]] = {}
        self._listed: dict[int, bool] = {}

    def new_part(self) -> _Tally:
        return _Tally()

    def add(self, part: _Tally, judged: JudgedPair) -> None:
        pair, win, key = judged.pair, judged.win, hash(judged.pair.instruction)
        if key not in self._tasks:
            self._tasks[key] = len(self.ids), -uniform("sample of outputs", pair.instruction.id)
            self.ids.append(pair.instruction.id)
        number, draw = self._tasks[key]
        lengths = len(pair.output_1), len(pair.output_2)
        part.rows += 1
        part.characters[0] += lengths[0]
        part.characters[1] += lengths[1]
        part.absent += judged.unanswered
        if not judged.unanswered:
            part.add_to_sample((draw, pair.output_1, pair.output_2, pair.instruction))
        if win is None:
            part.unusable += 1
            return
        part.tasks.append(number)
        part.wins.append(win)
        if win != 0.5 and judged.preference.source == "judge":
            difference = lengths[1] - lengths[0]
            if abs(difference) > SIGNIFICANT_LENGTH:
                part.biases["longer"][0] += (difference > 0) == (win > 0.5)
                part.biases["longer"][1] += 1
            lists = self._has_list(pair.output_1), has_list(pair.output_2)
            if lists[0] != lists[1]:
                part.biases["lists"][0] += lists[1] == (win > 0.5)
                part.biases["lists"][1] += 1

    def _has_list(self, text: str) -> bool:
        """`has_list` of the first output, which is the same in many rows."""
        key = hash(text)
        if key not in self._listed:
            self._listed[key] = has_list(text)
        return self._listed[key]

    def merge(self, parts: Sequence[tuple[_Tally, bool]]) -> _Tally:
        if len(parts) == 1 and not parts[0][1]:
            return parts[0][0]
        merged = _Tally()
        for part, swap in parts:
            merged.rows += part.rows
            merged.absent += 0 if swap else part.absent
            merged.unusable += part.unusable
            merged.tasks += part.tasks
            merged.wins += array("d", (1 - win for win in part.wins)) if swap else part.wins
            for side, characters in enumerate(reversed(part.characters) if swap else part.characters):
                merged.characters[side] += characters
            for name, counts in part.biases.items():
                merged.biases[name] = [a + b for a, b in zip(merged.biases[name], counts, strict=True)]
            for draw, one, two, instruction in part.sample:
                merged.add_to_sample((draw, two, one, instruction) if swap else (draw, one, two, instruction))
        return merged


def boards_of_annotations(files: Sequence[Path]) -> list[Leaderboard]:
    """Make one leaderboard per annotator and reference in `files` (`afarm.evaluation.annotation_files`).

    Raises `DataError` as `annotated_systems` does, and if no row of a leaderboard has an answer.
    """
    tallies = _Tallies()
    by_protocol: dict[str, list[AnnotatedSystem[_Tally]]] = {}
    for system in annotated_systems(list(dict.fromkeys(files)), tallies):
        by_protocol.setdefault(system.protocol.id, []).append(system)
    return [_board(systems, tallies.ids) for systems in by_protocol.values()]


def _board(systems: Sequence[AnnotatedSystem[_Tally]], ids: Sequence[str]) -> Leaderboard:
    first = systems[0]
    judged = [system for system in systems if system.rows.wins]
    if not judged:
        raise DataError(
            f"annotator {first.annotator!r}: none of its {sum(system.rows.rows for system in systems)} "
            "annotations has an answer"
        )
    wins = _wins(systems, ids)
    return ranked(
        Leaderboard(first.protocol, tuple(_entry(one, wins) for one in judged), note=_note(systems), wins=wins)
    )


def _note(systems: Sequence[AnnotatedSystem[_Tally]]) -> str:
    """Caveats about the rows."""
    first, silent = systems[0], [system.system for system in systems if not system.rows.wins]
    swapped = sum(one.swapped for one in systems)
    changed = [system.system for system in systems if system.changed]
    notes = (
        f"no annotation of {', '.join(silent)} has an answer" if silent else "",
        f"{counted(swapped, 'row')} with the reference second: turned" if swapped else "",
        *(repeats for one in systems for repeats in one.repeats),
        f"{first.reference} answered otherwise here than to other systems" if changed else "",
        f"the labels of {len(first.annotators)} annotators of one file are taken for one pool's"
        if len(first.annotators) > 1
        else "",
        *(one.doubt for one in systems),
        *(warning for one in systems for warning in looks_swapped(one.system, one.reference)),
    )
    return "; ".join(filter(None, notes))


def _wins(systems: Sequence[AnnotatedSystem[_Tally]], ids: Sequence[str]) -> WinTable:
    import numpy as np

    from afarm.evaluation.win_table import WinTable

    numbers = {id: number for number, id in enumerate(systems[0].answers)}
    number = np.array([numbers.get(id, -1) for id in ids], dtype=np.int64)
    counts = [len(one.rows.tasks) for one in systems]
    return WinTable(
        systems[0].reference,
        tuple(one.system for one in systems),
        tuple(numbers),
        np.repeat(np.arange(len(systems)), counts),
        number[np.concatenate([np.asarray(one.rows.tasks, dtype=np.int64) for one in systems])],
        np.concatenate([np.asarray(one.rows.wins, dtype=np.float64) for one in systems]),
        tuple(one.rows.unusable for one in systems),
    )


def _entry(one: AnnotatedSystem[_Tally], wins: WinTable) -> Entry:
    from afarm.evaluation.statistics import mean

    tally, values = one.rows, wins.labels(one.system)[0]
    win_rate = mean(*wins.labels(one.system))
    shares = {name: chosen / possible if possible else None for name, (chosen, possible) in tally.biases.items()}
    sample = sorted(tally.sample, key=lambda row: row[0], reverse=True)
    flags = text_flags([(instruction, output) for *_, output, instruction in sample], [row[1] for row in sample])
    flags += [Flag("empty", one.coverage.empty, tally.rows - tally.absent)] if one.coverage.empty else []
    flags += family_flags([(judge, one.annotator, one.reference, one.system) for judge in one.judges or ("",)], {})
    return Entry(
        one.system,
        100 * win_rate.value,
        None if win_rate.error is None else 100 * win_rate.error,
        len(values),
        int((values > 0.5).sum()),
        int((values < 0.5).sum()),
        int((values == 0.5).sum()),
        tally.unusable,
        win_rate.n / len(wins.instructions),
        tally.characters[1] / (tally.rows - tally.absent) if tally.rows > tally.absent else None,
        prefers_longer=shares["longer"],
        prefers_lists=shares["lists"],
        flags=tuple(flag.sentence for flag in flags),
        instructions=win_rate.n,
        source=Source(", ".join(sorted(one.files)), reference=one.reference),
    )
