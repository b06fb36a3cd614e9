"""Tables on the screen whose words and figures stay whole on narrow screens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from afarm.storage.text import markup, one_line

if TYPE_CHECKING:
    from rich.console import Console


LONGEST = 300
"""Characters of a cell."""


def print_table(console: Console, title: str, columns: Mapping[str, bool], rows: Sequence[Sequence[str]]) -> None:
    """Print a table of plain texts, in which no markup is read.

    `columns` are the headings, true for figures, which are aligned to the right. On a narrow screen columns stand
    closer together and texts take several lines; no word or figure is cut as long as there is room for it.
    """
    from rich import box
    from rich.table import Table

    rows = [[one_line(cell, LONGEST) for cell in row] for row in rows]
    cells = list(zip(map(one_line, columns), *rows, strict=True))
    widths: list[int] = []
    for whole, padding in ((True, 1), (True, 0), (False, 0)):  # figures keep their intervals beside them if they can
        unbroken = [is_figure and whole for is_figure in columns.values()]
        widths = widths_of_words(cells, console.width - 1 - len(cells) * (1 + 2 * padding), unbroken)
        if widths:
            break
    table = Table(title=markup(title), title_justify="left", box=box.SIMPLE, padding=(0, padding))
    for place, (heading, is_figure) in enumerate(columns.items()):
        justify, width = "right" if is_figure else "left", widths[place] if widths else None
        whole = is_figure and not widths  # texts give way to figures
        table.add_column(markup(one_line(heading)), justify=justify, overflow="fold", width=width, no_wrap=whole)  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*map(markup, row))
    console.print(table)


def widths_of_words(columns: Sequence[Sequence[str]], most: int, unbroken: Sequence[bool]) -> list[int]:
    """Return widths of columns, at most `most` in all, in which no word is split; none if there are none.

    A column's first text is its heading; the others of `unbroken` columns keep to one line. The widest give way first.
    """
    from rich.cells import cell_len

    widths, least = [], []
    for (heading, *texts), whole in zip(columns, unbroken, strict=True):
        parts = [*heading.split(), *(texts if whole else (word for text in texts for word in text.split()))]
        widths.append(max(map(cell_len, [heading, *texts])))
        least.append(max(map(cell_len, parts), default=0))
    while sum(widths) > most:
        spare = [place for place, width in enumerate(widths) if width > least[place]]
        if not spare:
            return []
        widths[max(spare, key=widths.__getitem__)] -= 1
    return widths
