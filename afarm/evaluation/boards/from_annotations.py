"""Leaderboards from annotation files, without a judge: rows are streamed, few texts are held.

Red flags look at a sample of each system's outputs. Labels of one system and instruction (several annotators, seeds)
are a cluster, and no more certain than one label is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from afarm.core.errors import DataError
from afarm.core.records import JudgedPair
from afarm.evaluation.annotation_files import AnnotatedSystem, annotated_systems
from afarm.evaluation.boards.board import Entry, Leaderboard, Source, entry_of_wins, ranked
from afarm.evaluation.judge_flags import family_flags
from afarm.evaluation.matching import counted, looks_swapped
from afarm.evaluation.red_flags import Inspection
from afarm.evaluation.spilled_rows import read_each

if TYPE_CHECKING:
    from afarm.evaluation.win_table import WinTable

SAMPLE = 64
"""Outputs held of each system: leaderboards have hundreds of systems."""


def boards_of_annotations(files: Sequence[Path]) -> list[Leaderboard]:
    """Make one leaderboard per annotator and reference. Raises `DataError` as `annotated_systems` does."""
    by_protocol: dict[str, list[AnnotatedSystem]] = {}
    with TemporaryDirectory() as directory:
        for system in annotated_systems(list(dict.fromkeys(files)), Path(directory)):
            by_protocol.setdefault(system.protocol.id, []).append(system)
        return [_board(systems) for systems in by_protocol.values()]


def _board(systems: Sequence[AnnotatedSystem]) -> Leaderboard:
    from afarm.evaluation.win_table import wins

    first, inspections = systems[0], [Inspection(SAMPLE) for _ in systems]

    def judgements() -> Iterator[JudgedPair]:
        for one, inspection in zip(systems, inspections, strict=True):
            for row in read_each(one.rows):
                inspection.add(row)
                yield row

    table = wins(judgements(), instructions=first.answers)
    counts = [int((table.system == number).sum()) for number in range(len(systems))]
    if not any(counts):
        rows = sum(inspection.tally.rows for inspection in inspections)
        raise DataError(f"annotator {first.annotator!r}: none of its {rows} annotations has an answer")
    each = list(zip(systems, inspections, counts, strict=True))
    entries = tuple(_entry(one, inspection, table) for one, inspection, count in each if count)
    silent = [one.system for one, _, count in each if not count]
    return ranked(Leaderboard(first.protocol, entries, note=_note(systems, silent), wins=table))


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


def _entry(one: AnnotatedSystem, inspection: Inspection, wins: WinTable) -> Entry:
    values, tasks = (array.tolist() for array in wins.labels(one.system))
    found = inspection.result()
    family = family_flags([(judge, one.annotator, one.reference, one.system) for judge in one.judges or ("",)], {})
    return entry_of_wins(
        one.system,
        values,
        tasks,
        unparsed=wins.unusable[wins.number(one.system)],
        coverage=len(set(tasks)) / len(wins.instructions),
        length=inspection.characters / inspection.answered if inspection.answered else None,
        prefers_longer=found.prefers_longer.value if found.prefers_longer else None,
        prefers_lists=found.prefers_lists.value if found.prefers_lists else None,
        flags=tuple(flag.sentence for flag in (*found.flags, *family)),
        source=Source(", ".join(sorted(one.files)), reference=one.reference),
    )
