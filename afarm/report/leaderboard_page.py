"""Leaderboards in Markdown, and as one self-contained HTML page, whose only script sorts tables.

Names are anybody's text: the template escapes every value, and the page's content security policy runs no other script
and fetches nothing at all.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from markupsafe import Markup, escape

from afarm.evaluation.boards import rendering
from afarm.evaluation.boards.board import Leaderboard, named
from afarm.evaluation.boards.correlation import Agreement
from afarm.report.page_shell import render_markdown, render_page
from afarm.storage.text import one_line

LONGEST_FLAG = 400


def render_leaderboards(
    boards: Sequence[Leaderboard], left_out: Sequence[str] = (), agreements: Sequence[Agreement] = ()
) -> str:
    """Render the page as text."""
    return render_page(
        "leaderboard_page",
        ["tables"],
        boards=boards,
        longest=LONGEST_FLAG,
        reading=rendering,
        named=named,
        left_out=left_out,
        agreements=agreements,
        legend=rendering.legend(boards),
        breakable=breakable,
        one_line=one_line,
    )


def markdown_leaderboards(boards: Sequence[Leaderboard], agreements: Sequence[Agreement] = ()) -> str:
    """Write every board as a heading, a table and its remarks, and how they agree."""
    return render_markdown("leaderboard_page", boards=boards, agreements=agreements, reading=rendering)


def breakable(name: str) -> Markup:
    """Let a name's line break after - _ / . and spaces alone."""
    return Markup(re.sub(r"(?<=[-_/. ])", "<wbr>", escape(one_line(name))))
