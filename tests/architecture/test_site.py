"""The site of the documentation: every page has its place in the sidebar, and nothing is loaded from elsewhere.

`make docs` builds it, with every warning an error; what needs the built site is skipped before that.
"""

from __future__ import annotations

import importlib.util
import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote

import pytest
from places import DOCS, ROOT

SITE = ROOT / "build" / "site"

built = pytest.mark.skipif(not (SITE / "index.html").exists(), reason="no built site: make docs")


@cache
def settings() -> ModuleType:
    """The settings of the site, which need no Sphinx."""
    spec = importlib.util.spec_from_file_location("conf", DOCS / "conf.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def in_sidebar() -> list[str]:
    return [page for trees in settings().sidebar().values() for page in re.findall(r"^/(.+)$", trees, re.M)]


def test_every_page_stands_once_in_the_sidebar() -> None:
    pages = [
        str(page.relative_to(ROOT).with_suffix("")) for page in DOCS.rglob("*") if page.suffix in (".md", ".ipynb")
    ]
    assert sorted(page for page in in_sidebar() if page.startswith("docs/")) == sorted(pages), (
        "name each page in docs/README.md, or in the README of its folder"
    )
    assert len(set(in_sidebar())) == len(in_sidebar())


def test_the_sections_of_the_sidebar_are_those_of_the_list_of_pages() -> None:
    captions = re.findall(r"^:caption: (.+)$", settings().sidebar()["README"], re.M)
    assert captions == re.findall(r"^\*\*(.+?)\*\*", (DOCS / "README.md").read_text(encoding="utf-8"), re.M)
    assert captions


class Page(HTMLParser):
    """What a page of the site loads, what it links, and its anchors."""

    def __init__(self, path: Path):
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given: dict[str, Any] = dict(attrs)
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}
        if tag == "a":
            self.links += [given["href"]] if given.get("href") else []
        else:
            self.loads += [given[name] for name in ("src", "href", "data", "poster") if given.get(name)]


@cache
def site() -> dict[Path, Page]:
    return {path: Page(path) for path in sorted(SITE.rglob("*.html"))}


@built
def test_the_site_loads_nothing_from_elsewhere() -> None:
    loaded = {(str(path), each) for path, page in site().items() for each in page.loads if re.match(r"(\w+:)?//", each)}
    styles = {str(path): path.read_text(encoding="utf-8") for path in SITE.rglob("*.css")}
    assert loaded == set()
    assert [path for path, text in styles.items() if re.search(r"url\(['\"]?(\w+:)?//|@import", text)] == []


@built
def test_the_links_of_the_site_lead_to_pages_and_anchors_of_it() -> None:
    broken = []
    for path, page in site().items():
        for link in page.links:
            if re.match(r"[a-z]+:", link):
                continue
            target, _, anchor = unquote(link).partition("#")
            there = (path.parent / target).resolve() if target else path
            if not there.is_file() or (anchor and there in site() and anchor not in site()[there].anchors):
                broken.append(f"{path.relative_to(SITE)}: {link}")
    assert broken == []
