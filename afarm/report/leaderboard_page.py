"""Leaderboards as one self-contained HTML page, whose only script sorts tables.

Names are anybody's text: the template escapes every value, and the page's content security policy runs no other script
and fetches nothing at all.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from afarm.evaluation.boards.board import Leaderboard, named
from afarm.evaluation.boards.correlation import Agreement
from afarm.evaluation.boards.rendering import LEGEND, columns, own_flags, remarks, shared_flags
from afarm.report.page_shell import render_page
from afarm.storage.text import one_line

LONGEST_FLAG = 400
LONGEST_PIECE = 28
"""Characters of a name that must stand on one line."""
_PIECES = re.compile(rf"[^-_/. ]{{1,{LONGEST_PIECE}}}[-_/. ]*|[-_/. ]{{1,{LONGEST_PIECE}}}")


def render_leaderboards(
    boards: Sequence[Leaderboard], left_out: Sequence[str] = (), agreements: Sequence[Agreement] = ()
) -> str:
    """Render the page as text."""
    return render_page(
        "leaderboard_page",
        ["tables"],
        boards=[describe_board(board) for board in boards],
        left_out=left_out,
        agreements=agreements,
        legend=LEGEND,
    )


def describe_board(board: Leaderboard) -> dict[str, Any]:
    """Describe a board as the template needs it."""
    counts = {entry.n for entry in board.entries}
    same = len(counts) == 1 and None not in counts
    shown = [column for column in columns(board) if column.heading != "flags" and not (same and column.heading == "n")]
    shared, number = shared_flags(board), f"{next(iter(counts), 0):,} judgements of each system." if same else ""
    return {
        "heading": one_line(board.heading, LONGEST_FLAG),
        "remarks": [*filter(None, [number]), *remarks(board)],
        "columns": shown,
        "rows": [
            {
                "entry": entry,
                "name": _PIECES.findall(one_line(entry.system)),
                "flags": [one_line(flag, LONGEST_FLAG) for flag in own_flags(entry, shared)],
            }
            for entry in board.entries
        ],
        "bars": any(entry.interval for entry in board.entries),
        "flags": [one_line(flag, LONGEST_FLAG) for flag in shared],
        "flagged": named([one_line(e.system) for e in board.entries if own_flags(e, shared)]),
    }
