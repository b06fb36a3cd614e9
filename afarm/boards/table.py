"""A board as a table of texts, and in the formats that it can be shared in: Markdown, CSV and JSON.

Names come from files of anybody's: nothing in them that moves a cursor, ends a cell or begins a tag is let through.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from afarm.boards.board import Board, Entry
from afarm.boards.correlating import Agreement
from afarm.boards.sources import COLUMNS as PUBLISHED
from afarm.guards import plain

_SUFFIXES = {1: "st", 2: "nd", 3: "rd"}


@dataclass(frozen=True, slots=True)
class Column:
    """A column by its heading; `cell` gives None where a figure is not known. Numbers stand to the right."""

    heading: str
    cell: Callable[[Entry], str | None]
    number: bool = True


def rank(entry: Entry) -> str:
    """ "3rd, 2–5": the place, and between which it truly lies with 95%; without judgements only the place."""
    n = entry.rank
    place = f"{n}{'th' if n % 100 in (11, 12, 13) else _SUFFIXES.get(n % 10, 'th')}"
    if entry.rank_low is None or entry.rank_high is None:
        return place
    return f"{place}, {entry.rank_low}–{entry.rank_high}"


def _win_rate(entry: Entry) -> str:
    return f"{entry.win_rate:.1f}" + ("" if entry.standard_error is None else f" ± {entry.standard_error:.1f}")


def _interval(entry: Entry) -> str | None:
    return None if entry.interval is None else f"{entry.interval[0]:.1f}–{entry.interval[1]:.1f}"


def _difference(entry: Entry) -> str | None:
    if entry.difference is None:
        return None
    text = f"{entry.difference:+.1f}"
    if entry.difference_low is not None and entry.difference_high is not None:
        text += f" ({entry.difference_low:+.1f} to {entry.difference_high:+.1f})"
    return text if entry.p_value is None else f"{text}, p {_p_value(entry.p_value)}"


def _p_value(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def _length_controlled(entry: Entry) -> str | None:
    if entry.length_controlled is None:
        return None
    error = "" if entry.length_controlled_error is None else f" ± {entry.length_controlled_error:.1f}"
    return f"{entry.length_controlled:.1f}{error}"


def _outcomes(entry: Entry) -> str | None:
    counts = (entry.wins, entry.losses, entry.draws)
    return None if None in counts else "/".join(map(str, counts))


def _number(value: float | None, form: str) -> str | None:
    return None if value is None else format(value, form)


COLUMNS = (
    Column("rank", rank, number=False),
    Column("system", lambda e: plain(e.system), number=False),
    Column("win rate, %", _win_rate),
    Column("95 %", _interval),
    Column("Δ to the 1st", _difference),
    Column("LC, %", _length_controlled),
    Column("n", lambda e: _number(e.n, "d")),
    Column("won/lost/drawn", _outcomes),
    Column("no answer", lambda e: _number(e.unparsed or None, "d")),
    Column("characters", lambda e: _number(e.length, ".0f")),
    Column("longer", lambda e: _number(e.prefers_longer, ".2f")),
    Column("lists", lambda e: _number(e.prefers_lists, ".2f")),
    Column("flags", lambda e: str(len(e.flags)) if e.flags else None),
)
LEGEND = (
    "± is the standard error over instructions, 95 % the interval. LC: length-controlled win rate. longer, lists: how "
    "often the judge chose the longer output, and the one with a list, where they differed in that."
)


def columns(board: Board) -> list[Column]:
    """Those that some entry has a figure for, those of evaluators over the whole board last."""
    names = dict.fromkeys(name for entry in board.entries for name in entry.figures)
    figures = [Column(plain(name), _figure(name)) for name in names]
    return [column for column in (*COLUMNS, *figures) if any(column.cell(entry) for entry in board.entries)]


SPARED = ("95 %", "Δ to the 1st", "n", "characters", "longer", "lists", "no answer", "won/lost/drawn")
"""Which columns are left out where there is no room, the last first."""
BETWEEN = 3
"""Characters that a column takes beside its text."""


def fitting(board: Board, shown: Sequence[Column], width: int | None) -> tuple[list[Column], int]:
    """Those of the columns `shown` that a screen of `width` characters has room for (None: all), and their width."""
    needed = {
        column: BETWEEN + max(len(column.heading), *(len(column.cell(entry) or "") for entry in board.entries))
        for column in shown
    }
    room = math.inf if width is None else width - BETWEEN
    kept = {column for column in shown if column.heading not in SPARED}
    for column in sorted(set(shown) - kept, key=lambda column: SPARED.index(column.heading)):
        if sum(needed[other] for other in kept) + needed[column] <= room:
            kept.add(column)
    return [column for column in shown if column in kept], sum(needed[column] for column in kept) + BETWEEN


def _figure(name: str) -> Callable[[Entry], str | None]:
    def cell(entry: Entry) -> str | None:
        value = entry.figures.get(name)
        return None if value is None else f"{value:.1f}" if isinstance(value, int | float) else plain(str(value))

    return cell


def flags(board: Board) -> list[str]:
    """What guards say, one sentence each, with the systems that it is said of; of the reference, once for all."""
    count = Counter(flag for entry in board.entries for flag in dict.fromkeys(entry.flags))
    common = [flag for flag, n in count.items() if n > 1]
    said = []
    for flag in common:
        systems = [plain(entry.system) for entry in board.entries if flag in entry.flags]
        said.append(f"{'all' if len(systems) == len(board.entries) else ', '.join(systems)}: {plain(flag, 400)}")
    for entry in board.entries:
        said += [f"{plain(entry.system)}: {plain(flag, 400)}" for flag in entry.flags if flag not in common]
    return said


# --------------------------------------------------------------------------------------------------------- formats


def as_markdown(boards: Sequence[Board], agreements: Sequence[Agreement] = ()) -> str:
    """Every board as a heading, a table and its notes, and how they agree."""
    lines = [line for board in boards for line in _markdown(board)]
    lines += [f"{escaped(f'{a.first} and {a.second}: {a.sentence}')}\n" for a in agreements]
    return "\n".join(lines).rstrip() + "\n"


def _markdown(board: Board) -> Iterator[str]:
    shown = columns(board)
    yield f"## {escaped(board.heading)}\n"
    if board.remarks:
        yield f"{escaped(board.remarks)}\n"
    yield f"| {' | '.join(column.heading for column in shown)} |"
    yield "|" + "".join("---:|" if column.number else "---|" for column in shown)
    for entry in board.entries:
        yield f"| {' | '.join(escaped(column.cell(entry) or '') for column in shown)} |"
    yield ""
    for sentence in flags(board):
        yield f"- Flag: {escaped(sentence)}"
    yield ""


_SPECIAL = str.maketrans({**{c: f"\\{c}" for c in "\\`*_[]|#~!"}, "<": "&lt;", ">": "&gt;", "&": "&amp;"})


def escaped(text: str) -> str:
    """`text` as Markdown that shows it as it is, on one line."""
    return plain(text, 600).translate(_SPECIAL)


EXTRA = ("low", "high", "rank", "rank_low", "rank_high", "difference", "difference_low", "difference_high", "p_value")


def as_csv(boards: Sequence[Board]) -> str:
    """All boards in one table, under the names that AlpacaEval's leaderboards have, and which board each row is of."""
    text = io.StringIO()
    figures = list(dict.fromkeys(name for board in boards for entry in board.entries for name in entry.figures))
    names = ["system", *PUBLISHED.values(), *EXTRA, "prefers_longer", "prefers_lists", *figures, "flags", "board"]
    table = csv.DictWriter(text, names, lineterminator="\n", extrasaction="ignore")
    table.writeheader()
    for board in boards:
        for entry in board.entries:
            row = entry.to_row()
            published = {column: row[name] for name, column in PUBLISHED.items()}
            told = {"flags": "; ".join(entry.flags), "board": board.heading}
            table.writerow({**row, **published, **row["figures"], **told})
    return text.getvalue()


def as_json(boards: Sequence[Board], left_out: Sequence[str] = (), agreements: Sequence[Agreement] = ()) -> str:
    """What `afarm leaderboard FILE` reads again."""
    found = {"boards": [board.to_row() for board in boards], "left_out": list(left_out)}
    if agreements:
        found["correlations"] = [agreement.to_row() for agreement in agreements]
    return json.dumps(found, ensure_ascii=False, indent=1) + "\n"
