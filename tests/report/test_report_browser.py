"""The pages of runs and studies in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from opened_page import OpenedPage
from playwright.sync_api import Browser, expect

from afarm.experiment.studies.progress import GridProgress
from afarm.experiment.studies.study import Findings
from afarm.report import build
from afarm.report.study_page import ShownStudy, write_study

MakeRun = Callable[..., Path]
RATES = [
    {"system": "ppo", "reference": name, "evaluator": "win_rate", "metrics": {"win_rate": rate, "standard_error": 1.6}}
    for name, rate in (("sft", 60.1), ("base", 70.0))
]
"""Win rates against two references."""

HOSTILE = "</script><img src=x onerror=\"alert('pwned')\"><script>alert('pwned')</script>"
pytestmark = pytest.mark.browser


def test_page_is_quiet_fetches_nothing_and_draws_every_point(browser: Browser, make_run: MakeRun) -> None:
    opened = OpenedPage(browser, build(make_run(results=RATES)))
    opened.wait_for_charts(4)
    assert opened.page.locator("#chart-main-0 .shapelayer path").count() == 1, "the kept checkpoint"
    assert opened.page.locator("#chart-main-3 .points path.point").count() == 41, "and its ring"
    for place in range(3):
        assert opened.page.locator(f"#chart-main-{place} .points path.point").count() == 40
    opened.page.locator("#more-charts summary").click()
    opened.wait_for_charts(11)
    assert opened.is_quiet(), (opened.complaints, opened.requests)


def test_intervals_stand_where_the_figures_are(browser: Browser, make_run: MakeRun) -> None:
    """The win rate's point lies in the middle of its interval, and right of the line for even."""
    page = OpenedPage(browser, build(make_run(results=RATES))).page
    assert page.locator(".stretch").count() == len(RATES)
    point, bar = (page.locator(f".stretch {part}").first for part in ("circle", ".range"))
    centre, low, high = (
        float(part.get_attribute(name) or "nan") for part, name in ((point, "cx"), (bar, "x1"), (bar, "x2"))
    )
    assert centre == pytest.approx((low + high) / 2, abs=0.02)
    even = page.locator(".stretch .even").first.get_attribute("x1")
    # 60.1 is 10.1 above even, and half the bar is 1.96 · 1.6 = 3.136 long.
    assert (centre - float(even or "nan")) / ((high - low) / 2) == pytest.approx(10.1 / 3.136, rel=0.05)
    shown, stretched = point.bounding_box(), bar.bounding_box()
    assert shown is not None
    assert stretched is not None
    assert shown["x"] + shown["width"] / 2 == pytest.approx(stretched["x"] + stretched["width"] / 2, abs=2)


def test_names_of_systems_stay_whole_and_their_table_fits(browser: Browser, make_run: MakeRun) -> None:
    metrics = {"win_rate": 58.9, "standard_error": 1.7, "n_wins": 467, "n_wins_base": 324, "n_draws": 14,
               "n_identical": 14, "n_total": 805, "avg_length": 396.3, "avg_length_reference": 308.0}  # fmt: skip
    names = [("alpaca-7b", 1), ("text_davinci_003", 1), ("my-own-model", 1), ("alpaca-farm-ppo-human", 2)]
    results = [
        {"system": name, "reference": "text_davinci_003", "evaluator": "win_rate", "metrics": metrics}
        for name, _ in names
    ]
    page = OpenedPage(browser, build(make_run(results=results))).page
    table = page.get_by_role("group", name="Table of win rates")
    assert table.evaluate("one => one.scrollWidth - one.clientWidth") <= 0, "it fits a screen of 1280"
    lines = (
        "one => { const text = document.createRange(); text.selectNodeContents(one); "
        "return new Set([...text.getClientRects()].map((line) => line.top)).size; }"
    )
    for name, most in names:
        assert table.get_by_role("rowheader", name=name, exact=True).evaluate(lines) <= most, name


