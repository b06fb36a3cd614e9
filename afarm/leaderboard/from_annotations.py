"""Boards from stored annotations, with no judge: read as they come, so that memory holds numbers and few texts.

Of each system a sample of outputs is kept, for the guards; what they say is of those. Labels of one system and
instruction (several annotators' seeds) are a cluster, and no more sure than one is.
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
from afarm.evaluation.matching import counted, looks_swapped
from afarm.evaluation.red_flags import Flag, family_flags, text_flags
from afarm.leaderboard.board import Entry, Leaderboard, Source, ranked

if TYPE_CHECKING:
    from afarm.evaluation.win_table import WinTable

SAMPLE = 64
"""Outputs of each system that are kept: boards have hundreds of systems."""


@dataclass(slots=True)
class _Tally:
    """What is kept of rows. `absent` are those without an output_2, lost for that. `what` are the numbers of the
    instructions that have an answer, `value` the wins of output_2. `tastes` are, for the longer output and the list,
    how often the judge chose it and how often it could, `characters` those of either output, `sample` rows with their
    instruction's draw."""

    rows: int = 0
    absent: int = 0
    unusable: int = 0
    characters: list[int] = field(default_factory=lambda: [0, 0])
    what: array[int] = field(default_factory=lambda: array("q"))
    value: array[float] = field(default_factory=lambda: array("d"))
    tastes: dict[str, list[int]] = field(default_factory=lambda: {"longer": [0, 0], "lists": [0, 0]})
    sample: list[tuple[float, str, str, Instruction]] = field(default_factory=list)

    def keep(self, one: tuple[float, str, str, Instruction]) -> None:
        """Keep it in the sample, where its instruction is among the first drawn; an output once, however many labels it
        has."""
        full = len(self.sample) == SAMPLE
        if (full and one[0] <= self.sample[0][0]) or any(other[:3] == one[:3] for other in self.sample):
            return
        (heapq.heapreplace if full else heapq.heappush)(self.sample, one)


