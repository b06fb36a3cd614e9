"""Every page of the view in a real browser, over files that are hostile in every field.

Texts and names are shown as they are, and nothing else; they can be read in light and in dark, and on a phone.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hostile import FILE_NAMES, TEXTS, run_ids
from places import SUPPORT
from playwright.sync_api import Browser, Page, expect
from viewed import opened, served

from afarm.storage.text import visible
from afarm_plugins.view.app import View

pytestmark = pytest.mark.browser

PHONE = {"width": 390, "height": 800}

FAINT = (SUPPORT / "faint_texts.js").read_text()

FOREIGN = """() => [
  ...document.querySelectorAll(`img, iframe, object, embed, math, form, b, i, animate, mglyph, base, template,
    body style, body link, body script, body meta`),
  ...[...document.querySelectorAll("*")].filter((one) => [...one.attributes].some(({ name }) =>
    name.startsWith("on") || name === "autofocus" || name === "srcdoc")),
  ...[...document.querySelectorAll("a, link, script, [action]")].filter((one) =>
    !/^(data:,|http:)/.test(one.href || one.src || one.action)),
].map((one) => one.outerHTML.slice(0, 300))"""
"""Elements, attributes and addresses that no page of the view has by itself."""

OF_RUN = (
    *("method", "recipe", "annotator", "judge", "reference", "command", "note", "stage", "why", "setting 0", "value"),
    *("package", "version", "machine", "labelled by", "use", "curve", "other metric", "evaluator"),
)
OF_LIVE = ("live stage", "stage at work", "loop", "wait", "line", "live command", "live setting", "live judge")
OF_PAIR = ("annotator", "judge", "model", "reason", "raw", "prompt")

PAGES = {
    "runs": ("index.html", "tbody tr", ("method", "judge", "live method", "stage at work", "live error")),
    "run": ("run/{0}.html", "#curves .main-svg", OF_RUN),
    "live": ("run/live.html", ".log li", OF_LIVE),
    "failed": ("run/failed.html", "#live", ("live error", "live command")),
    "outputs": ("outputs/{0}.html", ".vote", OF_PAIR),
    "compare": ("compare.html?run={0}&run={1}", "#settings tbody tr", ("method", "setting 0", "setting 1")),
    "artifacts": ("artifacts.html", "tbody tr", ("label",)),
    "ledger": ("ledger.html", "tbody tr", ("judge", "annotator", "batch", "finish", "reused by")),
    "boards": ("boards.html", "article.board", ("board", "study")),
    "costs": ("costs.html", "#best-of-n .main-svg", ("method", "study")),
    "annotators": (
        "annotators.html",
        "section:last-of-type tbody tr",
        ("drift epoch", "drift annotator", "drift judge"),
    ),
}
"""Every kind of page: its address, with ids of runs, what is there once it is full, and fields that it must show."""


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


def assert_inert(page: Page, fields: tuple[str, ...], *texts: str) -> None:
    """Hold that the page shows these, and that no text in it became an element, a style or a computation."""
    body = page.locator("body")
    for shown in (*(f"[{field}]" for field in fields), *texts):
        expect(body).to_contain_text(shown)
    assert page.evaluate(FOREIGN) == []
    text = body.inner_text()
    assert "1337" not in text, "a template was computed"
    assert not {"\0", "\x07", "\x1b", "\u202e", "\u2066"} & set(text)
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, page.url
    expect(page.locator("h1")).to_be_visible()


@pytest.mark.parametrize("kind", PAGES)
def test_pages_show_texts_as_they_are_readable_in_light_and_dark_and_fit_a_phone(
    browser: Browser, hostile_view: View, home: str, kind: str
) -> None:
    address, full, fields = PAGES[kind]
    names = {"runs": FILE_NAMES, "boards": FILE_NAMES, "compare": FILE_NAMES[:2]}.get(kind, [])
    with opened(browser, home, address.format(*run_ids(hostile_view)), scheme="dark") as page:
        expect(page.locator(full).first).to_be_attached()
        assert_inert(page, fields, *map(visible, names))
        grounds = set()
        for scheme in ("dark", "light"):
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            assert settled(page, FAINT, []) == []
            grounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert len(grounds) == 2, "dark is another look"
        page.set_viewport_size(PHONE)  # type: ignore[arg-type]
        assert settled(page, "document.documentElement.scrollWidth", PHONE["width"]) == PHONE["width"]


def test_every_pair_shows_hostile_texts_of_systems_and_judges_as_they_are(
    browser: Browser, hostile_view: View, home: str
) -> None:
    with opened(browser, home, f"outputs/{run_ids(hostile_view)[0]}.html") as page:
        for number, (name, text) in enumerate(TEXTS.items()):
            if name == "surrogate":
                continue
            if number:
                page.keyboard.press("j")
            expect(page.locator("#pair .prompt")).to_have_text(visible(text))
            expect(page.locator("#pair .banner q").first).to_be_attached()
            assert_inert(page, OF_PAIR, visible(text))


def test_a_hostile_document_reaches_nothing_of_the_view(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "boards").mkdir()
    script = """<script>
      const tries = [() => localStorage.length, () => document.cookie, () => opener.document.title,
        () => parent.document.querySelector("h1").textContent.length && parent !== window];
      const got = tries.filter((one) => { try { return one() !== false; } catch { return false; } }).length;
      fetch("/data/runs.json").then(() => "data", () => "nothing").then((read) => { document.title = got + read; });
    </script>"""
    (tmp_path / "boards" / "board.html").write_text(script)
    with served(View([tmp_path], may_stop=True)) as home, browser.new_page() as page:
        page.goto(home + "boards.html")
        with page.expect_popup() as board:
            page.get_by_role("link", name="The whole page").click()
        board.value.wait_for_function("document.title")
        assert board.value.title() == "0nothing"
        board.value.close()