def test_filter_shows_one_verdict_and_says_how_many(browser: Browser, make_run: MakeRun) -> None:
    opened = OpenedPage(browser, build(make_run()))
    seen = opened.page.locator(".comparison:visible")
    assert seen.count() == 24
    opened.page.get_by_label("sft preferred").check(force=True)
    expect(seen).to_have_count(9)
    assert {item.get_attribute("data-verdict") for item in seen.all()} == {"loss"}
    expect(opened.page.locator("#shown")).to_have_text("9 shown")
    opened.page.keyboard.press("ArrowRight")  # the filter is a radio group: arrow keys move through it
    expect(opened.page.locator("#shown")).not_to_have_text("9 shown")
    assert {item.get_attribute("data-verdict") for item in seen.all()} == {"draw"}
    opened.page.get_by_label("all 24").check(force=True)
    expect(seen).to_have_count(24)


def test_hostile_outputs_run_nothing(browser: Browser, make_run: MakeRun) -> None:
    attack = "</script><img src=x onerror=\"alert('pwned')\"><script>alert('pwned')</script>"
    row = {"instruction": attack, "output_1": attack, "output_2": attack, "preference": 2, "generator_2": attack}
    result = {"system": attack, "reference": "<b>sft</b>", "evaluator": "win_rate",
              "metrics": {"win_rate": 55.0, "standard_error": 2.0}}  # fmt: skip
    metrics = [{"stage": "train", "step": step, attack: 1.0} for step in (1, 2)]
    name = attack.replace("/", "")  # of one file: a name with a path in it is not read
    opened = OpenedPage(browser, build(make_run(outputs=[row], metrics=metrics, results=[result] * 2, name=name)))
    opened.wait_for_charts(1)
    assert opened.is_quiet(), (opened.complaints, opened.requests)
    assert opened.page.locator("img").count() == 0
    assert opened.page.locator(".system .text").inner_text() == attack
    assert "<b>sft</b>" in opened.page.get_by_label("Table of win rates").inner_text()


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_wider_than_the_screen(browser: Browser, make_run: MakeRun, width: int) -> None:
    long = "unbroken" * 300
    row = {"instruction": long, "output_1": long, "output_2": long, "preference": 1, "member": "gpt4_1"}
    opened = OpenedPage(
        browser, build(make_run(outputs=[row], name="n" * 200, command=f"afarm run --set x={long}")), width
    )
    opened.wait_for_charts(4)
    assert opened.page.evaluate("document.documentElement.scrollWidth") == width
    diagram = opened.page.locator(".diagram").evaluate("box => [box.scrollWidth > box.clientWidth, box.clientWidth]")
    assert diagram == [width == 390, diagram[1]], "it scrolls by itself on a narrow screen"


def test_tables_of_a_run_sort_by_their_numbers(browser: Browser, make_run: MakeRun) -> None:
    opened = OpenedPage(browser, build(make_run()))
    table = opened.page.get_by_label("Table of stages")
    table.get_by_role("button", name="Seconds").click()
    seconds = table.locator("tbody td:nth-child(3)")
    expect(seconds.first).to_have_text("35.5")
    assert sorted(map(float, seconds.all_inner_texts()), reverse=True) == [*map(float, seconds.all_inner_texts())]


def test_charts_follow_the_colour_scheme_when_it_changes(browser: Browser, make_run: MakeRun) -> None:
    opened = OpenedPage(browser, build(make_run()))
    opened.wait_for_charts(4)

    def colour() -> str:
        return str(opened.page.locator("#chart-main-0 .js-line").evaluate("line => line.style.stroke"))

    light = colour()
    opened.page.emulate_media(color_scheme="dark")
    opened.page.wait_for_function(
        "before => document.querySelector('#chart-main-0 .js-line').style.stroke !== before", arg=light
    )
    assert (light, colour()) == ("rgb(10, 108, 109)", "rgb(92, 200, 190)")


def test_without_scripts_the_page_still_reads(browser: Browser, make_run: MakeRun) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(build(make_run()).as_uri())
    assert page.locator("noscript p").is_visible()
    assert not page.locator(".filter").is_visible()
    assert page.locator(".comparison:visible").count() == 24
    context.close()


