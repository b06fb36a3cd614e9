"""A report card of a judge: `afarm judge card`, and a section of each report that it judged."""

from __future__ import annotations

from typing import Any

from afarm import hookimpl


@hookimpl
def register_commands(app: Any) -> None:
    """Add `afarm judge card` to the group `judge`."""
    from afarm_judge_card.command import add_commands

    add_commands(app)


@hookimpl
def register_sections(sections: dict[str, Any]) -> None:
    """Show a judge's card in the reports of runs that it judged."""
    from afarm_judge_card.kept import write_section

    sections["The judge's card"] = write_section


@hookimpl
def register_pages(pages: list[Any]) -> None:
    """Link a judge's cards from screens and boards with runs that it judged."""
    from afarm_judge_card.kept import list_pages

    pages.append(list_pages)
