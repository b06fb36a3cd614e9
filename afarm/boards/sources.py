"""Boards from wherever results are: a folder of runs, a shared board, an AlpacaEval leaderboard, stored annotations."""

from __future__ import annotations

import csv
import gzip
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from afarm.boards.annotations import boards_of_annotations
from afarm.boards.board import Board, Entry, Source, group, ranked
from afarm.errors import DataError, did_you_mean
from afarm.guards import sentences
from afarm.protocol import Protocol

REFERENCE_BOARDS = {"paper": "paper.json"}
"""Boards that ship with afarm, by the name that stands for them."""
NO_PROTOCOL = "results that say nothing of how they were judged: no two of them may be compared"
IMPORTED = "imported from a table, which does not say how it was judged"
STOPPED_EARLY = "judged until it was clear, so that there is no standard error"
TABLES = (".csv", ".csv.gz")

COLUMNS = {
    "win_rate": "win_rate",
    "standard_error": "standard_error",
    "n": "n_total",
    "instructions": "n_instructions",
    "wins": "n_wins",
    "losses": "n_wins_base",
    "draws": "n_draws",
    "unparsed": "n_unparsed",
    "coverage": "coverage",
    "length": "avg_length",
    "length_controlled": "length_controlled_winrate",
    "length_controlled_error": "lc_standard_error",
}
"""What AlpacaEval's leaderboards, and evaluators' metrics, call the figures of an entry."""
COUNTS = {"n", "instructions", "wins", "losses", "draws", "unparsed"}


def read_boards(sources: Sequence[Path | str], annotations: Sequence[Path | str] = ()) -> tuple[list[Board], list[str]]:
    """The boards of `sources` and of files of stored `annotations`, one a protocol, and, in sentences, what is not
    in them.

    A source is a directory of runs, the name of a board that ships ("paper"), or a file: a board (.json), an AlpacaEval
    leaderboard (.csv) or annotations. Raises `DataError` naming the file, the row and the field that cannot be read.
    """
    boards: list[Board] = []
    left_out: list[str] = []
    judged = [Path(file) for file in annotations]
    for source in sources:
        path = Path(source)
        if path.is_dir():
            found, lacking = boards_of_runs(path)
            boards += found
            left_out += lacking
        elif str(source) in REFERENCE_BOARDS and not path.exists():
            boards += reference_boards(str(source))
        elif path.name.endswith(TABLES):
            boards += imported(path)
        elif (shared := _shared_board(path)) is not None:
            boards += shared
        else:
            judged.append(path)
    if judged:
        boards += boards_of_annotations(judged)
    return group(boards), left_out


# ------------------------------------------------------------------------------------------------------------ runs


def boards_of_runs(directory: Path) -> tuple[list[Board], list[str]]:
    """The results of all runs below `directory` (that of all runs, that of `runs`, or a single run's), from the small
    `run.json` of each; and the runs that cannot be read or have no win rate, with the reason."""
    found: dict[str, list[Entry]] = {}
    protocols: dict[str, Protocol] = {}
    left_out = []
    records = [directory / "run.json"] if (directory / "run.json").is_file() else _records(directory)
    for path in records:
        try:
            results = list(_results(path))
        except (DataError, OSError, ValueError) as error:
            left_out.append(f"{path}: {error}")
            continue
        if not results:
            left_out.append(f"{path.parent.name}: it has no win rate")
        for protocol, entry in results:
            protocols[protocol.id] = protocol
            found.setdefault(protocol.id, []).append(entry)
    return [
        ranked(Board(protocols[key], tuple(entries), "" if protocols[key].known else NO_PROTOCOL))
        for key, entries in found.items()
    ], left_out


def _records(directory: Path) -> list[Path]:
    runs = directory / "runs" if (directory / "runs").is_dir() else directory
    return sorted(runs.glob("*/run.json"))