# ---------------------------------------------------------------------------------------------------------- studies

Study = tuple[GridProgress, Findings]


@pytest.fixture
def study(tmp_path: Path, findings: Study) -> Path:
    return write_study(tmp_path, ShownStudy(HOSTILE, f"afarm study {HOSTILE}", *findings)).with_suffix(".html")


def test_a_study_s_plots_have_every_point_and_its_legend_switches_series(browser: Browser, study: Path) -> None:
    opened = OpenedPage(browser, study)
    opened.wait_for_charts(5)
    plot, points = opened.page.locator("#chart-0"), opened.page.locator("#chart-0 .points path.point")
    assert points.count() == 5
    bars = """path => [...document.querySelectorAll(path)].map(bar => bar.getBBox())
      .filter(box => box.height > 0 && box.width > 0).length"""
    assert opened.page.evaluate(bars, "#chart-0 path.yerror") == 4, "one point has no interval"
    assert opened.page.evaluate(bars, "#chart-2 path.xerror") == 1
    one, two, three = (points.nth(place).bounding_box() for place in range(3))
    assert one is not None
    assert two is not None
    assert three is not None
    assert two["x"] - one["x"] == pytest.approx(three["x"] - two["x"], abs=1), "decades are equally wide"
    assert two["y"] < one["y"] < three["y"], "60, 50 and 40"
    assert opened.page.locator("#chart-2 path.js-line").count() == 1, "the fit, and no line from point to point"
    opened.page.locator("[data-plot='0'] .legend input").nth(1).uncheck()
    opened.page.wait_for_function("document.querySelectorAll('#chart-0 .points path.point').length === 3")
    plot.focus()
    opened.page.keyboard.press("ArrowRight")
    opened.page.keyboard.press("ArrowRight")
    expect(opened.page.locator("#said-0")).to_have_text("pool, β: 0.1, win rate, %: 60 (55 to 65)")
    expect(plot.locator(".hoverlayer")).to_contain_text("60 (55 to 65)")
    assert opened.is_quiet(), (opened.complaints, opened.requests)


def test_a_study_s_tables_sort_by_numbers_and_by_keyboard(browser: Browser, study: Path) -> None:
    page = OpenedPage(browser, study).page
    table = page.locator("#result table")
    cells = table.locator("tbody td:nth-child(2)")
    given = cells.all_inner_texts()
    heading = table.get_by_role("button", name="beta")
    heading.focus()
    page.keyboard.press("Enter")
    expect(cells).to_have_text(["1.0", "0.1", "0.03", "–"])  # by number, the unknown last
    page.keyboard.press("Enter")
    expect(cells).to_have_text(["0.03", "0.1", "1.0", "–"])
    expect(table.locator("th[aria-sort=ascending]")).to_have_count(1)
    page.keyboard.press("Enter")
    expect(cells).to_have_text(given)


@pytest.mark.parametrize(("width", "scheme"), [(1280, "dark"), (390, "light")])
def test_a_study_fits_its_screen_and_its_names_are_text(browser: Browser, study: Path, width: int, scheme: str) -> None:
    opened = OpenedPage(browser, study, width, scheme)
    opened.wait_for_charts(5)
    page = opened.page
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.locator("img").count() == 0
    assert page.locator("h1").inner_text() == HOSTILE
    assert page.locator(".legend label").nth(1).inner_text() == HOSTILE
    assert HOSTILE[:10] in (page.locator("#chart-1 .xtick text").first.text_content() or "")
    ink = page.evaluate("getComputedStyle(document.querySelector('#chart-0 .xtick text')).fill")
    assert sum(map(int, ink[4:-1].split(","))) > 384 if scheme == "dark" else True, "light text on dark"
    assert opened.is_quiet(), (opened.complaints, opened.requests)


def test_without_scripts_a_study_shows_the_values_of_its_plots(browser: Browser, study: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(study.as_uri())
    assert page.locator("[data-plot='0'] details tbody tr").count() == 5
    assert not page.locator(".legend").first.is_visible()
    context.close()
