"""Ranks with intervals and paired differences to the first of a board, from the judgements behind it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from afarm.boards.board import Board, Entry
from afarm.errors import DataError
from afarm.files import read_rows
from afarm.records import JudgedPair

if TYPE_CHECKING:
    from afarm.wins import Wins


def with_ranks(board: Board, seed: int = 0) -> tuple[Board, list[str]]:
    """`board` with what its judgements tell of ranks and differences, and what stands in the way, as sentences.

    Systems without judgements at hand keep their place and have no interval; fewer than two with some leave the board
    as it is. Raises `DataError` naming the file and row of a judgement that cannot be read.
    """
    from afarm import statistics

    wins = board.wins or judged(board)
    if wins is None or len(wins.systems) < 2:
        return board, []
    table = wins.table
    usable = [row for row, name in enumerate(wins.systems) if (table[row] == table[row]).sum() > 1]
    if len(usable) < 2:
        return board, []
    table, names = table[usable], [wins.systems[row] for row in usable]
    places = {entry.system: entry.rank for entry in board.entries}
    leader = min(range(len(names)), key=lambda row: places[names[row]])
    found = dict(zip(names, statistics.ranks(table, seed=seed), strict=True))
    gaps = dict(zip(names, statistics.differences(table, leader, best=True, seed=seed), strict=True))
    missing = [entry.system for entry in board.entries if entry.system not in found]
    said = [f"no ranks with intervals for {', '.join(missing)}: no judgements are at hand"] if missing else []
    entries = []
    for entry in board.entries:
        rank, gap = found.get(entry.system), gaps.get(entry.system)
        if rank is not None and not missing:  # among the others alone, a place would be too good
            entry = replace(entry, rank_low=rank.low, rank_high=rank.high)
        if gap is not None:
            low, high = (None if end is None else 100 * end for end in (gap.low, gap.high))
            entry = replace(
                entry, difference=100 * gap.value, difference_low=low, difference_high=high, p_value=gap.adjusted
            )
        entries.append(entry)
    return replace(board, entries=tuple(entries), wins=wins), said


def judged(board: Board) -> Wins | None:
    """The judgements of a board's entries, read from where they are stored; None where none are."""
    from afarm.wins import wins

    if not any(entry.source.judgements and Path(entry.source.judgements).is_file() for entry in board.entries):
        return None
    return wins(pair for entry in board.entries for pair in judgements(entry))


def judgements(entry: Entry) -> Iterator[JudgedPair]:
    """The stored judgements of an entry, its system and reference called as the board calls them."""
    path = Path(entry.source.judgements)
    if not entry.source.judgements or not path.is_file():
        return
    for number, row in enumerate(read_rows(path)):
        found = JudgedPair.from_row(row, f"{path}: row {number}")
        pair = replace(found.pair, generator_1=entry.source.reference or "reference", generator_2=entry.system)
        yield replace(found, pair=pair)


def evaluated(board: Board, name: str, files: tuple[Path, ...] = ()) -> Board:
    """`board` with the figures of the evaluator `name`, one that looks at all systems at once, over its judgements:
    those of `files`, or of its runs. Raises `DataError` where there are none, or the evaluator is none of that kind."""
    from afarm.interfaces import EvaluationInputs
    from afarm.plugins import discover

    component = discover(check_configs=False).get("evaluators", name)
    made = component.load()
    evaluator = made(component.settings({})) if component.config else made()
    if not evaluator.many:
        raise DataError(f"evaluator {name!r} looks at one system: `afarm evaluate --set evaluate.evaluators=[{name}]`")
    rows = list(_all_judgements(board, files))
    if not rows:
        raise DataError(f"{board.heading}: {name} needs judgements, and none are at hand: give runs or annotations")
    systems = {row["system"]: row for row in evaluator.evaluate(EvaluationInputs("", (), judgements=rows)).rows}
    entries = [
        replace(entry, figures={**entry.figures, name: _main_figure(name, systems.get(entry.system, {}))})
        for entry in board.entries
    ]
    return replace(board, entries=tuple(entries))


def _all_judgements(board: Board, files: tuple[Path, ...]) -> Iterator[JudgedPair]:
    systems = {entry.system for entry in board.entries}
    if any(entry.source.judgements for entry in board.entries):
        for entry in board.entries:
            yield from judgements(entry)
        return
    for file in files:
        for number, row in enumerate(read_rows(file)):
            found = JudgedPair.from_row(row, f"{file}: row {number}")
            same = (found.annotator or file.name, found.pair.generator_1)
            if same == (board.protocol.annotator, board.protocol.reference) and found.pair.generator_2 in systems:
                yield found


def _main_figure(name: str, row: dict[str, object]) -> float | None:
    """The figure called like its evaluator, or else on Elo's scale, or the first of a row."""
    for column in (name, "elo", "strength"):
        value = row.get(column)
        if isinstance(value, int | float):
            return float(value)
    return None
