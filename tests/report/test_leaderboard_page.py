"""The page of boards, as text and in a real browser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from opened_page import OpenedPage
from playwright.sync_api import Browser, expect

from afarm.evaluation.boards import Entry, Leaderboard
from afarm.evaluation.boards.board import ranked
from afarm.evaluation.protocol import EvaluationProtocol
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
    assert text.count("<script") == text.count("</script>") == 1, "the one that sorts"
    assert "<img" not in text
    assert text.count("</style>") == 1
    assert "default-src 'none'" in text
    assert "&lt;script&gt;alert(1)" in text


def whole() -> str:
    """A board with every column that judgements give; the first of its systems is flagged."""
    entries = tuple(
        Entry(
            name, rate, 1.7, 805, 370, 420, 15, length=683.0, length_controlled=40.0, length_controlled_error=1.0,
            rank_low=1, rank_high=3, difference=gap, difference_low=gap and gap - 3.1,
            difference_high=gap and gap + 3.1, p_value=p, difference_to="" if gap is None else "reward_conditioning",
            detectable=2.7, prefers_longer=0.7, prefers_lists=0.6, flags=("the judge grades its own family", *flags),
        )
        for name, rate, gap, p, flags in (
            ("reward_conditioning", 60.0, None, None, ("64 of 64 outputs talk to the judge",)),
            ("Mixtral-8x7B-Instruct-v0.1_concise", 53.6, -6.4, 0.071, ()),
            ("dpo", 40.0, -20.0, 0.0001, ()),
        )
    )  # fmt: skip
    return render_leaderboards([ranked(Leaderboard(EvaluationProtocol("pool", reference="sft"), entries))])


def test_flags_stand_with_their_rows_and_those_of_all_above_the_table() -> None:
    text = whole()
    assert "<h1>judged by pool, against sft</h1>" in text
    table = text.index("<table")
    assert text.index("the judge grades its own family") < text.index("Red flags: reward_conditioning;") < table
    row = text[text.index('<tr class="flagged">') : text.index("</tr>", text.index('<tr class="flagged">'))]
    assert "<wbr>conditioning<details><summary>1 flag</summary>" in row
    assert "64 of 64 outputs talk to the judge" in row
    assert text.count("the judge grades its own family") == 1


def test_an_adjusted_p_and_an_unadjusted_interval_say_which_they_are() -> None:
    text = whole()
    assert '<th scope="col" class="number">p, adjusted</th>' in text
    assert '<td class="number">-6.4 (-9.5 to -3.3)</td><td class="number">0.071</td>' in text
    assert "unadjusted 95 % interval" in text
    assert "p is adjusted for all 3 pairs of the board (Holm)" in text
    assert "an unadjusted test finds it less than four times in five, the adjusted one less often" in text


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 1400])
def test_no_column_is_clipped_and_no_word_broken(browser: Browser, tmp_path: Path, width: int) -> None:
    path = tmp_path / "board.html"
    path.write_text(whole())
    opened = OpenedPage(browser, path, width).page
    room, needed = opened.evaluate(
        "(() => { const card = document.querySelector('.scroll'); return [card.clientWidth, card.scrollWidth]; })()"
    )
    assert needed <= room, (needed, room)
    lines = opened.evaluate(
        """[...document.querySelectorAll('tbody th')].map(cell => [...cell.childNodes]
          .filter(node => node.nodeType === Node.TEXT_NODE && node.textContent.trim())
          .map(node => { const range = document.createRange(); range.selectNodeContents(node);
                         return range.getClientRects().length; }))"""
    )
    assert all(count == 1 for cell in lines for count in cell), "each piece of a name stands on one line"


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 420])
def test_it_fits_a_telephone_and_sorts(browser: Browser, tmp_path: Path, width: int) -> None:
    path = tmp_path / "board.html"
    path.write_text(page())
    shown = OpenedPage(browser, path, width)
    opened = shown.page
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    assert opened.locator("tbody tr").count() == 3
    points, ranges = opened.locator(".stretch circle"), opened.locator(".stretch .range")
    for place in range(2):
        point, interval = points.nth(place).bounding_box(), ranges.nth(place).bounding_box()
        assert point is not None
        assert interval is not None
        assert point["x"] + point["width"] / 2 == pytest.approx(interval["x"] + interval["width"] / 2, abs=2)
    if width == 1280:
        rates = opened.locator("tbody tr td:nth-child(3)")
        opened.get_by_role("button", name="win rate, %").first.click()
        opened.get_by_role("button", name="win rate, %").first.click()
        expect(rates.first).to_have_text(re.compile(r"^\s*39\.2"))  # from the lowest on
    assert shown.is_quiet(), (shown.complaints, shown.requests)
