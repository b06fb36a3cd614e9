"""Hostile texts in every field of every file, in a real browser: shown as they are, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hostile import FILE_NAMES, TEXTS, run_ids
from playwright.sync_api import Browser, Page, expect
from viewed import opened, served

from afarm.storage.text import visible
from afarm.view.app import View

pytestmark = pytest.mark.browser

FOREIGN = """() => [
  ...document.querySelectorAll(`img, iframe, object, embed, math, form, b, i, animate, mglyph, base, template,
    body style, body link, body script, body meta`),
  ...[...document.querySelectorAll("*")].filter((one) => [...one.attributes].some(({ name }) =>
    name.startsWith("on") || name === "autofocus" || name === "srcdoc")),
  ...[...document.querySelectorAll("a, link, script, [action]")].filter((one) =>
    !/^(data:,|http:)/.test(one.href || one.src || one.action)),
].map((one) => one.outerHTML.slice(0, 300))"""
"""Elements, attributes and addresses that no page of the view has by itself."""

BY_HAND = {
    "index.html": ("method", "judge", "live method", "stage at work", "live error"),
    "artifacts.html": ("label",),
    "ledger.html": ("judge", "annotator", "batch", "finish", "reused by"),
    "boards.html": ("board", "study"),
    "costs.html": ("method", "study"),
    "annotators.html": ("drift epoch", "drift annotator", "drift judge"),
}
"""The pages of the menu, with fields that each must show for the test to see anything."""

OF_RUN = (
    *("method", "recipe", "annotator", "judge", "reference", "command", "note", "stage", "why", "setting 0", "value"),
    *("package", "version", "machine", "labelled by", "use", "curve", "other metric", "evaluator"),
)
OF_LIVE = ("live stage", "stage at work", "loop", "wait", "line", "live command", "live setting", "live judge")
OF_PAIR = ("annotator", "judge", "model", "reason", "raw", "prompt")


@pytest.fixture(scope="module")
def home(hostile_view: View) -> Iterator[str]:
    with served(hostile_view) as home:
        yield home


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


def test_every_page_shows_hostile_texts_and_names_as_they_are(browser: Browser, hostile_view: View, home: str) -> None:
    with opened(browser, home, "") as page:
        for path, fields in BY_HAND.items():
            page.goto(home + path)
            names = FILE_NAMES if path in ("index.html", "boards.html") else ()
            assert_inert(page, fields, *map(visible, names))
        first, second = run_ids(hostile_view)[:2]
        page.goto(f"{home}compare.html?run={first}&run={second}")
        assert_inert(page, ("method", "setting 0", "setting 1"), *map(visible, FILE_NAMES[:2]))
        for run, fields in ((first, OF_RUN), ("live", OF_LIVE), ("failed", ("live error", "live command"))):
            page.goto(f"{home}run/{run}.html")
            assert_inert(page, fields)


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
            page.get_by_role("link", name="board.html").click()
        board.value.wait_for_function("document.title")
        assert board.value.title() == "0nothing"
        board.value.close()
