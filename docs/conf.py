"""The documentation as a site: `make docs`. Its pages are the Markdown files, as a code host shows them.

The home page is the repository's README. The sidebar is `docs/README.md`: a name in bold opens a section, and the links
after it are its pages. The README of a folder lists the other pages of its folder in the same way, and a page from
outside `docs/` stands below the page that links it first. Each page is written down once, and one that is listed
nowhere stops the build.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
HOME, LIST = "README", "docs/README"

project = "afarm"
extensions = ["myst_nb"]
include_patterns = [
    "*.md",
    "docs/**.md",
    "docs/**.ipynb",
    "changes/README.md",
    "afarm_plugins/**/README.md",
    "plugins-contrib/*/*.md",
]
searched = {pattern.split("/")[0] for pattern in include_patterns}
exclude_patterns = [folder.name for folder in ROOT.iterdir() if folder.is_dir() and folder.name not in searched]
root_doc = HOME
nitpicky = True

myst_heading_anchors = 4
nb_execution_mode = "off"  # `make notebooks` has executed them
nb_ipywidgets_js = {}  # which would be loaded from elsewhere
highlight_language = "none"  # of what is indented: commands and screens

html_theme = "furo"
html_title = "afarm"
html_static_path = ["site"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_show_search_summary = False  # which a browser may not fetch from a file
html_copy_source = False


def linked(page: str, text: str | None = None) -> list[str]:
    """Return the pages and notebooks that `page` links, each once, without their endings."""
    if text is None:
        [file] = [file for ending in (".md", ".ipynb") if (file := ROOT / f"{page}{ending}").exists()]
        text = file.read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)\s#:]+)\.(?:md|ipynb)(?:#[^)]*)?\)", text)
    return list(dict.fromkeys(os.path.normpath(Path(page).parent / target) for target in targets))


def sidebar() -> dict[str, str]:
    """Return the lists of pages that stand below a page in the sidebar, as Markdown to be added to it."""
    sections = re.split(r"^\*\*([^*\n]+)\*\*", (ROOT / f"{LIST}.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    captions = {name: linked(LIST, text) for name, text in zip(sections[1::2], sections[2::2], strict=True)}
    below = {HOME: toctree([LIST]) + "".join(toctree(pages, name) for name, pages in captions.items())}
    listed = [HOME, LIST, *dict.fromkeys(page for pages in captions.values() for page in pages)]
    for page in listed:  # grows as it goes: pages that were found have pages of their own
        folder = Path(page).parent
        found = [
            target
            for target in linked(page)
            if target not in listed
            and (not target.startswith("docs/") or (page.endswith("/README") and Path(target).parent == folder))
        ]
        if found:
            below.setdefault(page, toctree(found))
            listed += found
    return below


def toctree(pages: list[str], caption: str = "") -> str:
    options = [":hidden:", ":titlesonly:", *([f":caption: {caption}"] if caption else [])]
    return "\n".join(["\n\n```{toctree}", *options, "", *(f"/{page}" for page in pages), "```\n"])


def setup(app: Any) -> None:
    below = sidebar()

    def add_sidebar(app: Any, page: str, source: list[str]) -> None:
        source[0] += below.get(page, "")

    def make_index(app: Any, error: Exception | None) -> None:
        if error is None:
            shutil.copyfile(app.outdir / f"{HOME}.html", app.outdir / "index.html")

    app.connect("source-read", add_sidebar)
    app.connect("build-finished", make_index)
