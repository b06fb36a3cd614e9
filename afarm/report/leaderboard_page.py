"""Leaderboards as one self-contained HTML page, whose only script sorts tables.

Names are anybody's text: the template escapes every value, and the page's content security policy runs no other script
and fetches nothing at all.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup, escape

from afarm.evaluation.boards.board import Leaderboard, named
from afarm.evaluation.boards.correlation import Agreement
from afarm.evaluation.boards.rendering import LEGEND, columns, own_flags, remarks, shared_flags
from afarm.report.page_shell import render_page
from afarm.storage.text import one_line

LONGEST_FLAG = 400


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
        breakable=breakable,
    )


def describe_board(board: Leaderboard) -> dict[str, Any]:
    """Describe a board as the template needs it."""
    counts, shared = {entry.n for entry in board.entries}, shared_flags(board)
    same = len(counts) == 1 and None not in counts
    flags = [[one_line(flag, LONGEST_FLAG) for flag in own_flags(entry, shared)] for entry in board.entries]
    flagged = [one_line(entry.system) for entry, own in zip(board.entries, flags, strict=True) if own]
    return {
        "heading": one_line(board.heading, LONGEST_FLAG),
        "remarks": [*([f"{counts.pop():,} judgements of each system."] if same else []), *remarks(board)],
        "columns": [column for column in columns(board) if column.heading not in ("flags", "n" if same else "")],
        "rows": list(zip(board.entries, flags, strict=True)),
        "flags": [one_line(flag, LONGEST_FLAG) for flag in shared],
        "flagged": named(flagged),
    }


def breakable(name: str) -> Markup:
    """Let a name's line break after - _ / . and spaces alone."""
    return Markup(re.sub(r"(?<=[-_/. ])", "<wbr>", escape(one_line(name))))
