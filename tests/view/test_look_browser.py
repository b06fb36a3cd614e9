"""How every page looks in a real browser: readable in light and in dark, and no wider than a phone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hostile import run_ids
from places import SUPPORT
from playwright.sync_api import Browser, Page, expect
from viewed import opened, served

from afarm.view.app import View

pytestmark = pytest.mark.browser

PHONE = {"width": 390, "height": 800}

FAINT = (SUPPORT / "faint_texts.js").read_text()

PAGES = {
    "runs": ("index.html", "tbody tr"),
    "run": ("run/{0}.html", "#curves .main-svg"),
    "live": ("run/live.html", ".log li"),
    "failed": ("run/failed.html", "#live"),
    "outputs": ("outputs/{0}.html", ".vote"),
    "compare": ("compare.html?run={0}&run={1}", "#settings tbody tr"),
    "artifacts": ("artifacts.html", "tbody tr"),
    "ledger": ("ledger.html", "tbody tr"),
    "boards": ("boards.html", ".documents li"),
    "costs": ("costs.html", "#best-of-n .main-svg"),
    "annotators": ("annotators.html", "section:last-of-type tbody tr"),
}
"""Every kind of page: its address, with ids of runs, and what is there once it is full."""


@pytest.fixture(scope="module")
def home(hostile_view: View) -> Iterator[str]:
    with served(hostile_view) as home:
        yield home


def settled(page: Page, script: str, wanted: Any) -> Any:
    """Evaluate a script until it gives what is wanted, or charts have had a minute to be drawn again."""
    for _ in range(600):
        if (found := page.evaluate(script)) == wanted:
            break
        page.wait_for_timeout(100)
    return found


@pytest.mark.parametrize("kind", PAGES)
def test_pages_are_readable_in_light_and_dark_and_fit_a_phone(
    browser: Browser, hostile_view: View, home: str, kind: str
) -> None:
    address, full = PAGES[kind]
    with opened(browser, home, address.format(*run_ids(hostile_view)), color_scheme="dark") as page:
        expect(page.locator(full).first).to_be_attached()
        grounds = set()
        for scheme in ("dark", "light"):
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            assert settled(page, FAINT, []) == []
            grounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert len(grounds) == 2, "dark is another look"
        page.set_viewport_size(PHONE)  # type: ignore[arg-type]
        assert settled(page, "document.documentElement.scrollWidth", PHONE["width"]) == PHONE["width"]
