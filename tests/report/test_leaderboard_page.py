"""The page of boards, as text and in a real browser."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from afarm.evaluation.protocol import EvaluationProtocol
from afarm.leaderboard import Entry, Leaderboard
from afarm.leaderboard.board import ranked
from afarm.report.leaderboard_page import render_leaderboards

HOSTILE = "</style><script>alert(1)</script><img src=x onerror=alert(2)>" + "long" * 30


def page() -> str:
    entries = (
        Entry("ppo", 46.8, 1.7, 805, 370, 420, 15, length=683.0, difference=-3.0, rank_low=1, rank_high=2),
        Entry(HOSTILE, 39.2, 1.6, 805, 300, 480, 25, length=278.0, prefers_longer=0.7, flags=(HOSTILE,)),
    )
    known = Leaderboard(EvaluationProtocol(HOSTILE, reference="sft", judges={"*": HOSTILE}), entries)
    return render_leaderboards(
        [ranked(known), ranked(Leaderboard(EvaluationProtocol(), (Entry("x", 1.0),), HOSTILE, HOSTILE))], [HOSTILE]
    )


def test_names_are_text_and_nothing_else() -> None:
    text = page()
    assert "<script" not in text
    assert "<img" not in text
    assert text.count("</style>") == 1
    assert "default-src 'none'" in text
    assert "&lt;script&gt;alert(1)" in text


@pytest.mark.browser
def test_it_fits_a_telephone_and_runs_nothing(tmp_path: Path) -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not chromium:
        pytest.skip("needs Chromium: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    path = tmp_path / "board.html"
    path.write_text(page())
    complaints: list[str] = []
    requests: list[str] = []
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for width in (1280, 420):
            opened = browser.new_page(viewport={"width": width, "height": 900})
            opened.on("console", lambda message: complaints.append(message.text))
            opened.on("dialog", lambda dialog: (complaints.append(dialog.message), dialog.dismiss()))
            opened.on("request", lambda request: requests.append(request.url))
            opened.goto(path.as_uri())
            assert opened.evaluate("document.documentElement.scrollWidth") <= width
            assert opened.locator("tbody tr").count() == 3
            points, ranges = opened.locator(".stretch circle"), opened.locator(".stretch .range")
            for place in range(2):
                point, interval = points.nth(place).bounding_box(), ranges.nth(place).bounding_box()
                assert point is not None
                assert interval is not None
                assert point["x"] + point["width"] / 2 == pytest.approx(interval["x"] + interval["width"] / 2, abs=2)
        browser.close()
    assert complaints == []
    assert requests == [path.as_uri()] * 2
