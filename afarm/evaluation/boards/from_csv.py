"""Leaderboards as CSV, in the columns of AlpacaEval's leaderboards: written, and read again.

A table that afarm wrote is read back without loss, boards and all. Names are anybody's text, and spreadsheets run a
cell that begins like a formula: such a cell is written with an apostrophe before it, invisible characters as escapes.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from afarm.core.errors import DataError
from afarm.core.records import Row
from afarm.evaluation.boards.board import Entry, Leaderboard, ranked
from afarm.evaluation.metrics import finite_number
from afarm.evaluation.protocol import EvaluationProtocol
from afarm.storage.rows import read_placed_rows

TABLES = (".csv", ".csv.gz")
SYSTEM = ("system", "model", "generator")
"""The columns that name the system, if it is not the first."""
IMPORTED = "imported from a table, which does not say how it was judged"

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
"""The names that AlpacaEval's leaderboards, and evaluators' metrics, have for the fields of an entry."""
COUNTS = {"n", "instructions", "wins", "losses", "draws", "unparsed", "rank", "rank_low", "rank_high", "of"}
FURTHER = COLUMNS | {
    name: name
    for name in (
        *("rank", "rank_low", "rank_high", "difference", "difference_low", "difference_high", "p_value"),
        *("detectable", "of", "prefers_longer", "prefers_lists"),
    )
}
"""The numbers that a table of afarm's own has."""
BOARD = ("board", "note", "order", "origin", "protocol")
"""Its columns about the board of a row."""
TEXTS = ("system", "length_controlled_source", "length_controlled_warning", "difference_to")
FIXED = ("system", *FURTHER.values(), "low", "high", *TEXTS[1:], "stopped_early", "flags", "source", *BOARD)
"""Its columns but those of metrics. The interval is written, and follows from the others when read."""
OWN = "protocol"
"""The column by which it is recognised."""
METRIC = ("value", "error", "low", "high", "n", "flag", "unit")
SEPARATOR = " | "
"""Between flags, which are written without it."""

FORMULA = ("=", "+", "-", "@", "'")
_ESCAPE = re.compile(r"\\(?:\\|[nrt]|x..|u.{4}|U.{8})")


