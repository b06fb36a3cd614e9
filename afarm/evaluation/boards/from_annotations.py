"""Leaderboards from annotation files, without a judge: rows are streamed, few texts are held.

Red flags look at a sample of each system's outputs. Labels of one system and instruction (several annotators, seeds)
are a cluster, and no more certain than one label is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from afarm.core.errors import DataError
from afarm.core.records import Instruction, JudgedPair
from afarm.core.seeding import uniform
from afarm.evaluation.annotation_files import AnnotatedSystem, annotated_systems
from afarm.evaluation.biases import longer, with_list
from afarm.evaluation.boards.board import Entry, Leaderboard, Source, entry_of_wins, ranked
from afarm.evaluation.matching import counted, looks_swapped
from afarm.evaluation.red_flags import Flag, family_flags, text_flags
from afarm.evaluation.spilled_rows import read_each

if TYPE_CHECKING:
    from afarm.evaluation.win_table import WinTable

SAMPLE = 64
"""Outputs held of each system: leaderboards have hundreds of systems."""


@dataclass(slots=True)
class _Tally:
    """Counts over the `rows` of a system. `answered` of them have an output_2, of `characters` in all.

    `longer` and `lists` say of each choice between outputs that differ in it if it was for the longer one, and for the
    one with a list. `sample` holds instructions by (draw of the instruction, output_1, output_2).
    """

    rows: int = 0
    answered: int = 0
    characters: int = 0
    longer: list[bool] = field(default_factory=list)
    lists: list[bool] = field(default_factory=list)
    sample: dict[tuple[float, str, str], Instruction] = field(default_factory=dict)

    def add(self, judged: JudgedPair, draw: float) -> None:
        pair, win = judged.pair, judged.win
        self.rows += 1
        self.characters += len(pair.output_2)
        if not judged.unanswered:
            self.answered += 1
            self.sample[draw, pair.output_1, pair.output_2] = pair.instruction
            if len(self.sample) >= 2 * SAMPLE:
                self.cut_sample()
        if win is not None and win != 0.5 and judged.preference.source == "judge":
            chosen = 2 if win > 0.5 else 1
            for choices, feature in ((self.longer, longer), (self.lists, with_list)):
                if (wanted := feature(pair.output_1, pair.output_2)) is not None:
                    choices.append(wanted == chosen)

    def cut_sample(self) -> None:
        """Keep the outputs of the instructions that are drawn first."""
        self.sample = dict(sorted(self.sample.items(), key=lambda item: item[0][0])[:SAMPLE])


def boards_of_annotations(files: Sequence[Path]) -> list[Leaderboard]:
    """Make one leaderboard per annotator and reference. Raises `DataError` as `annotated_systems` does."""
    by_protocol: dict[str, list[AnnotatedSystem]] = {}
    with TemporaryDirectory() as directory:
        for system in annotated_systems(list(dict.fromkeys(files)), Path(directory)):
            by_protocol.setdefault(system.protocol.id, []).append(system)
        return [_board(systems) for systems in by_protocol.values()]


def _board(systems: Sequence[AnnotatedSystem]) -> Leaderboard:
    from afarm.evaluation.win_table import wins

    first, tallies = systems[0], [_Tally() for _ in systems]
    table = wins(_counted(systems, tallies), instructions=first.answers)
    counts = [int((table.system == number).sum()) for number in range(len(systems))]
    if not any(counts):
        rows = sum(tally.rows for tally in tallies)
        raise DataError(f"annotator {first.annotator!r}: none of its {rows} annotations has an answer")
    each = list(zip(systems, tallies, counts, strict=True))
    entries = tuple(_entry(one, tally, table) for one, tally, count in each if count)
    silent = [one.system for one, _, count in each if not count]
    return ranked(Leaderboard(first.protocol, entries, note=_note(systems, silent), wins=table))


def _counted(systems: Sequence[AnnotatedSystem], tallies: Sequence[_Tally]) -> Iterator[JudgedPair]:
    """Stream the rows of all systems, counting them."""
    draws: dict[Instruction, float] = {}
    for one, tally in zip(systems, tallies, strict=True):
        for row in read_each(one.rows):
            asked = row.pair.instruction
            if asked not in draws:
                draws[asked] = uniform("sample of outputs", asked.id)
            tally.add(row, draws[asked])
            yield row


def _note(systems: Sequence[AnnotatedSystem], silent: Sequence[str]) -> str:
    """Caveats about the rows; `silent` systems have no answer."""
    first, swapped = systems[0], sum(one.swapped for one in systems)
    notes = (
        f"no annotation of {', '.join(silent)} has an answer" if silent else "",
        f"{counted(swapped, 'row')} with the reference second: turned" if swapped else "",
        *(repeats for one in systems for repeats in one.repeats),
        f"{first.reference} answered otherwise here than to other systems" if any(s.changed for s in systems) else "",
        f"the labels of {len(first.annotators)} annotators of one file are taken for one pool's"
        if len(first.annotators) > 1
        else "",
        *(one.doubt for one in systems),
        *(warning for one in systems for warning in looks_swapped(one.system, one.reference)),
    )
    return "; ".join(filter(None, notes))


def _entry(one: AnnotatedSystem, tally: _Tally, wins: WinTable) -> Entry:
    values, tasks = (array.tolist() for array in wins.labels(one.system))
    tally.cut_sample()
    flags = text_flags(
        [(instruction, output) for (_, _, output), instruction in tally.sample.items()],
        [reference for _, reference, _ in tally.sample],
    )
    flags += [Flag("empty", one.coverage.empty, tally.answered)] if one.coverage.empty else []
    flags += family_flags([(judge, one.annotator, one.reference, one.system) for judge in one.judges or ("",)], {})
    return entry_of_wins(
        one.system,
        values,
        tasks,
        unparsed=wins.unusable[wins.number(one.system)],
        coverage=len(set(tasks)) / len(wins.instructions),
        length=tally.characters / tally.answered if tally.answered else None,
        prefers_longer=fmean(tally.longer) if tally.longer else None,
        prefers_lists=fmean(tally.lists) if tally.lists else None,
        flags=tuple(flag.sentence for flag in flags),
        source=Source(", ".join(sorted(one.files)), reference=one.reference),
    )
