"""Leaderboards of systems that met each other directly, in the order of an evaluator over all of them.

If systems were not all compared with one reference, a win rate says whom a system met as much as how good it is. A
model of all judgements together, such as Bradley–Terry's, needs no common reference, only that the systems that met
are connected.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from afarm.core.errors import DataError
from afarm.core.records import Instruction, JudgedPair
from afarm.evaluation.annotation_files import rows_by_annotators
from afarm.evaluation.boards.board import Entry, Leaderboard, Source, entry_of_wins, named, ranked
from afarm.evaluation.boards.ranking import Sections, with_metrics, without_texts
from afarm.evaluation.protocol import EvaluationProtocol, instructions_digest
from afarm.evaluation.spilled_rows import read_each

Met = tuple[JudgedPair, tuple[int, int], str]
"""A judgement without its outputs' texts, their lengths in characters, and its file."""


def round_robins(
    files: Sequence[Path], order: str, further: Sequence[str] = (), settings: Sections | None = None
) -> list[Leaderboard]:
    """Rank all systems that met in annotation `files` by the evaluator `order`, one board per annotator.

    The metrics of the `further` evaluators stand beside. Raises `DataError` as `rows_by_annotators` does, and if an
    evaluator does not look at all systems at once, or cannot rank them (groups of them never met, say).
    """
    by_annotators: dict[tuple[str, ...], list[Met]] = {}
    held: dict[Instruction, Instruction] = {}
    with TemporaryDirectory() as directory:
        for file, annotators, path in rows_by_annotators(list(dict.fromkeys(files)), Path(directory)):
            met = by_annotators.setdefault(annotators, [])
            for row in read_each(path):
                pair = row.pair
                if pair.generator_1 != pair.generator_2:
                    met.append((without_texts(row, held), (len(pair.output_1), len(pair.output_2)), file))
    if not by_annotators:
        raise DataError(f"--order-by {order} ranks the systems of annotations: name files of them with --annotations")
    return [_board(" + ".join(names), rows, (order, *further), settings) for names, rows in by_annotators.items()]


def _board(annotator: str, rows: Sequence[Met], names: Sequence[str], settings: Sections | None) -> Leaderboard:
    pairs = [row for row, _, _ in rows]
    judges = sorted({row.preference.judge for row in pairs} - {""})
    board = Leaderboard(
        EvaluationProtocol(
            annotator,
            judges={str(number): judge for number, judge in enumerate(judges)},
            instructions=instructions_digest({row.pair.instruction.id for row in pairs}),
        ),
        tuple(_entries(rows)),
        f"judged by {', '.join((annotator, *judges))}, against each other",
        f"in the order of {names[0]}; a win rate is over whom the system met",
        names[0],
    )
    try:
        for name in dict.fromkeys(names):
            board = with_metrics(board, name, pairs, settings)
    except DataError as error:
        raise DataError(f"{named(list(dict.fromkeys(file for *_, file in rows)), 'files')}: {error}") from error
    return ranked(board)


def _entries(rows: Sequence[Met]) -> list[Entry]:
    """One entry per system, over all that it met."""
    met: dict[str, list[tuple[float | None, str, int]]] = {}
    files: dict[str, dict[str, None]] = {}
    for row, lengths, file in rows:
        pair, won = row.pair, row.win
        shares = None if won is None else 1 - won, won
        for name, share, length in zip((pair.generator_1, pair.generator_2), shares, lengths, strict=True):
            met.setdefault(name, []).append((share, pair.instruction.id, length))
            files.setdefault(name, {})[file] = None
    return [_entry(name, games, ", ".join(files[name])) for name, games in met.items()]


def _entry(name: str, games: Sequence[tuple[float | None, str, int]], source: str) -> Entry:
    usable = [(value, task) for value, task, _ in games if value is not None]
    if not usable:
        raise DataError(f"none of the {len(games)} annotations of {name!r} has an answer: leave it out")
    values, tasks = zip(*usable, strict=True)
    length = sum(characters for *_, characters in games) / len(games) or None
    return entry_of_wins(name, values, tasks, unparsed=len(games) - len(values), length=length, source=Source(source))