def _results(path: Path) -> Iterator[tuple[Protocol, Entry]]:
    """One entry for each reference that a run's system was compared with."""
    record = json.loads(path.read_text(encoding="utf-8"))
    given = record.get("results") if isinstance(record, Mapping) else None
    if not isinstance(given, list):
        raise DataError("is no record of a run: the same `afarm` command writes it afresh")
    by_reference: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in given:
        if isinstance(row, Mapping) and isinstance(row.get("metrics"), Mapping):
            by_reference.setdefault((str(row.get("system")), str(row.get("reference"))), []).append(row)
    for (system, reference), rows in by_reference.items():
        metrics: dict[str, Any] = {}
        for row in rows:
            metrics = {**row["metrics"], **metrics}
        if metrics.get("lc_sampling_error") is not None:  # AlpacaEval's own leaves out the uncertainty of the fit
            metrics["lc_standard_error"] = metrics["lc_sampling_error"]
        figures = _figures({name: metrics.get(column) for name, column in COLUMNS.items()})
        if 0 <= figures.get("win_rate", -1) <= 100:
            guards = rows[0].get("guards")
            # Only the pairs of the first comparison lie beside the record.
            is_first = (system, reference) == next(iter(by_reference))
            decided = bool(record.get("until"))  # it stopped at a moment that suited it: ranks would be too sure
            judged = str(path.parent / "outputs.jsonl") if is_first and not decided else ""
            yield (
                Protocol.from_row(rows[0].get("protocol")),
                Entry(
                    system,
                    **figures,
                    prefers_longer=_value(guards, "prefers_longer"),
                    prefers_lists=_value(guards, "prefers_lists"),
                    flags=(*sentences(guards), *([STOPPED_EARLY] if decided else [])),
                    source=Source(str(path.parent), judged, reference),
                ),
            )


def _value(guards: Any, name: str) -> float | None:
    figure = guards.get(name) if isinstance(guards, Mapping) else None
    value = figure.get("value") if isinstance(figure, Mapping) else None
    return float(value) if isinstance(value, int | float) else None


def _figures(given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of an entry that are finite numbers."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            found[name] = round(value) if name in COUNTS else float(value)
    return found


# ----------------------------------------------------------------------------------------------------------- files


def reference_boards(name: str) -> list[Board]:
    """The boards that ship under `name`. Raises `DataError` for a name that there is not."""
    if name not in REFERENCE_BOARDS:
        raise DataError(f"no board called {name!r} ships with afarm.{did_you_mean(name, REFERENCE_BOARDS)}")
    text = resources.files("afarm.boards").joinpath(REFERENCE_BOARDS[name]).read_text(encoding="utf-8")
    return [Board.from_row(row, f"{name}, board {number}") for number, row in enumerate(json.loads(text)["boards"])]


def _shared_board(path: Path) -> list[Board] | None:
    """The boards in a file as `afarm leaderboard --format json` writes it; None for a file that is something else."""
    if path.suffix != ".json" or not path.is_file():
        return None
    with path.open("rb") as handle:
        if handle.read(64).lstrip()[:1] != b"{":
            return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(found.get("boards"), list):
        raise DataError(f"{path}: holds no boards: `afarm leaderboard --format json --output FILE` writes such a file")
    return [Board.from_row(row, f"{path}: board {number}") for number, row in enumerate(found["boards"])]


def imported(path: Path) -> list[Board]:
    """A leaderboard as AlpacaEval publishes it, the system in its first column; or what `--format csv` wrote.

    Raises `DataError` where it is no such table, naming the row and the column where a figure is no number.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    opened: Any = gzip.open if path.name.endswith(".gz") else open
    boards: dict[str, list[Entry]] = {}
    try:
        with opened(path, "rt", encoding="utf-8-sig", newline="") as handle:
            table = csv.DictReader(handle)
            names = table.fieldnames or []
            if "win_rate" not in names:
                raise DataError(f"{path}: column 'win_rate' is missing: it is no leaderboard")
            first = "system" if "system" in names else names[0]
            for number, row in enumerate(table):
                entry = _imported_entry(row, first, f"{path}: row {number}", path)
                boards.setdefault(row.get("board") or path.name, []).append(entry)
    except (UnicodeDecodeError, csv.Error, gzip.BadGzipFile, EOFError) as error:
        raise DataError(f"{path}: not valid CSV: {error}") from error
    if not boards:
        raise DataError(f"{path}: no rows")
    return [ranked(Board(Protocol(), tuple(entries), title, IMPORTED)) for title, entries in boards.items()]


def _imported_entry(row: Mapping[str, Any], first: str, where: str, path: Path) -> Entry:
    values: dict[str, Any] = {"system": row[first]}
    for name, column in COLUMNS.items():
        text = (row.get(column) or "").strip()
        if not text or text.lower() == "nan":
            continue
        try:
            values[name] = float(text)
        except ValueError as error:
            raise DataError(f"{where}: column {column!r} must be a number, not {text!r}") from error
        if name in COUNTS:
            values[name] = round(values[name])
    return Entry.from_row({**values, "source": str(path)}, where)
