"""Ranks with intervals and paired differences to the first of a board, from the judgements behind it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from afarm.core.errors import DataError
from afarm.core.records import Instruction, JudgedPair, Row
from afarm.evaluation.annotation_files import RowSink, annotated_systems
from afarm.evaluation.metrics import finite_number
from afarm.leaderboard.board import Entry, Leaderboard, Metric, ranked
from afarm.storage.rows import read_rows

if TYPE_CHECKING:
    from afarm.evaluation.win_table import WinTable
    from afarm.statistics.intervals import Floats


def with_ranks(board: Leaderboard, seed: int = 0) -> tuple[Leaderboard, list[str]]:
    """`board` with what its judgements tell of ranks and differences, and what stands in the way, as sentences.

    Differences are to the first system that has judgements, on the instructions that both have. Systems without
    judgements at hand keep their place and have no interval; fewer than two with some leave the board as it is, and so
    does not knowing how they were judged. Raises `DataError` naming the file and row of a judgement that cannot be
    read.
    """
    if not board.protocol.known:
        return board, []
    wins = board.wins or judged(board)
    if wins is None or len(wins.systems) < 2:
        return board, []
    board = ranked(replace(board, wins=wins))
    table = dict(zip(wins.systems, wins.table, strict=True))
    usable = {e.system: e for e in board.entries if e.system in table and (table[e.system] >= 0).sum() > 1}
    if len(usable) < 2:
        return board, []
    differing = _differences({name: table[name] for name in usable}, seed)
    placed = [entry.system for entry in board.entries if not entry.partial]
    places, said = {}, []
    if missing := [name for name in placed if name not in usable]:
        # Among the others alone, a place would be too good.
        said = [f"no ranks with intervals for {', '.join(missing)}: no judgements are at hand"]
    elif placed:
        places = _places({name: table[name] for name in placed}, seed)
    told = {name: {**places.get(name, {}), **differing.get(name, {})} for name in usable}
    return replace(board, entries=tuple(replace(e, **told.get(e.system, {})) for e in board.entries)), said


def _places(table: Mapping[str, Floats], seed: int) -> dict[str, dict[str, int]]:
    """Between which places each system truly lies."""
    from afarm.statistics import rank_intervals

    found = rank_intervals(list(table.values()), seed=seed)
    return {name: {"rank_low": rank.low, "rank_high": rank.high} for name, rank in zip(table, found, strict=True)}


def _differences(table: Mapping[str, Floats], seed: int) -> dict[str, dict[str, Any]]:
    """What is known of each system's difference to the first of `table`, in points."""
    from afarm.statistics import paired_differences

    leader, told = next(iter(table)), {}
    for name, gap in zip(table, paired_differences(list(table.values()), 0, best=True, seed=seed), strict=True):
        if gap is not None:
            given = {"": gap.value, "_low": gap.low, "_high": gap.high}
            points = {f"difference{end}": None if value is None else 100 * value for end, value in given.items()}
            detectable = 100 * gap.detectable if gap.detectable else None  # without any spread nothing is told
            told[name] = {**points, "p_value": gap.adjusted, "difference_to": leader, "detectable": detectable}
    return told


def judged(board: Leaderboard) -> WinTable | None:
    """The judgements of a board's entries, read from where they are stored; None where none are."""
    from afarm.evaluation.win_table import wins

    if not any(entry.source.judgements and Path(entry.source.judgements).is_file() for entry in board.entries):
        return None
    return wins(pair for entry in board.entries for pair in judgements(entry))


def judgements(entry: Entry) -> Iterator[JudgedPair]:
    """The stored judgements of an entry, its system and reference called as the board calls them."""
    path = Path(entry.source.judgements)
    if not entry.source.judgements or not path.is_file():
        return
    for at, row in enumerate(read_rows(path)):
        found = JudgedPair.from_row(row, f"{path}: row {at}")
        pair = replace(found.pair, generator_1=entry.source.reference or "reference", generator_2=entry.system)
        yield replace(found, pair=pair)


Measured = tuple[JudgedPair, tuple[int, int]]
"""A judgement without its outputs' texts, and their lengths in characters."""


