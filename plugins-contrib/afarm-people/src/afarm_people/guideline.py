"""Guidelines in Markdown as HTML that runs and loads nothing: HTML in them is text, images are links."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from markdown_it import MarkdownIt

from afarm import DataError, read_user_text

MOST_CHARACTERS = 200_000


def read_guideline(path: Path | None) -> str:
    """Render the guideline in a file, or the one that ships. Raises `DataError` if it cannot be read."""
    if path is None:
        return render_markdown(resources.files("afarm_people").joinpath("page", "guideline.md").read_text("utf-8"))
    try:
        text = read_user_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"--guideline {path}: cannot be read ({error}): give a text file, in UTF-8") from error
    if len(text) > MOST_CHARACTERS:
        raise DataError(f"--guideline {path}: has {len(text):,} characters; at most {MOST_CHARACTERS:,} are shown")
    return render_markdown(text)


def render_markdown(text: str) -> str:
    """Render CommonMark with tables; links are to web pages, mail or places on the page alone."""
    return str(MarkdownIt("commonmark", {"html": False}).enable("table").disable("image").render(text))
