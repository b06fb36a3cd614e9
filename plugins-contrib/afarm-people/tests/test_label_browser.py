"""The page in a real browser: 20 pairs by keyboard, the server killed and started again in the middle."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from label_client import LabelServer, make_rows, write_pairs

from afarm import read_rows
from afarm.cli import main

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser

HOSTILE = "<script>pwned()</script><img src=x onerror=pwned()>\u202e</div></main>{{ 7 * 191 }}"
LINK = re.compile(r"ann: (http://127\.0\.0\.1:(\d+)/in/\S+)")


@contextmanager
def opened() -> Iterator[tuple[Page, list[str]]]:
    """A page of a phone in the dark, with what it complained of."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not chromium:
        pytest.skip("needs Chromium: apt-get install chromium")
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 390, "height": 844}, color_scheme="dark")
        page.set_default_timeout(60_000)
        complaints: list[str] = []
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: (complaints.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda r: None if r.url.startswith("http://127.0.0.1:") else complaints.append(r.url))
        page.on("console", lambda m: None if "net::ERR_" in m.text else complaints.append(m.text))
        yield page, complaints
        browser.close()


def press(page: Page, key: str) -> None:
    """Press a key that leads to another page, and wait for it."""
    with page.expect_navigation():
        page.keyboard.press(key)


def test_twenty_pairs_by_keyboard_through_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = make_rows(20)
    rows[3] |= {"instruction": HOSTILE, "input": HOSTILE, "output_1": HOSTILE, "output_2": f"{HOSTILE} better"}
    write_pairs(tmp_path / "pairs.jsonl", rows)
    (tmp_path / "guide.md").write_text(f"# Go by truth\n\n{HOSTILE}\n")
    with opened() as (page, complaints):
        server = LabelServer("--guideline", "guide.md", "--port", "0")
        found = LINK.search(server.said)
        assert found
        page.goto(found[1])
        for number in range(1, 11):
            assert page.inner_text("h1") == f"Pair {number}"
            press(page, "1" if "better" in page.inner_text(".response:first-child .text") else "4")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")

        server.kill()
        page.keyboard.press("r")
        page.keyboard.type("1 4 skip")  # keys are letters in the reason
        page.keyboard.press("Escape")
        page.keyboard.press("3")
        page.wait_for_selector("#problem:not([hidden])")
        assert "Not saved yet: there is no connection" in page.inner_text("#problem")
        with page.expect_navigation():
            server = LabelServer("--guideline", "guide.md", "--port", found[2])
        assert "10 labels of 20 pairs so far" in server.said
        assert not LINK.search(server.said)  # the link is not made anew
        assert page.inner_text("h1") == "Pair 12"

        press(page, "b")
        assert page.get_attribute("[aria-pressed=true]", "aria-label") == "B is slightly better"
        assert page.input_value("textarea") == "1 4 skip"
        press(page, "n")
        press(page, "s")
        for _ in range(8):
            press(page, "0")
        assert page.inner_text("h1") == "Pair 12"  # the one that was skipped
        press(page, "2")
        assert page.inner_text("h1") == "Done, thank you"
        server.kill()
        assert complaints == []

    with pytest.raises(SystemExit, match=r"^0$"):
        main(["label", "pairs.jsonl", "--export", "labels.jsonl"])
    labels = list(read_rows("labels.jsonl"))
    assert len(labels) == 20
    assert sum(row["preference"] == 1.5 for row in labels) == 8
    certain = [row for row in labels if row["strength"] == 1.0]
    assert len(certain) == 10
    assert all(row["preference"] == 2 for row in certain)
    assert [row["reason"] for row in labels if row["reason"]] == ["1 4 skip"]
    assert all(0 <= row["time_per_example"] < 60 for row in labels)