class WithoutTexts(RowSink[list[Measured]]):
    """Rows of annotations for evaluators that look at all of them: memory holds labels, and an instruction once."""

    def __init__(self) -> None:
        self._instructions: dict[Instruction, Instruction] = {}

    def part(self) -> list[Measured]:
        return []

    def add(self, part: list[Measured], judged: JudgedPair) -> None:
        part.append((self.bare(judged), (len(judged.pair.output_1), len(judged.pair.output_2))))

    def bare(self, judged: JudgedPair) -> JudgedPair:
        """The judgement with empty outputs."""
        asked = self._instructions.setdefault(judged.pair.instruction, judged.pair.instruction)
        return replace(judged, pair=replace(judged.pair, instruction=asked, output_1="", output_2=""))

    def whole(self, parts: Sequence[tuple[list[Measured], bool]]) -> list[Measured]:
        return [
            (replace(row, pair=row.pair.swapped(), preference=row.preference.swapped()), lengths[::-1])
            if turned
            else (row, lengths)
            for rows, turned in parts
            for row, lengths in rows
        ]


def stored_judgements(files: Sequence[Path]) -> dict[str, list[JudgedPair]]:
    """The judgements in files of annotations, without texts, by the id of their board's protocol.

    Raises `DataError` as `afarm.evaluation.annotation_files.annotated_systems` does."""
    found: dict[str, list[JudgedPair]] = {}
    for one in annotated_systems(files, WithoutTexts()):
        found.setdefault(one.protocol.id, []).extend(row for row, _ in one.kept)
    return found


def evaluated(
    board: Leaderboard, names: Sequence[str], stored: Mapping[str, Sequence[JudgedPair]] | None = None
) -> Leaderboard:
    """`board` with the figures of the evaluators `names` over its judgements: those of its runs, or those `stored`
    (`stored_judgements`). Raises `DataError` where there are none, or as `with_metrics`."""
    bare = WithoutTexts().bare
    rows: Sequence[JudgedPair] = [bare(row) for entry in board.entries for row in judgements(entry)]
    rows = rows or (stored or {}).get(board.protocol.id, ())
    if not rows:
        raise DataError(
            f"{board.heading}: {', '.join(names)}: no judgements are at hand for this: give runs or annotations"
        )
    for name in dict.fromkeys(names):
        board = with_metrics(board, name, rows)
    return board


def with_metrics(board: Leaderboard, name: str, rows: Sequence[JudgedPair]) -> Leaderboard:
    """`board` with what the evaluator `name` makes of `rows`. Raises `DataError` for one that does not look at all
    systems of a board at once, and what it raises itself."""
    from afarm.core.interfaces import EvaluationInputs
    from afarm.core.plugins import discover

    component = discover(check_configs=False).get("evaluators", name)
    made = component.load()
    evaluator = made(component.settings({})) if component.config else made()
    if not evaluator.many:
        raise DataError(f"evaluator {name!r} looks at one system: `afarm evaluate --set evaluate.evaluators=[{name}]`")
    found = _metrics(name, evaluator.evaluate(EvaluationInputs("", (), judgements=rows)).rows)
    entries = [
        replace(entry, metrics={**entry.metrics, name: found[entry.system]}) if entry.system in found else entry
        for entry in board.entries
    ]
    return replace(board, entries=tuple(entries))


def _metrics(name: str, rows: Iterable[Row]) -> dict[str, Metric]:
    """The figure of each system in the rows of the evaluator `name`: that called like it, or else on Elo's scale, or
    its strength, with the interval beside it."""
    found = {}
    for row in rows:
        main = next(
            (column for column in (name, "elo", "strength") if finite_number(row.get(column)) is not None), None
        )
        if main is not None:
            ends = ("low", "high") if main == "strength" else (f"{main}_low", f"{main}_high")
            low, high = (finite_number(row.get(end)) for end in ends)
            n, flag = row.get("n_total"), str(row.get("flag") or "")
            found[str(row["system"])] = Metric(row[main], low=low, high=high, n=n, flag=flag)
    return found