class _Counting(RowSink[_Tally]):
    """Rows counted as they come. `ids` are the instructions by their number."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self._tasks: dict[int, tuple[int, float]] = {}
        self._listed: dict[int, bool] = {}

    def part(self) -> _Tally:
        return _Tally()

    def add(self, part: _Tally, judged: JudgedPair) -> None:
        pair, won, key = judged.pair, judged.win, hash(judged.pair.instruction)
        if key not in self._tasks:
            self._tasks[key] = len(self.ids), -uniform("sample of outputs", pair.instruction.id)
            self.ids.append(pair.instruction.id)
        number, drawn = self._tasks[key]
        lengths = len(pair.output_1), len(pair.output_2)
        part.rows += 1
        part.characters[0] += lengths[0]
        part.characters[1] += lengths[1]
        part.absent += judged.unanswered
        if not judged.unanswered:
            part.keep((drawn, pair.output_1, pair.output_2, pair.instruction))
        if won is None:
            part.unusable += 1
            return
        part.what.append(number)
        part.value.append(won)
        if won != 0.5 and judged.preference.source == "judge":
            longer = lengths[1] - lengths[0]
            if abs(longer) > SIGNIFICANT_LENGTH:
                part.tastes["longer"][0] += (longer > 0) == (won > 0.5)
                part.tastes["longer"][1] += 1
            lists = self._has_list(pair.output_1), has_list(pair.output_2)
            if lists[0] != lists[1]:
                part.tastes["lists"][0] += lists[1] == (won > 0.5)
                part.tastes["lists"][1] += 1

    def _has_list(self, text: str) -> bool:
        """Of the first output, which is the same in many rows."""
        key = hash(text)
        if key not in self._listed:
            self._listed[key] = has_list(text)
        return self._listed[key]

    def whole(self, parts: Sequence[tuple[_Tally, bool]]) -> _Tally:
        if len(parts) == 1 and not parts[0][1]:
            return parts[0][0]
        found = _Tally()
        for part, turned in parts:
            found.rows += part.rows
            found.absent += 0 if turned else part.absent
            found.unusable += part.unusable
            found.what += part.what
            found.value += array("d", (1 - won for won in part.value)) if turned else part.value
            for side, characters in enumerate(reversed(part.characters) if turned else part.characters):
                found.characters[side] += characters
            for name, counts in part.tastes.items():
                found.tastes[name] = [a + b for a, b in zip(found.tastes[name], counts, strict=True)]
            for drawn, one, two, instruction in part.sample:
                found.keep((drawn, two, one, instruction) if turned else (drawn, one, two, instruction))
        return found


def boards_of_annotations(files: Sequence[Path]) -> list[Leaderboard]:
    """A board for each annotator and reference in `files`, read as `afarm.evaluation.annotation_files` says.

    Raises `DataError` as `annotated_systems` does, and where no row of a board has an answer.
    """
    counting = _Counting()
    together: dict[str, list[AnnotatedSystem[_Tally]]] = {}
    for system in annotated_systems(list(dict.fromkeys(files)), counting):
        together.setdefault(system.protocol.id, []).append(system)
    return [_board(systems, counting.ids) for systems in together.values()]


def _board(systems: Sequence[AnnotatedSystem[_Tally]], ids: Sequence[str]) -> Leaderboard:
    first = systems[0]
    judged = [system for system in systems if system.kept.value]
    if not judged:
        raise DataError(
            f"annotator {first.annotator!r}: none of its {sum(system.kept.rows for system in systems)} "
            "annotations has an answer"
        )
    wins = _wins(systems, ids)
    return ranked(
        Leaderboard(first.protocol, tuple(_entry(one, wins) for one in judged), note=_note(systems), wins=wins)
    )


def _note(systems: Sequence[AnnotatedSystem[_Tally]]) -> str:
    """What was odd about the rows."""
    first, silent = systems[0], [system.system for system in systems if not system.kept.value]
    turned, repeated = sum(one.turned for one in systems), sum(one.coverage.repeated for one in systems)
    changed = [system.system for system in systems if system.changed]
    notes = (
        f"no annotation of {', '.join(silent)} has an answer" if silent else "",
        f"{counted(turned, 'row')} with the reference second: turned" if turned else "",
        f"{counted(repeated, 'repeated row')} dropped" if repeated else "",
        f"{first.reference} answered otherwise here than to other systems" if changed else "",
        f"the labels of {len(first.annotators)} annotators of one file are taken for one pool's"
        if len(first.annotators) > 1
        else "",
        *(warning for one in systems for warning in looks_swapped(one.system, one.reference)),
    )
    return "; ".join(filter(None, notes))


def _wins(systems: Sequence[AnnotatedSystem[_Tally]], ids: Sequence[str]) -> WinTable:
    import numpy as np

    from afarm.evaluation.win_table import WinTable

    numbers = {id: number for number, id in enumerate(systems[0].answers)}
    number = np.array([numbers.get(id, -1) for id in ids], dtype=np.int64)
    counts = [len(one.kept.what) for one in systems]
    return WinTable(
        systems[0].reference,
        tuple(one.system for one in systems),
        tuple(numbers),
        np.repeat(np.arange(len(systems)), counts),
        number[np.concatenate([np.asarray(one.kept.what, dtype=np.int64) for one in systems])],
        np.concatenate([np.asarray(one.kept.value, dtype=np.float64) for one in systems]),
        tuple(one.kept.unusable for one in systems),
    )


def _entry(one: AnnotatedSystem[_Tally], wins: WinTable) -> Entry:
    from afarm.statistics import mean

    kept, values = one.kept, wins.labels(one.system)[0]
    found = mean(*wins.labels(one.system))
    shares = {name: chosen / among if among else None for name, (chosen, among) in kept.tastes.items()}
    sample = sorted(kept.sample, key=lambda row: row[0], reverse=True)
    flags = text_flags([(instruction, output) for *_, output, instruction in sample], [row[1] for row in sample])
    flags += [Flag("empty", one.coverage.empty, kept.rows - kept.absent)] if one.coverage.empty else []
    flags += family_flags([(judge, one.annotator, one.reference, one.system) for judge in one.judges or ("",)], {})
    return Entry(
        one.system,
        100 * found.value,
        None if found.error is None else 100 * found.error,
        len(values),
        int((values > 0.5).sum()),
        int((values < 0.5).sum()),
        int((values == 0.5).sum()),
        kept.unusable,
        found.n / len(wins.instructions),
        kept.characters[1] / (kept.rows - kept.absent) if kept.rows > kept.absent else None,
        prefers_longer=shares["longer"],
        prefers_lists=shares["lists"],
        flags=tuple(flag.sentence for flag in flags),
        instructions=found.n,
        source=Source(", ".join(sorted(one.files)), reference=one.reference),
    )