def as_csv(boards: Sequence[Leaderboard]) -> str:
    """Write all boards as one table with AlpacaEval's column names, each row with its board."""
    text = io.StringIO()
    rows = [_row(board, entry) for board in boards for entry in board.entries]
    metrics = dict.fromkeys(name for row in rows for name in row if name not in FIXED)
    table = csv.DictWriter(text, [*FIXED, *metrics], lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return text.getvalue()


def _row(board: Leaderboard, entry: Entry) -> dict[str, object]:
    given = entry.to_row()
    protocol = json.dumps(board.protocol.to_row(), ensure_ascii=False) if board.protocol.known else ""
    told = {"board": board.name, "note": board.note, "order": board.order, "origin": board.origin, OWN: protocol}
    texts = {**{name: given[name] for name in TEXTS}, "source": entry.source.name, **told}
    return {
        **{column: given[name] for name, column in FURTHER.items()},
        **{name: given[name] for name in ("low", "high")},
        **{name: neutral(text) for name, text in texts.items()},
        "stopped_early": "yes" if entry.stopped_early else "",
        "flags": SEPARATOR.join(neutral(flag).replace("|", r"\x7c") for flag in entry.flags),
        **{
            neutral(name) + ("" if part == "value" else f"_{part}"): neutral(value) if isinstance(value, str) else value
            for name, metric in entry.metrics.items()
            for part, value in asdict(metric).items()
            if value not in (None, "") and name not in FIXED
        },
    }


def neutral(text: str) -> str:
    """Write `text` as a cell that no spreadsheet runs and no terminal acts on; `restored` is the inverse."""
    visible = "".join(c if c.isprintable() and c != "\\" else c.encode("unicode_escape").decode("ascii") for c in text)
    return f"'{visible}" if visible.startswith(FORMULA) else visible


def restored(cell: str) -> str:
    """Restore the text that `neutral` was given."""
    return _ESCAPE.sub(lambda match: match[0].encode("ascii").decode("unicode_escape"), cell.removeprefix("'"))


# --------------------------------------------------------------------------------------------------------- reading


def imported(path: Path, orders: Sequence[str] = ()) -> list[Leaderboard]:
    """Read a leaderboard of AlpacaEval (system first), one that `as_csv` wrote, or any figures.

    Of other columns than AlpacaEval's, such as Elo ratings, the first that `orders` names is read; a table without win
    rates is in its order, or in the order of its only column of numbers.

    Raises `DataError` if it is no such table, naming the row and the column of a value that is no number or cannot be.
    """
    rows = list(read_placed_rows(path))
    if not rows:
        raise DataError(f"{path}: no rows")
    names = list(rows[0][1])
    metric = "" if OWN in names else next((n for n in orders if n in names and n not in COLUMNS.values()), "")
    order = ""
    if OWN not in names:
        _require_percent(rows, path)
    if "win_rate" not in names:
        order = metric = metric or _only_figure([row for _, row in rows], names, path)
    boards: dict[tuple[str, ...], tuple[Leaderboard, list[Entry]]] = {}
    for where, row in rows:
        key = tuple(row.get(name) or "" for name in BOARD)
        _, entries = boards.setdefault(key, (_board(row, path, OWN in names, where, order), []))
        entries.append(_own_entry(row, names, where) if OWN in names else _entry(row, names, where, path, metric))
    return [ranked(replace(board, entries=tuple(entries))) for board, entries in boards.values()]


def _require_percent(placed: Sequence[tuple[str, Row]], path: Path) -> None:
    """Raise `DataError` if win rates are or may be shares of 1: as percent they would be next to nothing."""
    for column in ("win_rate", "length_controlled_winrate"):
        rates = [(_number(row.get(column)) or 0, "%" in str(row.get(column)), where) for where, row in placed]
        plain = [rate for rate, has_sign, _ in rates if not has_sign]
        if 0 < max(plain, default=0) <= 1:
            raise DataError(
                f"{path}: column {column!r} is nowhere above 1, and win rates are in percent: write a share of 0.468 "
                "as 46.8, or 0.468 percent as 0.468%"
            )
        for rate, has_sign, where in rates:
            if has_sign and 0 < rate <= 1 and any(plain):
                raise DataError(
                    f"{where}: column {column!r} is {rate:g}%, and other rows have no percent sign: write {rate:g} if "
                    f"that is its percent, or {100 * rate:g} if it is a share of 1"
                )


def _only_figure(rows: Sequence[Mapping[str, Any]], names: Sequence[str], path: Path) -> str:
    """Find the only column of numbers. Raises `DataError` naming the columns if there is none, or several."""
    numbers = [name for name in names if all(finite_number(_number(row[name])) is not None for row in rows)]
    if len(numbers) == 1:
        return numbers[0]
    if not numbers:
        listed = ", ".join(map(repr, names)) or "none"
        raise DataError(f"{path}: no column 'win_rate' nor another of numbers (1234, not 1,234); it has {listed}")
    raise DataError(
        f"{path}: column 'win_rate' is missing, and {', '.join(map(repr, numbers))} hold numbers: say which one ranks "
        f"with --order-by {numbers[0]!r}"
    )


def _board(row: Mapping[str, Any], path: Path, own: bool, where: str, order: str = "") -> Leaderboard:
    """The leaderboard of a row, without entries."""
    if not own:
        title = row.get("board") or path.name
        return Leaderboard(EvaluationProtocol(), (), title, IMPORTED, order, origin=str(path))
    name, note, order, origin, protocol = (restored(row.get(column) or "") for column in BOARD)
    try:
        stored = EvaluationProtocol.from_row(json.loads(protocol) if protocol else None)
    except ValueError as error:
        raise DataError(f"{where}: column {OWN!r} is not valid JSON: {error}") from error
    title = "" if stored.known and name == stored.sentence() else name or path.name
    return Leaderboard(stored, (), title, note, order, origin)


def _entry(row: Mapping[str, Any], names: Sequence[str], where: str, path: Path, metric: str = "") -> Entry:
    system = row[next((name for name in SYSTEM if name in names), next(n for n in names if n != (metric or None)))]
    values = _values(row, COLUMNS, where)
    figure = _values(row, {"value": metric}, where) if metric else {}
    metrics = {metric: figure} if figure else {}
    _require_one_count(values, where)
    return Entry.from_row({**values, "system": system, "source": str(path), "metrics": metrics}, where, COLUMNS)


def _require_one_count(values: Mapping[str, float], where: str) -> None:
    """Raise `DataError` if wins, losses and draws are not the total, or cannot give the win rate."""
    wins, losses, draws = (values.get(name) for name in ("wins", "losses", "draws"))
    if wins is None or losses is None or draws is None:
        return
    total, n = wins + losses + draws, values.get("n", 0)
    if n and total not in (n, n - values.get("unparsed", 0)):
        raise DataError(f"{where}: n_total is {n}, and n_wins + n_wins_base + n_draws are {total}")
    least, most = 50 * (wins + draws), 50 * (wins + total)  # a weighted label is a win from one half on
    if total and not least - 1 <= values.get("win_rate", least / total) * total <= most + 1:
        raise DataError(
            f"{where}: column 'win_rate' is {values['win_rate']:g}, and {wins} wins, {losses} losses and {draws} draws "
            f"give {least / total:.1f} to {most / total:.1f}"
        )


def _own_entry(row: Mapping[str, Any], names: Sequence[str], where: str) -> Entry:
    """Read an entry of a table that afarm wrote."""
    further = [name for name in names if name not in FIXED]
    parts = [f"_{part}" for part in METRIC]
    evaluators = [n for n in further if not any(n.endswith(p) and n.removesuffix(p) in further for p in parts)]
    metrics: dict[str, dict[str, Any]] = {}
    for name in evaluators:
        columns = {part: f"{name}_{part}" for part in METRIC[1:-2]} | {"value": name}
        if values := _values(row, columns, where):
            texts = {text: restored(row.get(f"{name}_{text}") or "") for text in ("flag", "unit")}
            metrics[restored(name)] = {**values, **texts}
    flags = [restored(flag) for flag in (row.get("flags") or "").split(SEPARATOR) if flag]
    given = {
        **_values(row, FURTHER, where),
        **{name: restored(row.get(name) or "") for name in (*TEXTS, "source")},
        "stopped_early": bool(row.get("stopped_early")),
        "flags": flags,
        "metrics": metrics,
    }
    return Entry.from_row(given, where, FURTHER)


def _values(row: Mapping[str, Any], columns: Mapping[str, str], where: str) -> dict[str, float | int]:
    """Read the numbers in `columns`, by name. Raises `DataError` if one is none."""
    numbers: dict[str, float | int] = {}
    for name, column in columns.items():
        text = str(row.get(column, "")).strip()
        if text.lower() in ("", "nan", "none"):
            continue
        if (value := _number(text)) is None or (name in COUNTS and re.fullmatch(r"\d{1,3}(\.\d{3})+", text)):
            raise DataError(f"{where}: column {column!r} must be a number, not {text!r}: no mark may part thousands")
        numbers[name] = round(value) if name in COUNTS and abs(value) < float("inf") else value
    return numbers


def _number(cell: object) -> float | None:
    """Parse the number of a cell, which may have a per cent sign or a decimal comma."""
    text = str(cell).strip().removesuffix("%").strip()
    try:
        return float(text.replace(",", ".") if re.fullmatch(r"[-+]?\d+,(\d\d?|\d{4,})", text) else text)
    except ValueError:
        return None
