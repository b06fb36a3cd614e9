"""The pictures that `make screenshots` takes are those that README and the pages show."""

from __future__ import annotations

import ast
import re

from places import DOCS, ROOT

SHOWN = re.compile(r"!\[[^\]]*\]\((?:docs/|\.\./)*(images/[^)\s]+)\)|<img[^>]+src=\"(?:docs/|\.\./)*(images/[^\"]+)\"")


def taken() -> set[str]:
    """Read the names of the pictures off the script, which needs Chromium to be run."""
    script = ast.parse((DOCS / "screenshots.py").read_text("utf-8"))
    values = {node.targets[0].id: node.value for node in script.body  # type: ignore[attr-defined]
              if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)}  # fmt: skip
    return {name for pictures in ("PICTURES", "VIEW", "LABEL") for name in ast.literal_eval(values[pictures])}


def test_the_pictures_that_are_taken_are_those_that_are_shown() -> None:
    pages = [ROOT / "README.md", *DOCS.rglob("*.md")]
    shown = {name for page in pages for pair in SHOWN.findall(page.read_text("utf-8")) for name in pair if name}
    assert {f"images/{name}" for name in taken()} == shown
    assert {f"images/{path.name}" for path in (DOCS / "images").iterdir()} == shown
